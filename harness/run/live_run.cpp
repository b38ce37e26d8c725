#include "harness/run/live_run.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <new>
#include <string_view>

#include "engine/comm/recorder.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/order.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/parallel/replicate.hpp"
#include "engine/state/save.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run {

namespace {

bool is_check(scenario::Verb verb) { return scenario::spec_of(verb).group == scenario::Group::checks; }

// Clears the failures that an expected error left on the streams, so that no later step raises them again. A failed
// collective counts as left by it; its handle and its group still raise. Any other failure stays for a later step.
void clear_expected_failures(const Error& expected) {
  try {
    device::synchronize_all();
  } catch (const CollectiveError&) {
    device::clear_failures();
  } catch (const Error& pending) {
    // A function that waited for the stream has put its name in front.
    if (std::string_view(expected.what()).ends_with(pending.what())) device::clear_failures();
  }
}

}  // namespace

LiveRun::LiveRun(const CaseSpec& spec, int rank, std::size_t stage) : spec_(spec), interpreter_(spec, stage, *this) {
  outcome_.rank = rank;
}

// ---- the case ----
verdict::RankOutcome LiveRun::run() {
  RankBudget budget(spec_.limits);
  budget_ = &budget;
  if (!spec_.trace_bits.empty()) trace_bits_ = std::make_unique<TraceBits>();
  if (!spec_.timeline.empty()) timeline_ = std::make_unique<Timeline>();
  run_steps_and_finish();
  if (!outcome_.failures.empty() && outcome_.status == verdict::RankStatus::finished)
    outcome_.status = verdict::RankStatus::failed;
  const Site& last = interpreter_.current_site();
  outcome_.last_step = {last.check, last.file, last.line, last.column};
  if (outcome_.status != verdict::RankStatus::unsupported) outcome_.end_time_ns = now_ns();
  outcome_.planning.rank_seconds = thread_cpu_seconds();
  return std::move(outcome_);
}

void LiveRun::run_steps_and_finish() {
  run_steps_to_end();
  try {
    finish();
  } catch (const ResourceError& error) {
    outcome_.status = verdict::RankStatus::never_started;
    outcome_.detail = error.what();
  } catch (const std::exception& error) {
    fail_from(error);
  }
  try {
    if (!announced_) comm::announce_end(false, "");
  } catch (const std::exception& error) {
    fail_from(error);
  }
}

void LiveRun::run_steps_to_end() {
  try {
    interpreter_.run();
    if (kill_) kill_->wait();
    state::finish_saves();
    return;
  } catch (const EarlyExit&) {
    outcome_.status = verdict::RankStatus::exited;
    outcome_.end_expected = true;
    try {
      device::synchronize_all();  // launches that are queued still run
    } catch (const std::exception& error) {
      fail_from(error);
    }
  } catch (const UnsupportedError& error) {
    outcome_.status = verdict::RankStatus::unsupported;
    outcome_.detail = error.what();
    outcome_.end_time_ns = now_ns();  // checks that are judged later come after it
  } catch (const ResourceError& error) {
    outcome_.status = verdict::RankStatus::never_started;
    outcome_.detail = error.what();
  } catch (const UnboundName& error) {
    outcome_.status = verdict::RankStatus::invalid;
    outcome_.detail = error.what();
  } catch (const std::exception& error) {
    fail_from(error);
  }
  // Peers that wait for this rank learn at once that it has ended.
  const bool failed = outcome_.status != verdict::RankStatus::exited;
  try {
    comm::announce_end(failed, outcome_.failures.empty() ? outcome_.detail : outcome_.failures.back().message);
  } catch (const std::exception&) {
    // Without a communicator no peer waits.
  }
  announced_ = true;
}

void LiveRun::prepare(Session&) {
  kernels::initialize();
  device::set_order_check(spec_.order_check);
  comm::set_deadline(spec_.collective_deadline_seconds);
  if (spec_.test_case->sum_order == scenario::SumOrder::library)
    comm::set_sum_order(comm::SumOrder::library, device::device_from_name(spec_.test_case->device));
}

// ---- steps ----
void LiveRun::enter(const scenario::Step& step, const Site& site) {
  comm::record_location(site.check, site.file, site.line, site.column);
  comm::set_call_site_name(step.call_site_name);
}

void LiveRun::resume(const scenario::Step& step) { comm::set_call_site_name(step.call_site_name); }

Value LiveRun::perform(StepCall& call) {
  const scenario::Step& step = call.step;
  if (is_check(step.verb)) {
    const std::string id = call.scope.frame->use_path + to_text(step.place);
    if (reached_checks_.insert(id).second) outcome_.checks_reached.push_back(id);
  }
  if (does_work(step)) ++num_working_steps_;
  const Timeline::Span span = timeline_ ? timeline_->step(step) : Timeline::Span();
  call.live_run = this;
  control_.enter(step);
  Value result = run_verb(call);
  if (trace_bits_) trace_bits_->after_step(step.verb, step.as, result);
  if (timeline_) timeline_->after_step(step, call.scope, result);
  return result;
}

void LiveRun::perform_expecting_error(StepCall& call) {
  const std::size_t first_issued = comm::log().size(), num_scaled_steps = scaled_steps_.size();
  const Interpreter::Position position = interpreter_.position();
  const std::string pattern = evaluate(*call.step.raises->message, call.scope).as_text("the message of `raises`");
  const std::int64_t start = now_ns();
  std::string message;
  double milliseconds = 0.0;
  try {
    interpreter_.perform(call);
    // A failure on a stream is raised here at the latest.
    device::synchronize_all();
  } catch (const UnboundName&) {
    throw;
  } catch (const UnsupportedError&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const Error& error) {
    message = error.what();
    milliseconds = static_cast<double>(now_ns() - start) * 1e-6;
    clear_expected_failures(error);
  }
  interpreter_.resume(position);
  expected_to_fail_.emplace_back(first_issued, comm::log().size());
  scaled_steps_.resize(num_scaled_steps);
  judge_raised(position.site, call, message, pattern, milliseconds);
}

void LiveRun::judge_raised(const Site& site, const StepCall& call, const std::string& message,
                           const std::string& pattern, double milliseconds) {
  if (message.empty()) return fail(site, str("no error was raised, but one was expected: ", pattern));
  if (!verdict::message_matches(message, pattern))
    return fail(site, str("raised `", message, "`, which does not contain the expected text: ", pattern));
  if (call.step.raises->within_ms) {
    const double limit = evaluate(*call.step.raises->within_ms, call.scope).as_number("within_ms");
    if (!(limit > 0) || !std::isfinite(limit))
      return fail(site, str("within_ms is ", limit, "; it must be above 0 and finite"));
    if (milliseconds > limit)
      return fail(site, str("raised `", message, "` after ", static_cast<std::int64_t>(milliseconds),
                            " ms, not within ", limit, " ms"));
  }
  outcome_.evidence.errors_expected += 1;
}

std::optional<Value> LiveRun::routine_argument(const scenario::Expr& expr, const Scope& scope) {
  return evaluate(expr, scope);
}

// ---- the outcome ----
void LiveRun::fail_from(const std::exception& error) {
  Site site = interpreter_.current_site();
  site.time_ns = now_ns();
  const bool no_memory = budget_ && dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  fail(site, no_memory ? budget_->out_of_memory() : text_of(error),
       dynamic_cast<const comm::PeerEndedError*>(&error) != nullptr);
}

void LiveRun::fail(const Site& site, std::string message, bool secondary) {
  // Without these limits a check that fails in a long loop would hide the first failures.
  constexpr std::size_t most_failures = 50;
  constexpr std::size_t most_characters = 16384;
  if (outcome_.failures.size() >= most_failures) {
    // A check that is judged at the end may have come before some of the kept ones.
    const auto latest =
        std::max_element(outcome_.failures.begin(), outcome_.failures.end(),
                         [](const verdict::Failure& a, const verdict::Failure& b) { return a.time_ns < b.time_ns; });
    if (latest->time_ns <= site.time_ns) return;
    outcome_.failures.erase(latest);
  }
  if (message.size() > most_characters) {
    const std::size_t left_out = message.size() - most_characters;
    message.resize(most_characters);
    message += str("... (", left_out, " characters more)");
  }
  verdict::Failure failure;
  failure.check = site.check;
  failure.file = site.file;
  failure.line = site.line;
  failure.column = site.column;
  failure.iteration = site.iteration;
  const std::string note = site.note.empty() ? "" : str(" [", site.note, "]");
  failure.message = std::move(message) + note;
  failure.note_size = note.size();
  failure.time_ns = site.time_ns;
  failure.secondary = secondary;
  if (site.file != spec_.scenario->file) failure.scenario_line = site.scenario_line;
  outcome_.failures.push_back(std::move(failure));
}

void LiveRun::record(const std::string& name, verdict::JsonText json) {
  budget().record(name, json.size());
  for (auto& [recorded, text] : outcome_.records)
    if (recorded == name) {
      text = std::move(json);
      return;
    }
  outcome_.records.emplace_back(name, std::move(json));
}

void LiveRun::note_last_backward(const nn::ModulePtr& module, bool is_last) {
  if (trace_bits_) trace_bits_->note_last_backward(module, is_last);
}

void LiveRun::note_scaled_step(bool done) {
  control_.scaled_step(done);
  scaled_steps_.push_back(done);
}

void LiveRun::add_before_all_reduce(const nn::ModulePtr& module, std::function<void()> hook) {
  std::shared_ptr<std::vector<std::function<void()>>>& hooks = before_all_reduce_[module.get()];
  if (hooks) {
    hooks->push_back(std::move(hook));
    return;
  }
  // The engine takes one function per module. It calls this list, which later hooks join.
  auto list = std::make_shared<std::vector<std::function<void()>>>();
  list->push_back(std::move(hook));
  parallel::set_before_all_reduce(module, [list] {
    const std::vector<std::function<void()>> hooks_so_far = *list;  // a hook may add one
    for (const std::function<void()>& each : hooks_so_far) each();
  });
  hooks = std::move(list);
}

void LiveRun::conclude_before_kill() {
  try {
    // The checks so far wait for no other stream: a collective that is under way there ends in the middle.
    device::current_stream(interpreter_.session().device).synchronize();
    write_trace_bits();
    write_timeline();
    const Fail fail_check = [this](const Site& site, std::string message) { fail(site, std::move(message)); };
    checks_.judge(outcome_.evidence, fail_check);
    launch_checks_.judge(outcome_.evidence, fail_check);
  } catch (const std::exception& error) {
    fail_from(error);
  }
  const Site& last = interpreter_.current_site();
  outcome_.last_step = {last.check, last.file, last.line, last.column};
  outcome_.end_time_ns = now_ns();
}

void LiveRun::end_by_kill() {
  conclude_before_kill();
  launch::exit_rank_by_kill(std::move(outcome_));
}

void LiveRun::end_later_by_kill(double after_ms, bool expected) {
  if (kill_) throw Error("this rank is to be killed already", "keep one `exit` with `after_ms`");
  if (!expected) {
    kill_.emplace(after_ms, [] { launch::end_rank_by_signal(); });
    return;
  }
  conclude_before_kill();
  kill_.emplace(after_ms, [so_far = outcome_] { launch::exit_rank_by_kill(so_far); });
}

}  // namespace lockstep::run
