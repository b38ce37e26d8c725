// Seeded defects: named points in the engine and the comparer that do the wrong thing on purpose, so that it can be
// shown that each kind of mistake is seen. Off, a point costs one predictable branch.
//
//   if (defect_armed(Defect::replicate_no_division)) [[unlikely]] { ... } else { ... }
//
// One defect can be armed a process (before ranks start); it holds for all ranks of it.
#pragma once

#include <string_view>

namespace lockstep {

// New entries also get a row in defects.cpp; the table's length is checked at compile time.
enum class Defect {
  none,
  replicate_no_division,      // the mean forgets to divide
  replicate_divides_twice,    // the mean divides by the world size twice
  replicate_reduces_early,    // a bucket is reduced before its last gradient is in it
  replicate_bucket_not_sent,  // the last bucket is never reduced
  replicate_wait_left_out,    // the compute stream does not wait for the reduction
  sum_leaves_out_rank,        // the last rank's part is missing from a sum
  compare_always_equal,       // a comparison holds whatever it sees
  compare_ignores_last,       // a comparison does not look at the last element
  count_
};

// What must see a defect; a crash, a hang or the plan alone does not count for a value defect.
enum class DefectKind { value, count, order, memory, message };

struct DefectInfo {
  Defect defect;
  std::string_view name;  // as `--defect NAME`
  DefectKind kind;
  std::string_view place;  // file of the point
  std::string_view effect;
};

const DefectInfo* defect_table();  // count_ - 1 entries, in the order of the enum without `none`
int num_defects();
std::string_view name_of(DefectKind kind);
Defect defect_from_name(std::string_view name);  // throws Error naming the known ones
void arm_defect(Defect defect);                  // for the whole process
Defect armed_defect();

namespace defect_detail {
extern Defect armed;
}
inline bool defect_armed(Defect defect) { return defect_detail::armed == defect; }

}  // namespace lockstep
