// The time of planned collectives on a machine that need not exist: a latency-bandwidth model of its links, read from a
// YAML file (scenarios/machines). Pure functions; nothing is measured.
//
//   machine: four_nodes_of_eight
//   summary: ...
//   levels:                        # from the inside out; each level joins units of the one before
//     - name: node
//       ranks: 8                   # of one unit: ranks 0 to 7, 8 to 15, ... share a node
//       latency_us: 3              # of one message between two ranks
//       bandwidth_gb_per_s: 300    # 10^9 bytes per second, of one rank and in one direction, while all ranks send
//       algorithms: {all_reduce: ring, broadcast: tree}   # optional, per operation; the others are ring
//     - name: network
//       ranks: 32
//       latency_us: 10
//       bandwidth_gb_per_s: 40
//
//   const Machine machine = machine_from_text(text, "four_nodes.yaml");
//   seconds_of(machine, "all_reduce", {0, 1, 2, 3}, 1 << 20)
//
// A collective runs at the innermost level with a unit that contains all of its members, and each of its messages costs
// latency + bytes / bandwidth of that level. With n members, S bytes of the larger of a rank's input and output,
// a latency and b seconds per byte:
//
//   operation                               ring                        tree
//   all_reduce                              2 (n-1) a + 2 (n-1)/n S b   2 log n (a + S b)
//   all_gather, reduce_scatter              (n-1) a + (n-1)/n S b       log n a + (n-1)/n S b
//   all_to_all                              (n-1) a + (n-1)/n S b       log n (a + S/2 b)
//   broadcast                               (n-1) a + S b               log n (a + S b)
//   gather, scatter                         (n-1) a + (n-1)/n S b       log n a + (n-1)/n S b
//   barrier                                 2 (n-1) a                   log n a
//   send, receive                           a + S b                     a + S b
//
// log n is the logarithm to base 2, rounded up. The rows are those of R. Thakur, R. Rabenseifner and W. Gropp,
// "Optimization of Collective Communication Operations in MPICH" (2005): rings; binomial trees for all_reduce,
// broadcast, gather and scatter; recursive doubling and halving for all_gather and reduce_scatter; Bruck's algorithm
// for all_to_all; dissemination for barrier. A ring broadcast sends its parts in a pipeline and counts their bytes
// once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/plan/collectives.hpp"

namespace lockstep::plan {

enum class Algorithm : std::uint8_t { ring, tree };

struct MachineLevel {
  std::string name;
  int ranks = 1;  // of one unit of this level
  double latency_seconds = 0.0;
  double bytes_per_second = 0.0;
  std::map<std::string, Algorithm, std::less<>> algorithms{};  // by operation; ring for the others
};

struct Machine {
  std::string name;
  std::vector<MachineLevel> levels;  // from the inside out
  int num_ranks() const { return levels.empty() ? 0 : levels.back().ranks; }
};

// Throws ScenarioError with every mistake of the text and its place: unknown or missing keys, numbers out of range, a
// level that is no multiple of the one before, an unknown operation or algorithm.
Machine machine_from_text(const std::string& text, const std::string& file);

// The innermost level with a unit that contains all members (world ranks, at least one). Throws Error when a member is
// not on the machine.
const MachineLevel& level_of(const Machine& machine, const std::vector<int>& members);

// The time of one collective in seconds. `operation` as in Collective; a group of one rank takes none. Throws Error
// as level_of, and for an unknown operation.
double seconds_of(const Machine& machine, std::string_view operation, const std::vector<int>& members,
                  std::int64_t bytes);

}  // namespace lockstep::plan
