#include "harness/report/compare_runs.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/core/error.hpp"
#include "harness/report/compare_times.hpp"
#include "harness/report/console.hpp"
#include "harness/report/run_sides.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {

namespace {

using verdict::CaseResult;
using verdict::Evidence;
using verdict::Status;

std::string arrow(std::int64_t before, std::int64_t after) { return str(before, " -> ", after); }

void compare_verdicts(ChangeList& out, const CaseResult& before, const CaseResult& after) {
  if (before.status == after.status) return;
  std::string text = str(verdict::name_of(before.status), " -> ", verdict::name_of(after.status));
  if (after.failure) {
    const std::string place = place_text(*after.failure);
    const std::string& message = after.failure->message;
    text += str(": ", place, place.empty() ? "" : ": ", message.substr(0, message.find('\n')));
  } else if (!after.reason.empty()) {
    text += ": " + after.reason;
  }
  const int step = badness(after.status) - badness(before.status);
  const bool is_better = step < 0 && after.status != Status::MISSING;
  out.add(step > 0 ? Weight::worse : is_better ? Weight::better : Weight::other, "verdict", text);
}

void compare_evidence(ChangeList& out, const Evidence& before, const Evidence& after) {
  if (before.conditions_apart != after.conditions_apart)
    return compare_evidence(out, before.with_conditions_among_comparisons(), after.with_conditions_among_comparisons());
  const auto amount = [&](const char* name, std::int64_t Evidence::*field) {
    if (before.*field == after.*field) return;
    out.growth("evidence", str(name, " ", arrow(before.*field, after.*field)), after.*field < before.*field);
  };
  amount("comparisons", &Evidence::comparisons);
  amount("conditions", &Evidence::conditions);
  amount("elements compared", &Evidence::elements);
  amount("collectives checked", &Evidence::collectives_checked);
  amount("orders checked", &Evidence::orders_checked);
  amount("expected errors", &Evidence::errors_expected);
  amount("collectives in the planned order", &Evidence::planned_in_order);
  const auto differing = [](const Evidence& e) { return e.comparisons - e.same_bits; };
  if (differing(before) != differing(after)) {
    const bool more = differing(after) > differing(before);
    const bool vanished =
        !more && after.comparisons <
                     before.comparisons;  // fewer comparisons are worse already, and their bits did not get better
    const std::string text = str("comparisons whose bits differ ", arrow(differing(before), differing(after)), " (of ",
                                 after.comparisons, ", largest difference ", after.max_abs_difference, ")");
    out.add(more ? Weight::worse : vanished ? Weight::other : Weight::better, "bits", text);
  }
  if (before.bits_required != after.bits_required) {
    out.growth("bits", "comparisons that require the same bits " + arrow(before.bits_required, after.bits_required),
               after.bits_required < before.bits_required);
  }
  const auto tolerance = [&](const char* name, double old_value, double new_value) {
    if (old_value == new_value) return;
    out.growth("tolerance", str("loosest ", name, " ", old_value, " -> ", new_value), new_value > old_value);
  };
  tolerance("rtol", before.loosest.rtol, after.loosest.rtol);
  tolerance("atol", before.loosest.atol, after.loosest.atol);
  tolerance("of_largest", before.loosest.of_largest, after.loosest.of_largest);
}

// Count and bytes of one kind of collective on one rank.
struct Traffic {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};
using Kind = std::tuple<std::string, std::string, std::string, std::string, std::string, int>;

std::map<Kind, std::vector<Traffic>> traffic_of(const CaseResult& row, int num_ranks) {
  std::map<Kind, std::vector<Traffic>> traffic;
  for (const auto& c : row.collectives) {
    auto& ranks = traffic[{c.stage, c.family, c.operation, c.phase, c.axis, c.group_size}];
    ranks.resize(static_cast<std::size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (c.rank >= 0 && c.rank != rank) continue;
      ranks[static_cast<std::size_t>(rank)].count += c.count;
      ranks[static_cast<std::size_t>(rank)].bytes += c.bytes;
    }
  }
  return traffic;
}

// 1 where all ranks have the same collectives. Otherwise a rank without a row issues none of that kind.
int ranks_of(const CaseResult& row) {
  constexpr int most = 1 << 20;
  int num_ranks = 1;
  for (const auto& c : row.collectives) {
    if (c.rank < 0) continue;
    num_ranks = std::max(num_ranks, std::min(c.rank, most) + 1);
    // A stage may have fewer ranks than the case.
    if (c.stage.empty()) num_ranks = std::max(num_ranks, std::min(row.world_size, most));
  }
  return num_ranks;
}

void compare_collectives(ChangeList& out, const CaseResult& before, const CaseResult& after) {
  const int num_ranks = std::max(ranks_of(before), ranks_of(after));
  auto old_traffic = traffic_of(before, num_ranks);
  auto new_traffic = traffic_of(after, num_ranks);
  std::set<Kind> kinds;
  for (const auto& entry : old_traffic) kinds.insert(entry.first);
  for (const auto& entry : new_traffic) kinds.insert(entry.first);
  for (const Kind& kind : kinds) {
    auto& old_ranks = old_traffic[kind];
    auto& new_ranks = new_traffic[kind];
    old_ranks.resize(static_cast<std::size_t>(num_ranks));
    new_ranks.resize(static_cast<std::size_t>(num_ranks));
    if (old_ranks == new_ranks) continue;
    // The text describes the first rank that differs. More on any rank is worse, and so is a kind that no rank issues.
    const auto first = std::mismatch(old_ranks.begin(), old_ranks.end(), new_ranks.begin());
    bool more = false, gone = true;
    for (std::size_t rank = 0; rank < old_ranks.size(); ++rank) {
      more = more || new_ranks[rank].count > old_ranks[rank].count || new_ranks[rank].bytes > old_ranks[rank].bytes;
      gone = gone && new_ranks[rank].count == 0;
    }
    const auto& [stage, family, operation, phase, axis, group_size] = kind;
    std::string text = str(family, "/", operation, " in ", phase, ", group of ", group_size);
    if (!axis.empty()) text += str(" along ", axis);
    if (!stage.empty()) text += str(", stage ", stage);
    if (num_ranks > 1) text += str(", rank ", static_cast<std::int64_t>(first.first - old_ranks.begin()));
    if (first.first->count != first.second->count) text += ": count " + arrow(first.first->count, first.second->count);
    if (first.first->bytes != first.second->bytes) {
      text += str(first.first->count != first.second->count ? ", bytes " : ": bytes ",
                  arrow(first.first->bytes, first.second->bytes));
    }
    if (gone) text += "; the new run issues none of this kind";
    out.growth("collectives", text, more || gone);
  }
}

using PlanKind = std::tuple<std::string, std::string, std::string, std::string, std::string, int>;

// The observed collectives of a kind beyond the planned ones.
struct Surplus {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const Surplus&, const Surplus&) = default;
};

std::map<PlanKind, Surplus> surplus_of(const CaseResult& row) {
  std::map<PlanKind, Surplus> surplus;
  for (const verdict::PlanRow& one : row.plan)
    surplus[{one.stage, one.family, one.operation, one.phase, one.axis, one.group_size}] = {
        one.observed - one.planned, one.observed_bytes - one.planned_bytes};
  return surplus;
}

// A plan that is not judged any more says nothing about the collectives, and neither does one without rows of them.
void compare_plans(ChangeList& out, const CaseResult& before, const CaseResult& after) {
  if (!before.plan_verdict || !after.plan_verdict) return;
  const verdict::PlanVerdict &old_plan = *before.plan_verdict, &new_plan = *after.plan_verdict;
  if (old_plan.is_judged != new_plan.is_judged)
    out.growth("plan", new_plan.is_judged ? std::string("is judged now") : "is not judged now: " + new_plan.reason,
               old_plan.is_judged);
  if (old_plan.left_out.size() != new_plan.left_out.size())
    out.growth("plan",
               str("collectives that it leaves out ", old_plan.left_out.size(), " -> ", new_plan.left_out.size()),
               new_plan.left_out.size() > old_plan.left_out.size());
  const auto new_surplus = surplus_of(after);
  for (const auto& [kind, surplus] : surplus_of(before)) {
    const auto& [stage, family, operation, phase, axis, group_size] = kind;
    const std::string name = str(family, "/", operation, " in ", phase, ", group of ", group_size);
    const auto found = new_surplus.find(kind);
    if (found == new_surplus.end())
      out.growth("plan", name + " is not planned now", true);
    else if (found->second != surplus)
      out.growth("plan",
                 str(name, ": observed beyond the plan ", arrow(surplus.count, found->second.count), ", bytes ",
                     arrow(surplus.bytes, found->second.bytes)),
                 true);
  }
}

void compare_memory(ChangeList& out, const CaseResult& before, const CaseResult& after, double ratio) {
  const auto old_peak = before.memory.find("peak_total");
  const auto new_peak = after.memory.find("peak_total");
  if (old_peak == before.memory.end() || new_peak == after.memory.end()) return;
  const auto old_bytes = static_cast<double>(old_peak->second);
  const auto new_bytes = static_cast<double>(new_peak->second);
  if (std::max(old_bytes, new_bytes) <= ratio * std::min(old_bytes, new_bytes)) return;
  out.add(Weight::other, "memory", str("peak ", bytes_text(old_bytes), " -> ", bytes_text(new_bytes)));
}

void compare_case(ChangeList& out, const CaseResult& before, const CaseResult& after,
                  const CompareRunsOptions& options) {
  compare_verdicts(out, before, after);
  // The evidence of a case that failed or did not run means nothing beyond its verdict.
  if (before.status != after.status || !was_executed(before.status) || before.status == Status::FAIL) return;
  compare_evidence(out, before.evidence, after.evidence);
  compare_collectives(out, before, after);
  compare_plans(out, before, after);
  compare_memory(out, before, after, options.memory_ratio);
}

// Compares the repetitions beside the compared row: the first that is worse than all old ones with its verdict counts.
// Its changes that the compared row has, too, are not listed again.
void compare_repetitions(ChangeList& out, const SideEntry& before, const SideEntry& after,
                         const CompareRunsOptions& options) {
  if (before.row->status != after.row->status) return;
  const auto is_worse = [](const Change& change) { return change.weight == Weight::worse; };
  const auto changes_between = [&](const CaseResult& old_row, const CaseResult& new_row) {
    RunComparison comparison;
    ChangeList list(comparison);
    compare_case(list, old_row, new_row, options);
    return std::move(comparison.changes);
  };
  std::vector<const CaseResult*> old_rows = before.rows;
  for (const CaseResult* row : after.rows) {
    if (row == after.row || row->status != after.row->status) continue;
    std::vector<Change> changes;  // from the compared old row
    bool worse_than_all = true;
    for (const CaseResult*& old_row : old_rows) {
      if (old_row->status != row->status) continue;
      std::vector<Change> from_this = changes_between(*old_row, *row);
      worse_than_all = std::any_of(from_this.begin(), from_this.end(), is_worse);
      if (!worse_than_all) {
        std::swap(old_row, old_rows.front());  // the next repetition often equals it, too
        break;
      }
      if (old_row == before.row) changes = std::move(from_this);
    }
    if (!worse_than_all) continue;
    const std::vector<Change> listed = changes_between(*before.row, *after.row);
    for (const Change& change : changes) {
      const auto is_same = [&](const Change& one) { return one.what == change.what && one.text == change.text; };
      if (is_worse(change) && std::none_of(listed.begin(), listed.end(), is_same))
        out.add(change.weight, change.what, change.text + ", in a repetition");
    }
    return;
  }
}

}  // namespace

std::string_view name_of(Weight weight) {
  switch (weight) {
    case Weight::worse:
      return "worse";
    case Weight::better:
      return "better";
    case Weight::other:
      break;
  }
  return "other";
}

RunComparison compare_runs(const ResultsFile& before, const ResultsFile& after, const CompareRunsOptions& options) {
  RunComparison result;
  result.old_path = before.path;
  result.new_path = after.path;
  for (const ResultsFile* file : {&before, &after}) {
    result.warnings.insert(result.warnings.end(), file->warnings.begin(), file->warnings.end());
  }
  const Side old_side(before);
  const Side new_side(after);
  ChangeList out(result);
  for (const CaseKey& key : old_side.order) {
    const CaseResult& old_row = *old_side.entries.at(key).row;
    out.at(key);
    const auto found = new_side.entries.find(key);
    if (found == new_side.entries.end()) {
      out.add(Weight::worse, "gone", str("was ", verdict::name_of(old_row.status), ", is not in the new file"));
      continue;
    }
    ++result.num_compared;
    compare_case(out, old_row, *found->second.row, options);
    compare_repetitions(out, old_side.entries.at(key), found->second, options);
  }
  for (const CaseKey& key : new_side.order) {
    if (old_side.entries.contains(key)) continue;
    const Status status = new_side.entries.at(key).row->status;
    out.at(key);
    out.add(verdict::is_unexpected(status) ? Weight::worse : Weight::other, "new",
            std::string(verdict::name_of(status)));
  }
  if (same_machine(result, before.run, after.run)) compare_times(out, old_side, new_side, options);
  std::stable_sort(result.changes.begin(), result.changes.end(),
                   [](const Change& a, const Change& b) { return a.weight < b.weight; });
  std::set<CaseKey> changed;
  for (const Change& change : result.changes) {
    if (change.weight == Weight::worse) ++result.num_worse;
    if (!change.scenario.empty() && change.what != "gone" && change.what != "new") {
      changed.insert({change.scenario, change.case_id});
    }
  }
  result.num_changed = static_cast<int>(changed.size());
  return result;
}

std::string to_text(const RunComparison& comparison) {
  std::string text;
  for (const std::string& warning : comparison.warnings) text += str("note: ", printable(warning), "\n");
  for (const Change& change : comparison.changes) {
    text += fmt::format("{:<7} {:<12}", name_of(change.weight), change.what);
    if (!change.scenario.empty()) text += printable_line(str(change.scenario, " [", change.case_id, "]: "));
    text += printable_line(change.text) + "\n";
  }
  std::map<Weight, int> counts;
  for (const Change& change : comparison.changes) ++counts[change.weight];
  text += str(plural(comparison.num_compared, "case"), " in both, ", comparison.num_changed, " changed; ",
              plural(counts[Weight::worse], "change"), " for the worse, ", counts[Weight::better], " for the better, ",
              counts[Weight::other], " other\n");
  return text;
}

std::string to_json(const RunComparison& comparison) {
  const auto list = [](const auto& items, const auto& render) {
    std::string text;
    for (const auto& item : items) text += str(text.empty() ? "" : ",", render(item));
    return str("[", text, "]");
  };
  const auto change_json = [](const Change& change) {
    return str("{\"weight\":", json_text(name_of(change.weight)), ",\"what\":", json_text(change.what),
               ",\"scenario\":", json_text(change.scenario), ",\"case\":", json_text(change.case_id),
               ",\"text\":", json_text(change.text), "}");
  };
  return str("{\"kind\":\"comparison\",\"old\":", json_text(comparison.old_path),
             ",\"new\":", json_text(comparison.new_path), ",\"compared\":", comparison.num_compared,
             ",\"changed\":", comparison.num_changed, ",\"worse\":", comparison.num_worse,
             ",\"changes\":", list(comparison.changes, change_json),
             ",\"warnings\":", list(comparison.warnings, json_text), ",\"exit_code\":", comparison.exit_code(), "}");
}

int compare_command(const std::string& old_path, const std::string& new_path, const CompareCommandOptions& options) {
  const ResultsFile before = read_results(old_path), after = read_results(new_path);
  const char* const remedy = "compare with a complete run, or give --allow-cut";
  // The cases that a file of an interrupted run lacks would count as new ones.
  if (!before.summary && !options.allow_cut)
    throw Error(str(old_path, " has no summary: its run was cut short after ", before.cases.size(), " cases"), remedy);
  const auto num_missing = std::count_if(before.cases.begin(), before.cases.end(),
                                         [](const CaseResult& row) { return row.status == Status::MISSING; });
  if (num_missing > 0 && !options.allow_cut)
    throw Error(
        str(old_path, ": the run was cut short; ", num_missing, " of ", before.cases.size(), " cases are MISSING"),
        remedy);
  if (before.cases.empty()) throw Error(str(old_path, " has no case to compare with"), "compare with a complete run");
  CompareRunsOptions how;
  how.time_gates = options.time_gates;
  const RunComparison comparison = compare_runs(before, after, how);
  const std::string text = options.json ? to_json(comparison) + "\n" : to_text(comparison);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return comparison.exit_code();
}

}  // namespace lockstep::report
