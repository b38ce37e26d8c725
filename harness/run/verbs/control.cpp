// repeat, for_each, if, choose, use; and the faults delay and exit.
#include <chrono>
#include <thread>

#include "harness/run/observe/observation.hpp"
#include "harness/run/trace/plan_trace.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run {

namespace {

// Whether an argument is of the type that a routine names for it.
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

void Interpreter::call_routine(const scenario::Step& step, const Scope& scope) {
  const scenario::Routine& routine = *step.routine;
  auto frame = std::make_shared<Frame>();
  frame->session = &session_;
  frame->models = &routine.models;
  frame->routine = &routine;
  frame->file = routine.file;
  frame->way = str(scope.frame->way, to_text(step.place), ">");
  frame->scenario_line = current_.scenario_line;
  for (const scenario::RoutineParameter& parameter : routine.parameters) {
    const scenario::Expr* given = nullptr;
    for (const scenario::NamedExpr& entry : step.entries)
      if (entry.name == parameter.name) given = entry.value.get();
    if (!given && !parameter.default_value)
      throw Error(str("the routine ", routine.name, " needs `", parameter.name, "`"));
    if (trace_ && given && !trace_->knows(*given, scope)) continue;  // what needs it stays unknown too
    const EmptyReadings readings;
    Value value = given ? evaluate(*given, scope) : evaluate(*parameter.default_value, Scope{frame});
    if (!has_type(value, parameter.type))
      throw Error(str("`", parameter.name, "` of the routine ", routine.name, " is of type ", parameter.type, ", not ",
                      describe(value)));
    frame->bind(parameter.name, std::move(value), readings.any());
  }
  // What a hook of the caller knows is not known in the routine.
  run_steps(routine.steps, Scope{frame});
  const auto given_back = [&](const std::string& name) -> const Value& {
    const auto at = frame->names.find(name);
    if (at == frame->names.end())
      throw UnboundName(
          str("the routine ", routine.name, " gives `", name, "`, but the step that binds it did not run"));
    return at->second;
  };
  for (const auto& [its, mine] : step.as_names) {
    if (trace_ && !frame->names.contains(its))
      scope.frame->names.erase(mine);
    else
      scope.frame->bind(mine, given_back(its), frame->from_empty.contains(its));
  }
}

namespace verbs {

Value repeat(StepCall& call) {
  const std::int64_t times = call.integer("times");
  const std::string index = call.has("index") ? call.text("index") : "";
  for (std::int64_t i = 0; i < times; ++i) {
    if (!index.empty()) call.scope.frame->bind(index, Value(i));
    call.in.run_iteration(call.step.steps, call.scope, i);
  }
  return Value();
}

Value for_each(StepCall& call) {
  const std::vector<std::string> names = call.words("name");
  const EmptyReadings readings;
  const Value in = call.value("in");
  const bool from_empty = readings.any();
  const List& items = in.as_list("what for_each runs over");
  if (items.empty()) throw Error("the list that for_each runs over is empty", "guard it with `when`");
  const std::string index = call.has("index") ? call.text("index") : "";
  Frame& scope = *call.scope.frame;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (names.size() == 1) {
      scope.bind(names[0], items[i], from_empty);
    } else {
      const List& parts = items[i].as_list("an item that several names take apart");
      if (parts.size() != names.size())
        throw Error(str("item ", i, " holds ", parts.size(), " values for ", names.size(), " names"));
      for (std::size_t k = 0; k < names.size(); ++k) scope.bind(names[k], parts[k], from_empty);
    }
    if (!index.empty()) scope.bind(index, Value(static_cast<std::int64_t>(i)));
    call.in.run_iteration(call.step.steps, call.scope, static_cast<std::int64_t>(i));
  }
  return Value();
}

Value if_(StepCall& call) {
  const bool holds = evaluate_condition(call.expr("condition"), call.scope);
  call.in.run_steps(holds ? call.step.steps : call.step.otherwise, call.scope);
  return Value();
}

Value choose(StepCall& call) {
  const Value value = call.value("value");
  for (const scenario::Branch& branch : call.step.among)
    if (equal(value, from_literal(branch.label))) {
      call.in.run_steps(branch.steps, call.scope);
      return Value();
    }
  std::string known;
  for (const scenario::Branch& branch : call.step.among) known += str(known.empty() ? "" : ", ", branch.label.text());
  throw Error(str("there is no branch for ", describe(value)), str("there are ", known));
}

Value use(StepCall& call) {
  LOCKSTEP_CHECK(call.step.routine != nullptr, "a routine that was not loaded");
  call.in.call_routine(call.step, call.scope);
  return Value();
}

Value delay(StepCall& call) {
  const double milliseconds = call.number("ms");
  if (call.text("where") == "host")
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  else
    device::delay(device::current_stream(call.in.session().device), milliseconds);
  return Value();
}

Value exit(StepCall& call) {
  if (call.text("how") == "early") throw EarlyExit();
  if (call.in.test_case().launch == scenario::Launch::thread)
    throw Error("a rank that is a thread cannot be killed alone", "let the scenario launch processes");
  call.in.end_by_kill();
}

}  // namespace verbs

}  // namespace lockstep::run
