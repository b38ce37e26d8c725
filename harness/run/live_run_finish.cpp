// The end of a case on a rank: judges deferred checks, order, transport and plan, and summarises the observations.
#include <algorithm>
#include <ctime>
#include <map>
#include <tuple>

#include "engine/device/order.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/step_blocks.hpp"

namespace lockstep::run {

double thread_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void LiveRun::finish() {
  const Fail fail_check = [this](const Site& site, std::string message) { fail(site, std::move(message)); };
  try {
    device::synchronize_all();
  } catch (const std::exception& error) {
    if (!announced_) fail_from(error);
  }
  judge_transport();
  checks_.judge(outcome_.evidence, fail_check);
  launch_checks_.judge(outcome_.evidence, fail_check);
  judge_across(fail_check);
  judge_order();
  judge_plan();
  summarise();
  write_trace_bits();
  write_timeline();
}

void LiveRun::judge_across(const Fail& fail_check) {
  const auto is_across = [](const scenario::Step& step) { return step.verb == scenario::Verb::expect_across; };
  if (!any_step(interpreter_.stage().steps, is_across)) return;
  if (announced_) {
    // The failure of a rank that failed says more than that its values could not be compared.
    if (outcome_.status == verdict::RankStatus::exited) checks_.fail_across("this rank ended early", fail_check);
    return;
  }
  const Session& session = interpreter_.session();
  try {
    checks_.judge_across(session.rank, session.world_size, outcome_.evidence, fail_check);
  } catch (const CollectiveError& error) {
    const std::string why = error.what();
    checks_.fail_across(why, [this](const Site& site, std::string message) { fail(site, std::move(message), true); });
  }
}

void LiveRun::judge_order() {
  if (!spec_.order_check) return;
  for (const device::OrderViolation& violation : device::order_violations()) {
    Site site;
    site.check = "order";
    site.file = interpreter_.scenario().file;
    site.line = violation.scenario_line;
    site.scenario_line = violation.scenario_line;
    site.iteration = violation.iteration;
    site.time_ns = violation.time_ns;
    fail(site, violation.message);
  }
}

void LiveRun::judge_transport() {
  // A collective that fails is logged when it is issued, but moves none or only some of its bytes.
  if (announced_ || !outcome_.failures.empty() || outcome_.evidence.errors_expected > 0) return;
  std::int64_t logged = 0;
  for (const comm::LogEntry& entry : comm::log()) logged += entry.bytes;
  const std::int64_t moved = comm::transport_bytes();
  if (logged == moved) return;
  Site site = interpreter_.current_site();
  site.check = "witness";
  fail(site, str("the log holds collectives of ", logged, " bytes on this rank, but the transport moved ", moved));
}

// Compares the collectives of the parallel layer, and their order, with the plan.
void LiveRun::judge_plan() {
  const double start = thread_cpu_seconds();
  judge_planned_collectives();
  outcome_.planning.seconds += thread_cpu_seconds() - start;
}

void LiveRun::judge_planned_collectives() {
  const Session& session = interpreter_.session();
  const std::size_t stage = interpreter_.stage_index();
  PlanJudgement judgement;
  judgement.not_judged = why_not_planned(spec_, stage);
  if (judgement.not_judged.empty() && announced_) judgement.not_judged = str("ended early: rank ", session.rank);
  if (judgement.not_judged.empty())
    judgement = check_plan(spec_, session.rank, session.world_size, stage, comm::log(), expected_to_fail_,
                           {control_.value(), scaled_steps_});
  else
    judgement.left_out = left_out_of_plan(comm::log(), expected_to_fail_);
  outcome_.planning.num_dry_runs += judgement.num_dry_runs;
  outcome_.plan_verdict = {judgement.not_judged.empty(), judgement.not_judged, judgement.left_out};
  if (session.rank == 0) outcome_.plan = std::move(judgement.rows);
  outcome_.evidence.planned_in_order += judgement.num_in_order;
  const auto fail_at = [this](const char* check, int line, std::string message) {
    Site site = interpreter_.current_site();
    site.check = check;
    site.file = interpreter_.scenario().file;
    site.line = site.scenario_line = line;
    site.column = 0;
    site.note.clear();
    // The failure sorts after those of the case's own checks.
    site.time_ns = now_ns();
    fail(site, std::move(message));
  };
  const std::vector<PlanMismatch>& mismatches = judgement.mismatches;
  constexpr std::size_t most_shown = 4;
  std::string message;
  for (std::size_t i = 0; i < std::min(most_shown, mismatches.size()); ++i)
    message += str(i ? "; " : "", mismatches[i].message);
  if (mismatches.size() > most_shown) message += str("; and ", mismatches.size() - most_shown, " more");
  if (!message.empty()) fail_at("plan", mismatches.front().line, std::move(message));
  if (judgement.first_order_difference)
    fail_at("plan_order", judgement.first_order_difference->line, judgement.first_order_difference->message);
}

void LiveRun::write_trace_bits() const {
  if (!trace_bits_) return;
  const Session& session = interpreter_.session();
  trace_bits_->write(recording_path(spec_.trace_bits, interpreter_.stage_index(), session.rank),
                     {interpreter_.scenario().name, interpreter_.test_case().id, interpreter_.stage().name,
                      session.rank, session.world_size});
}

void LiveRun::write_timeline() const {
  if (!timeline_) return;
  const Session& session = interpreter_.session();
  timeline_->write(recording_path(spec_.timeline, interpreter_.stage_index(), session.rank),
                   {interpreter_.scenario().name, interpreter_.test_case().id, interpreter_.stage().name, session.rank,
                    session.world_size});
}

void LiveRun::summarise() {
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
