// What happens to the model under test beside its training.
#include <algorithm>

#include "engine/core/error.hpp"
#include "harness/fuzz/render_internal.hpp"

namespace lockstep::fuzz {

namespace {

bool fails(const Interruption& interruption) { return interruption.kind >= Interruption::failed_forward; }

// The event at which it fails, as "after_forward of 0.head"; the name `failing` has this value while it may fail.
std::string event_of(const Interruption& interruption) {
  return str(interruption.fails_after ? "after_" : "before_",
             interruption.kind == Interruption::failed_forward ? "forward" : "backward");
}

std::string failure_of(const Interruption& interruption) {
  return str(event_of(interruption), " of ", interruption.module);
}

bool is_of_backward(const SideModel& side) { return side.event.ends_with("backward"); }

}  // namespace

void render_failing_hooks(const Program& program, std::size_t first, std::size_t last, Json& steps) {
  std::vector<std::string> known;
  for (std::size_t i = first; i < std::min(last, program.steps.size()); ++i)
    for (const Microbatch& microbatch : program.steps[i].microbatches) {
      const Interruption& before = microbatch.before;
      if (!fails(before) || std::find(known.begin(), known.end(), failure_of(before)) != known.end()) continue;
      if (known.empty()) steps.push_back({{"let", {{"failing", "''"}}}});
      known.push_back(failure_of(before));
      const Json failure = {{"let", {{"nothing", "view(ones(2), 3)"}}},
                            {"when", str("failing == '", known.back(), "'")}};
      steps.push_back(
          {{"hook", {{"modules", path_of("test", before.module)}, {"at", event_of(before)}}}, {"steps", {failure}}});
    }
}

void render_interruption(const Program& program, const Interruption& interruption, const std::string& input,
                         Json& steps) {
  if (interruption.kind == Interruption::none) return;
  const std::string x = program.has_input_gradients ? str("detach(", input, ")") : input;
  const char* message = "view: sizes (3,) hold 3 elements";
  const Json begin_to_fail = {{"let", {{"failing", str("'", failure_of(interruption), "'")}}}};
  Json forward = {{"forward", {{"lost", str("sum(test(", x, "))")}}}};
  if (interruption.kind == Interruption::failed_forward) {
    steps.push_back(begin_to_fail);
    forward["raises"] = message;
  }
  steps.push_back(forward);
  if (interruption.kind == Interruption::lost_forward) steps.push_back({{"drop", "lost"}});
  if (interruption.kind == Interruption::failed_backward) {
    steps.push_back(begin_to_fail);
    steps.push_back({{"backward", "lost"}, {"raises", message}});
    steps.push_back({{"zero_grad", "test_optimizer"}});
  }
  if (fails(interruption)) steps.push_back({{"let", {{"failing", "''"}}}});
}

// All ranks train it on the same rows, so that it stays equal to a plain model that each rank trains.
void render_side(const SideModel& side, Json& steps) {
  steps.push_back({{"model", "Linear(3, 2)"}, {"as", "side"}});
  steps.push_back({{"copy", "side"}, {"as", "plain_side"}});
  steps.push_back({{side.verb, "side"}});
  Json within = Json::array({{{"let", {{"counted", "add_(turns, 1)"}}}}});
  for (const std::string model : {"side", "plain_side"}) {
    steps.push_back({{"optimizer", {{"type", "Adam"}, {"model", model}, {"lr", "0.01"}, {"eps", "0.01"}}},
                     {"as", model + "_optimizer"}});
    within.push_back({{"forward", {{"side_y", model + "(side_x)"}, {"side_loss", "mean(side_y * side_y)"}}}});
    within.push_back({{"backward", "side_loss"}});
    within.push_back({{"step", model + "_optimizer"}});
    within.push_back({{"zero_grad", model + "_optimizer"}});
  }
  steps.push_back({{"let", {{"side_x", "randn(4, 3)"}, {"turns", "zeros(1)"}}}});
  steps.push_back({{"hook", {{"modules", path_of("test", side.module)}, {"at", side.event}}}, {"steps", within}});
}

void render_end_of_side(const Program& program, Json& steps) {
  const bool may_be_frozen =
      !program.frozen.empty() ||
      std::any_of(program.steps.begin(), program.steps.end(), [](const Step& step) { return !step.frozen.empty(); });
  if (!is_of_backward(*program.side) || !may_be_frozen) steps.push_back({{"expect", "item(turns) > 0"}});
  const Json same = {{"expect_equal", {{"actual", "side"}, {"expected", "plain_side"}, {"rtol", "1e-4"}}}};
  if (program.side->verb == "flat_shard")
    steps.push_back(
        {{"summon_full_parameters", {{"model", "side"}, {"writeback", false}}}, {"steps", Json::array({same})}});
  else
    steps.push_back(same);
}

std::string unplanned_reason(const Program& program) {
  for (const Step& step : program.steps)
    for (const Microbatch& microbatch : step.microbatches)
      if (fails(microbatch.before)) return "the plan does not follow a forward or backward that fails within a hook";
  if (program.side && is_of_backward(*program.side))
    return "the plan takes the end of a backward within a backward for that of the outer one";
  return "";
}

}  // namespace lockstep::fuzz
