#include "harness/run/trace/plan_check.hpp"

#include <algorithm>
#include <map>
#include <string_view>

#include "harness/plan/collectives.hpp"
#include "harness/run/trace/plan_board.hpp"
#include "harness/run/trace/plan_bytes.hpp"
#include "harness/run/trace/plan_case.hpp"
#include "harness/run/trace/plan_conditions.hpp"

namespace lockstep::run {

namespace {

constexpr std::string_view tensor_parallel = "tensor_parallel";

// The families that follow from the steps without a collective of their own.
bool is_planned(comm::Family family) {
  return family == comm::Family::data_parallel || family == comm::Family::start_up ||
         family == comm::Family::tensor_parallel;
}

bool is_within(const LogRanges& ranges, std::size_t position) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [position](const auto& range) { return range.first <= position && position < range.second; });
}

std::vector<plan::Collective> observed_in(const std::vector<comm::LogEntry>& log, const LogRanges& left_out) {
  std::vector<plan::Collective> observed;
  for (std::size_t i = 0; i < log.size(); ++i) {
    const comm::LogEntry& entry = log[i];
    if (is_within(left_out, i) || !is_planned(entry.family)) continue;
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

std::size_t num_observed_in(const std::vector<comm::LogEntry>& log, const LogRanges& left_out) {
  std::size_t num = 0;
  for (std::size_t i = 0; i < log.size(); ++i) num += !is_within(left_out, i) && is_planned(log[i].family) ? 1 : 0;
  return num;
}

// Whether the observed collectives are those of a posted plan, in its order and with its bytes.
bool agrees(std::string_view posted, const std::vector<comm::LogEntry>& log, const LogRanges& left_out) {
  std::size_t next = 0;
  const auto skip = [&] {
    while (next < log.size() && (is_within(left_out, next) || !is_planned(log[next].family))) ++next;
  };
  const bool all_match = visit_plan(posted, [&](const CollectiveView& one) {
    skip();
    if (next == log.size()) return false;
    const comm::LogEntry& entry = log[next++];
    return one.operation == name_of(entry.operation) && one.owner == entry.owner && one.line == entry.scenario_line &&
           one.family == name_of(entry.family) && one.axis == entry.axis && one.group_size == entry.group_size &&
           one.phase == name_of(entry.phase) &&
           (one.bytes_are_least ? entry.bytes >= one.bytes : entry.bytes == one.bytes);
  });
  skip();
  return all_match && next == log.size();
}

std::size_t erase_tensor_parallel(std::vector<plan::Collective>& collectives) {
  return std::erase_if(collectives, [](const plan::Collective& one) { return one.family == tensor_parallel; });
}

// "1 collective", "3 other collectives".
std::string counted(std::size_t count, const char* kind = "") {
  return str(count, " ", kind, count == 1 ? "collective" : "collectives");
}

// The collectives that no plan contains: those of steps that must fail, and those of families that are not planned.
std::vector<std::string> never_planned(const std::vector<comm::LogEntry>& log, const LogRanges& left_out) {
  std::map<std::string, std::size_t> counts;
  for (std::size_t i = 0; i < log.size(); ++i) {
    if (is_within(left_out, i))
      counts["steps that must fail"] += 1;
    else if (!is_planned(log[i].family))
      counts[std::string(name_of(log[i].family))] += 1;
  }
  std::vector<std::string> texts;
  texts.reserve(counts.size());
  for (const auto& [kind, count] : counts)
    texts.push_back(
        kind == "steps that must fail"
            ? str(kind, ": ", counted(count), count == 1 ? " of them is in no plan" : " of them are in no plan")
            : str(kind, ": ", counted(count), count == 1 ? " that a step asks for" : " that steps ask for"));
  return texts;
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
  if (!has_plan(spec.scenario->stages.at(stage).steps)) return std::string(verdict::nothing_to_plan);
  if (!spec.scenario->unplanned_reason.empty()) return str("unplanned: ", spec.scenario->unplanned_reason);
  return {};
}

namespace {

PlanJudgement judge_by(const PlanOutcome& outcome, int rank, const std::vector<comm::LogEntry>& log,
                       const LogRanges& left_out) {
  PlanJudgement judgement;
  if (!outcome.unforeseen.empty()) {
    judgement.not_judged = str("cannot be foretold: ", outcome.unforeseen);
    judgement.mismatches.push_back(
        {str("the collectives cannot be foretold: ", outcome.unforeseen,
             "; give the reason as `plan: {unplanned: reason}`, or remove the dependence on values from the steps"),
         0});
    return judgement;
  }
  std::vector<plan::Collective> planned = outcome.planned, observed = observed_in(log, left_out);
  judgement.left_out = never_planned(log, left_out);
  if (!outcome.left_out.empty()) {
    erase_tensor_parallel(planned);
    const std::size_t count = erase_tensor_parallel(observed);
    for (const std::string& reason : outcome.left_out)
      judgement.left_out.push_back(str(tensor_parallel, ": ", counted(count), ": ", reason));
  }
  if (rank == 0) judgement.rows = side_by_side(planned, observed);
  // Equal sequences have equal counts and bytes.
  if (const auto found = plan::first_order_difference(planned, observed)) {
    for (const plan::Difference& kind : plan::differences(plan::tally(planned), plan::tally(observed)))
      judgement.mismatches.push_back({kind.text, kind.line});
    // A call that depends on an unknown value is in no plan.
    if (!judgement.mismatches.empty() && !outcome.unknown.empty())
      judgement.mismatches.front().message +=
          str(listed_unknown(outcome.unknown),
              "; if such a value decides which modules are called, give the reason as `plan: {unplanned: reason}`");
    judgement.first_order_difference = PlanMismatch{found->text, found->line};
  } else {
    judgement.num_in_order = static_cast<std::int64_t>(observed.size());
  }
  return judgement;
}

}  // namespace

PlanJudgement check_plan(const CaseSpec& spec, int rank, int world_size, std::size_t stage,
                         const std::vector<comm::LogEntry>& log, const LogRanges& left_out, const PathOfRank& path) {
  if (std::string reason = why_not_planned(spec, stage); !reason.empty()) {
    PlanJudgement judgement;
    judgement.not_judged = std::move(reason);
    return judgement;
  }
  PlanOutcome outcome;
  const std::uint64_t digest = digest_of_plan(spec, path.digest, stage, world_size);
  const auto confirm = [&](const PlanBoard::Posted& posted) {
    if (!meets(spec, posted.conditions) || !agrees(posted.planned, log, left_out)) return false;
    if (rank == 0) outcome.planned = plan_from_bytes(posted.planned).value();
    return true;
  };
  const auto make = [&] { return plan_case(spec, rank, world_size, stage, {.scaled_steps = path.scaled_steps}); };
  if (auto own = make_unless_confirmed(spec.plans.get(), digest, make, confirm)) {
    PlanJudgement judgement = judge_by(*own, rank, log, left_out);
    judgement.num_dry_runs = 1;
    return judgement;
  }
  if (rank == 0) return judge_by(outcome, rank, log, left_out);  // for the rows
  PlanJudgement confirmed;
  confirmed.left_out = never_planned(log, left_out);
  confirmed.num_in_order = static_cast<std::int64_t>(num_observed_in(log, left_out));
  return confirmed;
}

std::vector<std::string> left_out_of_plan(const std::vector<comm::LogEntry>& log, const LogRanges& left_out) {
  std::vector<std::string> texts = never_planned(log, left_out);
  const std::size_t count = observed_in(log, left_out).size();
  if (count > 0) texts.push_back(str(counted(count, "other "), ": the plan was not judged"));
  return texts;
}

std::string explain_plan(const CaseSpec& spec) {
  const scenario::Scenario& scenario = *spec.scenario;
  std::string text;
  for (std::size_t stage = 0; stage < scenario.stages.size(); ++stage) {
    if (!has_plan(scenario.stages[stage].steps)) continue;
    if (!scenario.stages[stage].name.empty()) text += str("  stage ", scenario.stages[stage].name, "\n");
    if (!scenario.unplanned_reason.empty()) {
      text += str("  not foretold: ", scenario.unplanned_reason, "\n");
      continue;
    }
    const auto& launches = spec.test_case->stages;
    const int world_size = stage < launches.size() ? launches[stage].world_size : spec.test_case->world_size;
    const PlanOutcome outcome = plan_case(spec, 0, world_size, stage, {.layouts = true});
    text += plan::table(outcome.planned);
    if (const std::string order = plan::sequence(outcome.planned); !order.empty())
      text += str("  in this order (last turn):\n", order);
    if (!outcome.layouts.empty()) text += str("  parameters of rank 0 after the last step:\n", outcome.layouts);
    for (const std::string& reason : outcome.left_out) text += str("  tensor_parallel is incomplete: ", reason, "\n");
    if (!outcome.unforeseen.empty()) text += str("  and what cannot be foretold: ", outcome.unforeseen, "\n");
  }
  return text;
}

}  // namespace lockstep::run
