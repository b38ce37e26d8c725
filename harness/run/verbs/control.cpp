// repeat, for_each, if, choose, use; and the faults delay, exit and touch.
#include <chrono>
#include <thread>

#include "engine/comm/process_group.hpp"
#include "engine/core/schedule.hpp"
#include "engine/device/protection.hpp"
#include "engine/mesh/sharded.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

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
  const TrivialReadings readings;
  const Value in = call.value("in");
  const bool from_trivial_reading = readings.any();
  const List& items = in.as_list("`in` of for_each");
  if (items.empty()) throw Error("`in` of for_each is an empty list", "guard the step with `when`");
  const std::string index = call.has("index") ? call.text("index") : "";
  Frame& scope = *call.scope.frame;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (names.size() == 1) {
      scope.bind(names[0], items[i], from_trivial_reading);
    } else {
      const List& values = items[i].as_list("an item that several names unpack");
      if (values.size() != names.size())
        throw Error(str("item ", i, " holds ", values.size(), " values for ", names.size(), " names"));
      for (std::size_t k = 0; k < names.size(); ++k) scope.bind(names[k], values[k], from_trivial_reading);
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
  throw Error(str("there is no branch for ", describe(value)), str("the branches are ", known));
}

Value use(StepCall& call) {
  LOCKSTEP_CHECK(call.step.routine != nullptr, "the routine is not loaded");
  call.in.call_routine(call.step, call.scope);
  return Value();
}

namespace {

// A delay below the deadline takes no time: the schedule decides how late the rank is. A longer one lasts, so that the
// peers miss it: the rank runs again after its end, and not before the others can do nothing else.
void delay_under_schedule(schedule::Actor& me, std::chrono::duration<double, std::milli> duration) {
  if (duration < std::chrono::duration<double>(comm::deadline())) return me.poll();
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) me.wait_or_stall("the end of a delay", [] { return false; });
}

}  // namespace

Value delay(StepCall& call) {
  const std::chrono::duration<double, std::milli> duration(call.number("ms"));
  if (call.text("where") != "host")
    device::delay(device::current_stream(call.in.session().device), duration.count());
  else if (schedule::Actor* me = schedule::self())
    delay_under_schedule(*me, duration);
  else
    std::this_thread::sleep_for(duration);
  return Value();
}

namespace {

void require_process(const StepCall& call) {
  if (call.in.test_case().launch == scenario::Launch::thread)
    throw Error("a rank that is a thread cannot be killed alone", "use `launch: process` in the scenario");
}

}  // namespace

Value exit(StepCall& call) {
  const bool early = call.text("how") == "early", expected = call.boolean("expected");
  const double after_ms = call.number("after_ms");
  if (early && after_ms > 0) throw Error("`after_ms` is for `how: kill`", "delay the rank before it ends early");
  if (early && expected) throw EarlyExit();
  require_process(call);
  if (early) launch::end_rank_by_code(3);
  if (after_ms > 0)
    call.live().end_later_by_kill(after_ms, expected);
  else if (expected)
    call.live().end_by_kill();
  else
    launch::end_rank_by_signal();
  return Value();
}

Value touch(StepCall& call) {
  require_process(call);
  const Tensor tensor = local_tensor(call.tensor("tensor"));
  const device::Device on = tensor.device();
  if (on.kind == device::Kind::cuda || on.kind == device::Kind::meta)
    throw Error(str("touch: the host has no view of memory on ", to_text(on)), "use a tensor on cpu or sim");
  if (on.kind == device::Kind::sim && device::protection() == device::Protection::off)
    throw UnsupportedError(str("the memory of sim is ", describe(device::Protection::off)));
  const std::byte* address = nullptr;
  device::Stream& stream = device::current_stream(on);
  device::launch(stream, "touch", {read(tensor)}, [&address](const device::Pointers& p) { address = p.at(0); });
  stream.synchronize();
  if (address != nullptr) static_cast<void>(*static_cast<const volatile std::byte*>(address + call.integer("byte")));
  return Value();
}

}  // namespace lockstep::run::verbs
