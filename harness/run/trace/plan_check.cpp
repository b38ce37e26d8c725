#include "harness/run/trace/plan_check.hpp"

#include <algorithm>

#include "harness/plan/collectives.hpp"
#include "harness/run/trace/plan_case.hpp"

namespace lockstep::run {

namespace {

constexpr std::string_view no_plan_of_tensor_parallel = "unplanned: no plan is made of tensor_parallel";

// The families that the parallel APIs issue without a step of the scenario.
bool is_planned(comm::Family family) {
  return family == comm::Family::data_parallel || family == comm::Family::start_up;
}

std::vector<plan::Collective> observed_in(const std::vector<comm::LogEntry>& log, const LogRanges& left_out) {
  std::vector<plan::Collective> observed;
  for (std::size_t i = 0; i < log.size(); ++i) {
    const comm::LogEntry& entry = log[i];
    const bool is_left_out = std::any_of(left_out.begin(), left_out.end(),
                                         [i](const auto& range) { return range.first <= i && i < range.second; });
    if (is_left_out || !is_planned(entry.family)) continue;
    plan::Collective one;
    one.family = name_of(entry.family);
    one.operation = name_of(entry.operation);
    one.axis = entry.axis;
    one.group_size = entry.group_size;
    one.phase = name_of(entry.phase);
    one.owner = entry.owner;
    one.line = entry.scenario_line;
    one.bytes = entry.bytes;
    observed.push_back(std::move(one));
  }
  return observed;
}

// The rows of `plan` in the results. Their kinds are those of `collectives` in the results.
std::vector<verdict::PlanRow> side_by_side(const std::vector<plan::Collective>& planned,
                                           const std::vector<plan::Collective>& observed) {
  constexpr plan::TallyKeys coarse{.lines = false, .owners = false};
  std::vector<verdict::PlanRow> rows;
  std::vector<plan::Row> kinds = plan::tally(planned, coarse);
  for (const plan::Row& kind : kinds) {
    verdict::PlanRow& row = rows.emplace_back();
    row.family = kind.family;
    row.operation = kind.operation;
    row.axis = kind.axis;
    row.group_size = kind.group_size;
    row.phase = kind.phase;
    row.planned = kind.count;
    row.planned_bytes = kind.bytes;
    row.bytes_are_least = kind.bytes_are_least;
  }
  for (const plan::Row& seen : plan::tally(observed, coarse)) {
    std::size_t at = 0;
    while (at < kinds.size() && !kinds[at].same_kind(seen)) ++at;
    if (at == kinds.size()) {
      kinds.push_back(seen);
      verdict::PlanRow& row = rows.emplace_back();
      row.family = seen.family;
      row.operation = seen.operation;
      row.axis = seen.axis;
      row.group_size = seen.group_size;
      row.phase = seen.phase;
    }
    rows[at].observed = seen.count;
    rows[at].observed_bytes = seen.bytes;
  }
  return rows;
}

}  // namespace

std::string why_not_planned(const CaseSpec& spec, std::size_t stage) {
  if (applies_tensor_parallel(spec.scenario->stages.at(stage).steps)) return std::string(no_plan_of_tensor_parallel);
  if (!has_plan(spec.scenario->stages.at(stage).steps)) return std::string(verdict::nothing_to_plan);
  if (!spec.scenario->unplanned_reason.empty()) return str("unplanned: ", spec.scenario->unplanned_reason);
  return {};
}

PlanJudgement check_plan(const CaseSpec& spec, int rank, int world_size, std::size_t stage,
                         const std::vector<comm::LogEntry>& log, const LogRanges& left_out) {
  PlanJudgement judgement;
  judgement.not_judged = why_not_planned(spec, stage);
  if (!judgement.not_judged.empty()) return judgement;
  const PlanOutcome outcome = plan_case(spec, rank, world_size, stage);
  if (!outcome.unforeseen.empty()) {
    judgement.not_judged = str("cannot be foretold: ", outcome.unforeseen);
    judgement.mismatches.push_back(
        {str("the collectives cannot be foretold: ", outcome.unforeseen,
             "; give the reason as `plan: {unplanned: reason}`, or remove the dependence on values from the steps"),
         0});
    return judgement;
  }
  const std::vector<plan::Collective> observed = observed_in(log, left_out);
  judgement.rows = side_by_side(outcome.planned, observed);
  for (const plan::Difference& found : plan::differences(plan::tally(outcome.planned), plan::tally(observed)))
    judgement.mismatches.push_back({found.text, found.line});
  if (const auto found = plan::first_order_difference(outcome.planned, observed))
    judgement.first_order_difference = PlanMismatch{found->text, found->line};
  else
    judgement.num_in_order = static_cast<std::int64_t>(observed.size());
  return judgement;
}

std::string explain_plan(const CaseSpec& spec) {
  const scenario::Scenario& scenario = *spec.scenario;
  std::string text;
  for (std::size_t stage = 0; stage < scenario.stages.size(); ++stage) {
    if (applies_tensor_parallel(scenario.stages[stage].steps)) {
      text += str("  ", no_plan_of_tensor_parallel, "\n");
      continue;
    }
    if (!has_plan(scenario.stages[stage].steps)) continue;
    if (!scenario.stages[stage].name.empty()) text += str("  stage ", scenario.stages[stage].name, "\n");
    if (!scenario.unplanned_reason.empty()) {
      text += str("  not foretold: ", scenario.unplanned_reason, "\n");
      continue;
    }
    const auto& launches = spec.test_case->stages;
    const int world_size = stage < launches.size() ? launches[stage].world_size : spec.test_case->world_size;
    const PlanOutcome outcome = plan_case(spec, 0, world_size, stage);
    text += plan::table(outcome.planned);
    if (const std::string order = plan::sequence(outcome.planned); !order.empty())
      text += str("  in this order (last turn):\n", order);
    if (!outcome.unforeseen.empty()) text += str("  and what cannot be foretold: ", outcome.unforeseen, "\n");
  }
  return text;
}

}  // namespace lockstep::run
