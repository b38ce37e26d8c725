#include "harness/run/interpreter.hpp"

#include <chrono>
#include <cmath>
#include <exception>
#include <new>
#include <string_view>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/order.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/parallel/replicate.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/trace/plan_trace.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/run/verbs/verbs.hpp"
#include "harness/scenario/evaluation.hpp"

namespace lockstep::run {

using scenario::Step;
using scenario::Steps;

namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_check(scenario::Verb verb) { return scenario::spec_of(verb).group == scenario::Group::checks; }

// An error that was expected has been told: what it left on the streams must not come up again at a later step. A
// failed collective counts as left by it (its handle and its group go on to raise). Any other failure stays for the
// step that meets it.
void forget_on_streams(const Error& told) {
  try {
    device::synchronize_all();
  } catch (const CollectiveError&) {
    device::clear_failures();
  } catch (const Error& left) {
    if (std::string_view(left.what()) == told.what()) device::clear_failures();
  }
}

// Puts a step's place back when a hook has run; what a hook threw stays at the hook's own step.
class PlaceKeeper {
 public:
  PlaceKeeper(RankContext& context, Site& current, bool traced)
      : context_(context),
        current_(current),
        place_(context.place),
        line_(context.scenario_line),
        site_(current),
        traced_(traced) {
    if (!traced) meeting_place_ = comm::meeting_place();
  }
  ~PlaceKeeper() {
    if (std::uncaught_exceptions() > exceptions_) return;
    context_.place = place_;
    if (!traced_) comm::set_meeting_place(meeting_place_);
    context_.scenario_line = line_;
    current_ = site_;
  }
  PlaceKeeper(const PlaceKeeper&) = delete;
  PlaceKeeper& operator=(const PlaceKeeper&) = delete;

 private:
  RankContext& context_;
  Site& current_;
  std::string place_;
  std::string meeting_place_;
  int line_;
  Site site_;
  bool traced_;  // a dry run, which has no communicator
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

Interpreter::Interpreter(const CaseSpec& spec, int rank, std::size_t stage, PlanTrace* trace)
    : spec_(spec), stage_(stage), context_(RankContext::current()), trace_(trace) {
  outcome_.rank = rank;
}

Interpreter::~Interpreter() {
  // Hooks and frames hold each other through the modules between them.
  if (file_frame_) file_frame_->names.clear();
  for (const FramePtr& frame : held_) frame->names.clear();
}

void Interpreter::set_up() {
  if (!trace_) kernels::initialize();
  session_.rank = context_.rank();
  session_.world_size = context_.world_size();
  session_.is_dry_run = trace_ != nullptr;
  session_.device = device_named(session_, test_case().device);
  if (!trace_) {
    device::set_order_check(spec_.order_check);
    comm::set_deadline(spec_.collective_deadline_seconds);
  }
  session_.all_ranks = std::make_shared<const DeviceMesh>(DeviceMesh::world());
  Names& names = session_.variables;
  names["rank"] = Value(session_.rank);
  names["world_size"] = Value(session_.world_size);
  names["device"] = Value(test_case().device);
  names["device_index"] = Value(stood_for(session_.device).index);
  names["launch"] = Value(scenario::name_of(test_case().launch));
  names["all_ranks"] = Value(session_.all_ranks);
  for (std::string_view type : scenario::type_names()) names[std::string(type)] = Value(dtype_from_name(type));
  for (const auto& [name, literal] : test_case().parameters) session_.parameters[name] = from_literal(literal);
  for (const auto& [name, literal] : test_case().params) session_.parameters[name] = from_literal(literal);
  file_frame_ = std::make_shared<Frame>();
  file_frame_->session = &session_;
  file_frame_->models = &scenario().models;
  file_frame_->file = scenario().file;
}

verdict::RankOutcome Interpreter::run() {
  const std::int64_t start = now_ns();
  RankBudget budget(spec_.limits);
  budget_ = &budget;
  if (!trace_ && !spec_.trace_bits.empty()) trace_bits_ = std::make_unique<TraceBits>();
  if (!trace_ && !spec_.timeline.empty()) timeline_ = std::make_unique<Timeline>();
  run_guarded();
  outcome_.seconds = static_cast<double>(now_ns() - start) * 1e-9;
  if (!outcome_.failures.empty() && outcome_.status == verdict::RankStatus::finished)
    outcome_.status = verdict::RankStatus::failed;
  outcome_.last_step = {current_.check, current_.file, current_.line, current_.column};
  outcome_.end_time_ns = now_ns();
  return std::move(outcome_);
}

void Interpreter::trace_steps() {
  const NoGrad no_grad;
  set_up();
  run_steps(scenario().stages.at(stage_).steps, Scope{file_frame_});
}

void Interpreter::run_guarded() {
  bool ended = false;
  try {
    const NoGrad no_grad;
    set_up();
    run_steps(scenario().stages.at(stage_).steps, Scope{file_frame_});
    ended = true;
  } catch (const EarlyExit&) {
    outcome_.status = verdict::RankStatus::exited;
    outcome_.end_expected = true;
    try {
      device::synchronize_all();  // what was called before is carried out
    } catch (const std::exception& error) {
      fail_from(error);
    }
  } catch (const UnsupportedError& error) {
    outcome_.status = verdict::RankStatus::unsupported;
    outcome_.detail = error.what();
  } catch (const ResourceError& error) {
    outcome_.status = verdict::RankStatus::never_started;
    outcome_.detail = error.what();
  } catch (const UnboundName& error) {
    outcome_.status = verdict::RankStatus::invalid;
    outcome_.detail = error.what();
  } catch (const std::exception& error) {
    fail_from(error);
  }
  if (!ended) {
    // Peers that wait for this rank learn at once that it has gone.
    const bool failed = outcome_.status != verdict::RankStatus::exited;
    try {
      comm::announce_end(failed, outcome_.failures.empty() ? outcome_.detail : outcome_.failures.back().message);
    } catch (const std::exception&) {
      // Without a communicator there is nobody to tell.
    }
    announced_ = true;
  }
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

void Interpreter::fail_from(const std::exception& error) {
  Site site = current_;
  site.time_ns = now_ns();
  const bool no_memory = budget_ && dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  fail(site, no_memory ? budget_->out_of_memory() : error.what(),
       dynamic_cast<const comm::PeerEndedError*>(&error) != nullptr);
}

void Interpreter::fail(const Site& site, std::string message, bool secondary) {
  // A failing check in a long loop would drown what came first.
  constexpr std::size_t most_failures = 50;
  constexpr std::size_t most_characters = 16384;
  if (outcome_.failures.size() >= most_failures) return;
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
  failure.rank = session_.rank;
  failure.iteration = site.iteration;
  failure.message = site.note.empty() ? std::move(message) : str(message, " [", site.note, "]");
  failure.time_ns = site.time_ns;
  failure.secondary = secondary;
  failure.scenario_line = site.scenario_line;
  outcome_.failures.push_back(std::move(failure));
}

Site Interpreter::site_of(const Step& step, const Scope& scope) const {
  Site site;
  site.check = scenario::name_of(step.verb);
  site.file = step.place.file;
  site.line = step.place.line;
  site.column = step.place.column;
  site.scenario_line = scope.frame->routine ? scope.frame->scenario_line : step.place.line;
  site.iteration = context_.iteration;
  site.time_ns = now_ns();
  site.note = step.note;
  return site;
}

void Interpreter::enter(const Step& step, const Scope& scope) {
  current_ = site_of(step, scope);
  context_.place = str(step.place.file, ":", step.place.line);
  context_.scenario_line = current_.scenario_line;
  if (trace_) {
    scenario::Budget::ask_time();
    scenario::note_line(current_.scenario_line, current_.line == current_.scenario_line ? current_.column : 1);
    return;
  }
  comm::note_place(current_.check, current_.file, current_.line, current_.column);
  comm::set_meeting_place(step.meeting_place);
}

void Interpreter::run_steps(const Steps& steps, const Scope& scope) {
  for (const Step& step : steps) run_step(step, scope);
}

void Interpreter::run_step(const Step& step, const Scope& scope) {
  enter(step, scope);
  if (trace_) return trace_step(step, scope);
  if (step.when && !evaluate_condition(*step.when, scope)) return;
  if (step.raises && (!step.raises->when || evaluate_condition(*step.raises->when, scope)))
    perform_expecting_error(step, scope);
  else
    perform(step, scope);
}

// What a step that must fail issues until it does is in neither side, but it may leave groups gathered.
void Interpreter::trace_step(const Step& step, const Scope& scope) {
  try {
    if (step.when && !evaluate_condition(*step.when, scope)) return;
    if (step.raises && (!step.raises->when || evaluate_condition(*step.raises->when, scope)))
      trace_->attempt(step, scope, [&] { perform(step, scope); });
    else
      perform(step, scope);
  } catch (const Error& error) {
    if (!trace_->forgives(step, scope, error)) throw;
  }
}

void Interpreter::perform(const Step& step, const Scope& scope) {
  if (is_check(step.verb)) {
    const std::string id = scope.frame->way + to_text(step.place);
    if (reached_.insert(id).second) outcome_.checks_reached.push_back(id);
  }
  if (does_work(step)) ++num_working_steps_;
  StepCall call{*this, step, scope};
  const Timeline::Span span = timeline_ ? timeline_->step(step) : Timeline::Span();
  Value result = trace_ ? trace_->perform(call) : run_verb(call);
  if (trace_bits_) trace_bits_->after_step(step.verb, step.as, result);
  if (timeline_) timeline_->after_step(step, scope, result);
  if (!step.as.empty()) scope.frame->bind(step.as, std::move(result));
}

void Interpreter::perform_expecting_error(const Step& step, const Scope& scope) {
  const std::size_t first_issued = comm::log().size();
  const Site site = current_;
  const std::string pattern = evaluate(*step.raises->message, scope).as_text("the message of `raises`");
  const std::int64_t start = now_ns();
  const int iteration = context_.iteration;
  std::string message;
  double milliseconds = 0.0;
  try {
    perform(step, scope);
    // What went wrong on a stream shows at the latest here.
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
    forget_on_streams(error);
  }
  context_.iteration = iteration;
  current_ = site;
  raising_.emplace_back(first_issued, comm::log().size());
  if (message.empty()) return fail(site, str("no error came, though one was expected: ", pattern));
  if (!verdict::message_matches(message, pattern))
    return fail(site, str("raised `", message, "`, which does not contain what was expected: ", pattern));
  if (step.raises->within_ms) {
    const double limit = evaluate(*step.raises->within_ms, scope).as_number("within_ms");
    if (!(limit > 0) || !std::isfinite(limit))
      return fail(site, str("within_ms is ", limit, "; it must be above 0 and finite"));
    if (milliseconds > limit)
      return fail(site, str("raised `", message, "` after ", static_cast<std::int64_t>(milliseconds),
                            " ms, not within ", limit, " ms"));
  }
  outcome_.evidence.errors_expected += 1;
}

void Interpreter::run_iteration(const Steps& steps, const Scope& scope, std::int64_t iteration) {
  const int outer = context_.iteration;
  context_.iteration = static_cast<int>(iteration);
  if (trace_) trace_->next_turn();
  run_steps(steps, scope);
  context_.iteration = outer;
}

void Interpreter::run_hook(const Steps& steps, const Scope& scope) {
  const PlaceKeeper keeper(context_, current_, trace_ != nullptr);
  const int iteration = context_.iteration;
  const NoGrad no_grad;
  run_steps(steps, scope);
  context_.iteration = iteration;
}

void Interpreter::add_before_all_reduce(const nn::ModulePtr& module, std::function<void()> hook) {
  std::shared_ptr<std::vector<std::function<void()>>>& hooks = before_all_reduce_[module.get()];
  if (hooks) {
    hooks->push_back(std::move(hook));
    return;
  }
  // The engine takes one function a module; later hooks join it.
  auto list = std::make_shared<std::vector<std::function<void()>>>();
  list->push_back(std::move(hook));
  parallel::set_before_all_reduce(module, [list] {
    for (const std::function<void()>& own : *list) own();
  });
  hooks = std::move(list);
}

void Interpreter::end_by_kill() {
  try {
    device::synchronize_all();
    write_trace_bits();
    write_timeline();
    checks_.judge(outcome_.evidence, [this](const Site& site, std::string message) { fail(site, std::move(message)); });
  } catch (const std::exception& error) {
    fail_from(error);
  }
  outcome_.last_step = {current_.check, current_.file, current_.line, current_.column};
  outcome_.end_time_ns = now_ns();
  launch::exit_rank_by_kill(std::move(outcome_));
}

void Interpreter::record(const std::string& name, verdict::JsonText json) {
  if (budget_) budget_->record(name, json.size());
  for (auto& [own, text] : outcome_.records)
    if (own == name) {
      text = std::move(json);
      return;
    }
  outcome_.records.emplace_back(name, std::move(json));
}

}  // namespace lockstep::run
