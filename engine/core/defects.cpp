#include "engine/core/defects.hpp"

#include <array>
#include <string>

#include "engine/core/error.hpp"

namespace lockstep {

namespace defect_detail {
Defect armed = Defect::none;
}

namespace {
using enum Defect;
constexpr std::array table = {
    DefectInfo{replicate_no_division, "replicate_no_division", DefectKind::value, "engine/parallel",
               "the mean of gradients is not divided by the world size"},
    DefectInfo{replicate_divides_twice, "replicate_divides_twice", DefectKind::value, "engine/parallel",
               "the mean of gradients is divided twice"},
    DefectInfo{replicate_reduces_early, "replicate_reduces_early", DefectKind::value, "engine/parallel",
               "a bucket is reduced before its last gradient lies in it"},
    DefectInfo{replicate_bucket_not_sent, "replicate_bucket_not_sent", DefectKind::count, "engine/parallel",
               "the last bucket of a backward is never reduced"},
    DefectInfo{replicate_wait_left_out, "replicate_wait_left_out", DefectKind::order, "engine/parallel",
               "compute does not wait for the reduction of a bucket"},
    DefectInfo{sum_leaves_out_rank, "sum_leaves_out_rank", DefectKind::value, "engine/comm",
               "a sum over ranks leaves the last rank out"},
    DefectInfo{compare_always_equal, "compare_always_equal", DefectKind::value, "harness/verdict",
               "a comparison of values always holds"},
    DefectInfo{compare_ignores_last, "compare_ignores_last", DefectKind::value, "harness/verdict",
               "a comparison of values does not look at the last element"},
};
static_assert(table.size() + 1 == static_cast<std::size_t>(count_), "every defect needs its row");
}  // namespace

const DefectInfo* defect_table() { return table.data(); }
int num_defects() { return static_cast<int>(table.size()); }

std::string_view name_of(DefectKind kind) {
  constexpr std::string_view names[] = {"value", "count", "order", "memory", "message"};
  return names[static_cast<int>(kind)];
}

Defect defect_from_name(std::string_view name) {
  std::string known;
  for (const DefectInfo& info : table) {
    if (info.name == name) return info.defect;
    known += str(known.empty() ? "" : ", ", info.name);
  }
  throw Error(str("unknown defect `", name, "`"), str("one of ", known));
}

void arm_defect(Defect defect) { defect_detail::armed = defect; }
Defect armed_defect() { return defect_detail::armed; }

}  // namespace lockstep
