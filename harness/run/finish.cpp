// The end of a case on a rank: what waited is judged, what the engine watched is read, what was seen is summed up.
#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include "engine/device/order.hpp"
#include "harness/run/interpreter.hpp"

namespace lockstep::run {

namespace {

bool any_across(const scenario::Steps& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const scenario::Step& step) {
    if (step.verb == scenario::Verb::expect_across) return true;
    if (any_across(step.steps) || any_across(step.otherwise)) return true;
    if (step.routine && any_across(step.routine->steps)) return true;
    return std::any_of(step.among.begin(), step.among.end(),
                       [](const scenario::Branch& branch) { return any_across(branch.steps); });
  });
}

}  // namespace

bool Interpreter::case_has_checks_across() const { return any_across(scenario().stages.at(stage_).steps); }

void Interpreter::finish() {
  const Fail fail_check = [this](const Site& site, std::string message) { fail(site, std::move(message)); };
  try {
    device::synchronize_all();
  } catch (const std::exception& error) {
    if (!announced_) fail_from(error);
  }
  judge_transport();
  checks_.judge(outcome_.evidence, fail_check);
  if (case_has_checks_across()) {
    if (announced_) {
      // This rank's own failure says more than that its values could not be compared.
      if (outcome_.status == verdict::RankStatus::exited) checks_.fail_across("this rank ended early", fail_check);
    } else {
      try {
        checks_.judge_across(session_.rank, session_.world_size, outcome_.evidence, fail_check);
      } catch (const CollectiveError& error) {
        const std::string why = error.what();
        checks_.fail_across(why,
                            [this](const Site& site, std::string message) { fail(site, std::move(message), true); });
      }
    }
  }
  judge_order();
  judge_plan();
  summarise();
  write_trace_bits();
  write_timeline();
}

void Interpreter::judge_order() {
  if (!spec_.order_check) return;
  for (const device::OrderViolation& violation : device::order_violations()) {
    Site site;
    site.check = "order";
    site.file = scenario().file;
    site.line = violation.scenario_line;
    site.scenario_line = violation.scenario_line;
    site.iteration = violation.iteration;
    site.time_ns = violation.time_ns;
    fail(site, violation.message);
  }
}

void Interpreter::judge_transport() {
  // What failed on purpose was logged when it was issued and moved nothing, or a part.
  if (announced_ || !outcome_.failures.empty() || outcome_.evidence.errors_expected > 0) return;
  std::int64_t logged = 0;
  for (const comm::LogEntry& entry : comm::log()) logged += entry.bytes;
  const std::int64_t moved = comm::transport_bytes();
  if (logged == moved) return;
  Site site = current_;
  site.check = "witness";
  fail(site, str("the log holds collectives of ", logged, " bytes on this rank, but the transport moved ", moved));
}

// The second witness of the parallel layer: what its collectives must have been, and in which order.
void Interpreter::judge_plan() {
  PlanJudgement judgement;
  judgement.not_judged = why_not_planned(spec_, stage_);
  if (judgement.not_judged.empty() && announced_) judgement.not_judged = str("ended early: rank ", session_.rank);
  if (judgement.not_judged.empty())
    judgement = check_plan(spec_, session_.rank, session_.world_size, stage_, comm::log(), raising_);
  outcome_.plan_verdict = {judgement.not_judged.empty(), judgement.not_judged};
  if (session_.rank == 0) outcome_.plan = std::move(judgement.rows);
  outcome_.evidence.planned_in_order += judgement.num_in_order;
  const auto fail_at = [this](const char* check, int line, std::string message) {
    Site site = current_;
    site.check = check;
    site.file = scenario().file;
    site.line = site.scenario_line = line;
    site.column = 0;
    site.note.clear();
    // After all that the case's own checks found.
    site.time_ns =
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    fail(site, std::move(message));
  };
  const std::vector<PlanMismatch>& mismatches = judgement.mismatches;
  constexpr std::size_t most_told = 4;
  std::string message;
  for (std::size_t i = 0; i < std::min(most_told, mismatches.size()); ++i)
    message += str(i ? "; " : "", mismatches[i].message);
  if (mismatches.size() > most_told) message += str("; and ", mismatches.size() - most_told, " more");
  if (!message.empty()) fail_at("plan", mismatches.front().line, std::move(message));
  if (judgement.first_apart) fail_at("plan_order", judgement.first_apart->line, judgement.first_apart->message);
}

void Interpreter::write_trace_bits() const {
  if (!trace_bits_) return;
  const scenario::Stage& stage = scenario().stages.at(stage_);
  trace_bits_->write(str(spec_.trace_bits, ".stage-", stage_, ".rank-", session_.rank, ".jsonl"),
                     {scenario().name, test_case().id, stage.name, session_.rank, session_.world_size});
}

void Interpreter::write_timeline() const {
  if (!timeline_) return;
  const scenario::Stage& stage = scenario().stages.at(stage_);
  timeline_->write(str(spec_.timeline, ".stage-", stage_, ".rank-", session_.rank, ".jsonl"),
                   {scenario().name, test_case().id, stage.name, session_.rank, session_.world_size});
}

void Interpreter::summarise() {
  using Row = std::tuple<comm::Family, comm::Operation, std::string, int, comm::Phase>;
  std::map<Row, std::size_t> rows;
  for (const comm::LogEntry& entry : comm::log()) {
    if (entry.family == comm::Family::uncounted) continue;
    const Row row{entry.family, entry.operation, entry.axis, entry.group_size, entry.phase};
    const auto [at, added] = rows.emplace(row, outcome_.collectives.size());
    if (added) {
      verdict::CollectiveCount count;
      count.family = name_of(entry.family);
      count.operation = name_of(entry.operation);
      count.axis = entry.axis;
      count.group_size = entry.group_size;
      count.phase = name_of(entry.phase);
      outcome_.collectives.push_back(std::move(count));
    }
    verdict::CollectiveCount& count = outcome_.collectives[at->second];
    count.count += 1;
    count.bytes += entry.bytes;
  }
  const device::MemoryStats stats = device::memory_stats();
  for (int i = 0; i < device::num_purposes; ++i)
    outcome_.memory[std::string(name_of(static_cast<device::Purpose>(i)))] = stats.peak[static_cast<std::size_t>(i)];
  outcome_.memory["peak_total"] = stats.peak_total;
}

}  // namespace lockstep::run
