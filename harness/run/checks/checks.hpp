// Checks whose judgement waits for the end of the case: operands are copied in stream order, on the device, when the
// step runs, and read and compared once everything has ended. Nothing here waits for a stream before judge().
//
//   checks.add_equal(site, "loss", loss, "reference", reference, options);
//   ...
//   checks.judge(evidence, fail);            // on every rank, after synchronize_all
//   checks.judge_across(...);                // collective, see there
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

// Where and when a check stands: what a failure of it says.
struct Site {
  std::string check;  // the verb
  std::string file;
  int line = 0;
  int column = 0;
  int scenario_line = 0;  // of the case's own file
  int iteration = -1;
  std::int64_t time_ns = 0;
  std::string note;
};

using Fail = std::function<void(const Site&, std::string)>;

// A value as it was when the check ran. Tensors lie in a copy of their own; numbers, booleans and texts in `plain`.
struct Snapshot {
  std::string label;  // "test.fc1.weight.grad"
  Tensor copy;        // undefined: plain
  Value plain;
  const void* storage = nullptr;  // of the original
  std::int64_t storage_offset = 0;
  Tensor whole{};  // what `copy` is a part of, kept where the largest of all counts
};

struct EqualOptions {
  std::optional<double> rtol, atol;
  double of_largest = 0.0;
  bool bits = false;          // asked for by the check
  bool bits_float32 = false;  // required by the scenario, of float32
  bool gradients = true;      // of modules
  bool different = false;     // expect_different
  bool from_empty = false;    // an operand was read from a window in which nothing happened
};

// The checks that the steps of one rank added.
struct EqualCheck {
  Site site;
  EqualOptions options;
  struct Pair {
    Snapshot actual, expected;
  };
  std::vector<Pair> pairs;
  std::string mismatch;  // of the structures of both sides; empty: none
};
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
  // Takes snapshots of both values. Throws Error for values that cannot be compared (meta tensors, partial placements).
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

// Takes snapshots of a value and everything in it, in order; modules as parameters, gradients and buffers.
void take_snapshots(const std::string& label, const Value& value, bool gradients, std::vector<Snapshot>& out);

}  // namespace lockstep::run
