#include "harness/run/interpreter.hpp"

#include <chrono>
#include <exception>
#include <optional>
#include <string_view>

#include "engine/autograd/autograd.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/trace/stand_in.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/run/values/paths.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run {

using scenario::Step;
using scenario::Steps;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Interpreter::Interpreter(const CaseSpec& spec, std::size_t stage, StepRunner& runner)
    : spec_(spec), stage_(stage), runner_(runner), context_(RankContext::current()) {}

Interpreter::~Interpreter() {
  // Hooks and frames hold each other through the modules between them.
  if (file_frame_) file_frame_->names.clear();
  for (const FramePtr& frame : hook_frames_) frame->names.clear();
}

void Interpreter::run() {
  const NoGrad no_grad;
  set_up();
  run_steps(stage().steps, Scope{file_frame_});
}

void Interpreter::set_up() {
  runner_.prepare(session_);
  session_.rank = context_.rank();
  session_.world_size = context_.world_size();
  session_.device = device_named(session_, test_case().device);
  session_.all_ranks = std::make_shared<const DeviceMesh>(DeviceMesh::world());
  session_.all_ranks->prepare(session_.device);
  Names& names = session_.variables;
  names["rank"] = Value(session_.rank);
  names["world_size"] = Value(session_.world_size);
  names["device"] = Value(test_case().device);
  names["device_index"] = Value(real_device_of(session_.device).index);
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

// ---- steps ----
void Interpreter::run_steps(const Steps& steps, const Scope& scope) {
  for (const Step& step : steps) run_step(step, scope);
}

void Interpreter::run_step(const Step& step, const Scope& scope) {
  enter(step, scope);
  try {
    if (step.when && !evaluate_condition(*step.when, scope)) return;
    StepCall call{*this, step, scope};
    if (step.raises && (!step.raises->when || evaluate_condition(*step.raises->when, scope)))
      runner_.perform_expecting_error(call);
    else
      perform(call);
  } catch (const Error& error) {
    if (!runner_.tolerates(step, scope, error)) throw;
  }
}

void Interpreter::enter(const Step& step, const Scope& scope) {
  step_ = &step;
  site_ = site_of(step, scope);
  context_.place = str(step.place.file, ":", step.place.line);
  context_.scenario_line = site_.scenario_line;
  runner_.enter(step, site_);
}

void Interpreter::perform(StepCall& call) {
  Value result = runner_.perform(call);
  if (!call.step.as.empty()) call.scope.frame->bind(call.step.as, std::move(result));
}

void Interpreter::run_iteration(const Steps& steps, const Scope& scope, std::int64_t iteration) {
  const int outer = context_.iteration;
  context_.iteration = static_cast<int>(iteration);
  runner_.begin_iteration();
  run_steps(steps, scope);
  context_.iteration = outer;
}

// If a step of the hook throws, the position stays at that step, which the failure then names.
void Interpreter::run_hook(const Steps& steps, const Scope& scope) {
  const Position interrupted = position();
  const NoGrad no_grad;
  run_steps(steps, scope);
  resume(interrupted);
}

// ---- positions ----
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

Interpreter::Position Interpreter::position() const {
  return {step_, site_, context_.place, context_.scenario_line, context_.iteration};
}

void Interpreter::resume(const Position& position) {
  step_ = position.step;
  site_ = position.site;
  context_.place = position.place;
  context_.scenario_line = position.scenario_line;
  context_.iteration = position.iteration;
  if (step_) runner_.resume(*step_);
}

// ---- routines ----
namespace {

// Whether a value has the type that a routine declares for a parameter.
bool has_type(const Value& value, const std::string& type) {
  using Kind = Value::Kind;
  if (type == "any") return true;
  if (type == "integer") return value.is(Kind::integer);
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is(Kind::boolean);
  if (type == "text") return value.is(Kind::text);
  if (type == "tensor") return value.is_tensor() || (value.is(Kind::handle) && value.get_if<Handle>()->result);
  if (type == "model") return value.is(Kind::module);
  if (type == "modules") return value.is(Kind::module) || value.is(Kind::list);
  if (type == "optimizer") return value.is(Kind::optimizer);
  if (type == "mesh") return value.is(Kind::mesh);
  if (type == "list") return value.is(Kind::list);
  if (type == "map") return value.is(Kind::map);
  throw InternalError(str("unknown type of a routine's parameter: ", type));
}

}  // namespace

void Interpreter::call_routine(const Step& step, const Scope& scope) {
  const scenario::Routine& routine = *step.routine;
  auto frame = std::make_shared<Frame>();
  frame->session = &session_;
  frame->models = &routine.models;
  frame->routine = &routine;
  frame->file = routine.file;
  frame->use_path = str(scope.frame->use_path, to_text(step.place), ">");
  frame->scenario_line = site_.scenario_line;
  frame->caller = scope.frame;
  for (const scenario::RoutineParameter& parameter : routine.parameters) {
    const scenario::Expr* given = nullptr;
    for (const scenario::NamedExpr& entry : step.entries)
      if (entry.name == parameter.name) given = entry.value.get();
    if (!given && !parameter.default_value)
      throw Error(str("the routine ", routine.name, " needs `", parameter.name, "`"));
    const TrivialReadings readings;
    std::optional<Value> value = given ? runner_.routine_argument(*given, scope)
                                       : std::optional(evaluate(*parameter.default_value, Scope{frame}));
    if (!value) continue;
    // A routine may pass on an argument that it did not get: none fits every type if it is the default.
    const scenario::Expr* preset = parameter.default_value.get();
    const bool may_be_absent = preset && preset->kind == scenario::ExprKind::literal && preset->value.is_none();
    const bool is_absent = may_be_absent && value->is_none();
    if (given && !is_absent && parameter.type == "modules") value = modules_at(*value, scope);
    if (!is_absent && !has_type(*value, parameter.type))
      throw Error(str("`", parameter.name, "` of the routine ", routine.name, " is of type ", parameter.type, ", not ",
                      describe(*value)));
    frame->bind(parameter.name, std::move(*value), readings.any());
  }
  // The names that a hook of the caller knows are not known in the routine.
  run_steps(routine.steps, Scope{frame});
  for (const auto& [inner, outer] : step.as_names) {
    const auto at = frame->names.find(inner);
    if (at != frame->names.end()) {
      scope.frame->bind(outer, at->second, frame->from_trivial_reading.contains(inner));
      continue;
    }
    if (!runner_.allows_unbound_results())
      throw UnboundName(
          str("the routine ", routine.name, " gives `", inner, "`, but the step that binds it did not run"));
    scope.frame->names.erase(outer);
  }
}

}  // namespace lockstep::run
