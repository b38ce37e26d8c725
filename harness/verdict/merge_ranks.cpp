// Merging the observations of all ranks into one row of the results (declared in judge.hpp).

#include <algorithm>
#include <iterator>
#include <tuple>

#include "engine/core/text.hpp"
#include "harness/verdict/judge.hpp"

namespace lockstep::verdict {

namespace {

bool handed_in(const RankOutcome& outcome) {
  return outcome.status == RankStatus::finished || outcome.status == RankStatus::failed ||
         outcome.status == RankStatus::invalid || (outcome.status == RankStatus::exited && outcome.end_expected);
}

}  // namespace

std::vector<CollectiveCount> merge_collectives(const std::vector<RankOutcome>& ranks, const std::string& stage) {
  struct Merged {
    CollectiveCount row;
    std::vector<const CollectiveCount*> by_rank;  // null: this rank has no such row
  };
  const auto same_kind = [](const CollectiveCount& a, const CollectiveCount& b) {
    return std::tie(a.family, a.operation, a.axis, a.group_size, a.phase) ==
           std::tie(b.family, b.operation, b.axis, b.group_size, b.phase);
  };
  std::vector<const RankOutcome*> reporting;
  for (const RankOutcome& outcome : ranks) {
    if (handed_in(outcome)) reporting.push_back(&outcome);
  }
  std::vector<Merged> merged;
  for (std::size_t i = 0; i < reporting.size(); ++i) {
    for (const CollectiveCount& row : reporting[i]->collectives) {
      auto at = std::find_if(merged.begin(), merged.end(), [&](const Merged& m) { return same_kind(m.row, row); });
      if (at == merged.end()) {
        merged.push_back({row, std::vector<const CollectiveCount*>(reporting.size(), nullptr)});
        at = std::prev(merged.end());
      }
      at->by_rank[i] = &row;
    }
  }
  std::vector<CollectiveCount> rows;
  for (Merged& entry : merged) {
    const bool agree = std::all_of(entry.by_rank.begin(), entry.by_rank.end(), [&](const CollectiveCount* row) {
      return row != nullptr && row->count == entry.row.count && row->bytes == entry.row.bytes;
    });
    entry.row.stage = stage;
    if (agree) {
      rows.push_back(entry.row);
      continue;
    }
    for (std::size_t i = 0; i < reporting.size(); ++i) {
      if (entry.by_rank[i] == nullptr) continue;
      rows.push_back(*entry.by_rank[i]);
      rows.back().rank = reporting[i]->rank;
      rows.back().stage = stage;
    }
  }
  return rows;
}

namespace {

PlanVerdict merge_reasons(const std::vector<StageOutcomes>& stages) {
  PlanVerdict merged{false, std::string(nothing_to_plan)};
  for (const StageOutcomes& stage : stages) {
    const bool plans_nothing = std::any_of(stage.ranks.begin(), stage.ranks.end(), [](const RankOutcome& outcome) {
      return outcome.plan_verdict.reason == nothing_to_plan;
    });
    if (plans_nothing) continue;
    for (const RankOutcome& outcome : stage.ranks) {
      merged = outcome.plan_verdict;
      if (merged.is_judged) continue;
      // A rank that ended early reports no reason.
      if (merged.reason.empty()) merged.reason = str("ended early: rank ", outcome.rank);
      if (!stage.stage.empty()) merged.reason += str(" (stage ", stage.stage, ")");
      return merged;
    }
  }
  return merged;
}

}  // namespace

PlanVerdict merge_plan_verdicts(const std::vector<StageOutcomes>& stages) {
  PlanVerdict merged = merge_reasons(stages);
  merged.left_out.clear();
  for (const StageOutcomes& stage : stages)
    for (const RankOutcome& outcome : stage.ranks)
      for (const std::string& text : outcome.plan_verdict.left_out)
        if (std::find(merged.left_out.begin(), merged.left_out.end(), text) == merged.left_out.end())
          merged.left_out.push_back(text);
  return merged;
}

PlanningCost merge_planning(const std::vector<StageOutcomes>& stages) {
  PlanningCost merged;
  for (const StageOutcomes& stage : stages)
    for (const RankOutcome& outcome : stage.ranks) merged.add(outcome.planning);
  return merged;
}

MemoryPeaks merge_memory(const std::vector<RankOutcome>& ranks) {
  MemoryPeaks peaks;
  for (const RankOutcome& outcome : ranks) {
    for (const auto& [purpose, bytes] : outcome.memory) {
      std::int64_t& largest = peaks[purpose];
      largest = std::max(largest, bytes);
    }
  }
  return peaks;
}

}  // namespace lockstep::verdict
