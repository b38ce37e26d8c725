// expect_launches: the launches within a window, their order and their overlap.
#include "harness/run/checks/launches.hpp"

#include "engine/device/order.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

Value expect_launches(StepCall& call) {
  const Value during = call.value("during");
  const Observation& window = *during.as_observation("during");
  if (!window.launches) throw Error("the window records no launches", "open it by `observe: {launches: true}`");
  LaunchCheck check{call.site(), to_text(call.in.session().device), *window.launches};
  const auto texts = [&call](const char* argument) -> std::optional<LaunchCheck::Texts> {
    if (!call.has(argument)) return std::nullopt;
    return call.words(argument);
  };
  check.streams = call.words("streams");
  check.exactly = texts("exactly");
  check.in_order = texts("in_order");
  check.never = texts("never");
  check.ordered = texts("ordered");
  check.concurrent = texts("concurrent");
  if (!device::order_check_on()) throw Error("expect_launches needs the order check", "run without --no-order-check");
  check_launch_texts(check);
  call.live().launch_checks().add(std::move(check));
  return Value();
}

}  // namespace lockstep::run::verbs
