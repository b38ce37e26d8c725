// The checks expect_equal, expect_different and expect_across. When the step runs, the operands are copied on the
// device in stream order. At the end of the case, the copies are read and compared. No function waits for a stream
// before judge(), so a check orders nothing and hides no race.
//
//   checks.add_equal(site, "loss", loss, "reference", reference, options);
//   ...
//   checks.judge(evidence, fail);            // on every rank, after synchronize_all
//   checks.judge_across(...);                // collective
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "harness/run/values/value.hpp"
#include "harness/verdict/compare.hpp"

namespace lockstep::run {

// The place and time of a check, for its failure.
struct Site {
  std::string check;  // the verb
  std::string file;
  int line = 0;
  int column = 0;
  int scenario_line = 0;  // the line in the scenario's file; not `line` in a routine
  int iteration = -1;
  std::int64_t time_ns = 0;
  std::string note;
};

using Fail = std::function<void(const Site&, std::string)>;

// A value at the time of the check: a copy of a tensor, or a plain value.
struct Snapshot {
  std::string label;  // "test.fc1.weight.grad"
  Tensor copy;        // of the local shard of a sharded tensor; undefined for a plain value
  Value plain;
  const void* storage = nullptr;  // of the original tensor
  std::int64_t storage_offset = 0;
  Tensor full{};              // the tensor that `copy` is a shard of, for a tolerance relative to the largest element
  bool is_structure = false;  // the size or a key of a list or map: it is compared and is no evidence
};

struct EqualOptions {
  std::optional<double> rtol, atol;
  double of_largest = 0.0;            // tolerance relative to the largest expected element
  bool bits = false;                  // the check requires the same bits
  bool bits_float32 = false;          // the scenario requires the same bits of float32 tensors
  bool library_sums = false;          // a tolerance takes the place of required bits of numbers
  std::optional<DType> coarsest{};    // the coarsest 16-bit type that values of the rank may have been rounded to
  bool gradients = true;              // compare the gradients of modules too
  bool different = false;             // expect_different
  bool from_trivial_reading = false;  // an operand is a trivial reading (observation.hpp)
};

// One expect_equal or expect_different.
struct EqualCheck {
  Site site;
  EqualOptions options;
  struct Pair {
    Snapshot actual, expected;
  };
  std::vector<Pair> pairs;
  std::string mismatch;  // of the structures of both sides; empty: none
};
// One expect_across.
struct AcrossCheck {
  Site site;
  std::string key;  // the place, its repetition and the members: the same on all ranks
  std::string label;
  std::vector<int> members;  // world ranks, in the order of the mesh
  bool same = true;          // all members must have the same values; otherwise no two may
  std::vector<Snapshot> values;
};

class Checks {
 public:
  // Both take snapshots. Throw Error for values that cannot be compared (meta tensors, partial placements).
  void add_equal(Site site, const std::string& actual_label, const Value& actual, const std::string& expected_label,
                 const Value& expected, const EqualOptions& options);
  // `members`: the world ranks of the mesh, in its order.
  void add_across(Site site, const std::string& label, const Value& value, std::vector<int> members, bool same);

  // Judges the checks of add_equal, in the order in which they were added. Needs synchronized streams.
  void judge(verdict::Evidence& evidence, const Fail& fail);
  // Judges the checks of add_across. Collective: every rank of the case calls it once, with or without such checks. A
  // check that some member did not reach fails on the members that did. Throws CollectiveError.
  void judge_across(int rank, int world_size, verdict::Evidence& evidence, const Fail& fail);
  // Fails all checks of add_across without communication; `why` says why they cannot be judged.
  void fail_across(const std::string& why, const Fail& fail);

 private:
  std::vector<EqualCheck> equal_;
  std::vector<AcrossCheck> across_;
  std::unordered_map<std::string, int> num_repetitions_;  // of a check across ranks, by its place and members
};

// Appends snapshots of a value and of all values in it, in order: of a module its parameters, gradients (on request)
// and buffers. Throws Error for objects and meta tensors.
void take_snapshots(const std::string& label, const Value& value, bool gradients, std::vector<Snapshot>& out);

}  // namespace lockstep::run
