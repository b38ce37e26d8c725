#include "harness/run/observe/trace_bits.hpp"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/cuda/stand_in.hpp"
#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::IsEmpty;
using testing_support::Ran;
using testing_support::run_steps;
using testing_support::TextOptions;

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// A backward that is not the last waits for no reduction: reading the gradients then would race with it.
TEST(TraceBits, HashesGradientsOnceTheirReductionsAreAwaited) {
  const std::string steps = R"yaml(
  - seed: 3
  - model: Sequential(Linear(4, 4), Linear(4, 4))
    as: net
  - copy: net
    as: other
  - fully_shard: [net.0, net.1, net]
  - repeat: {times: 3, index: k}
    steps:
      - set_flags: {modules: net, is_last_backward: k == 2}
      - let: {x: "randn(2, 4)"}
      - note: the backward of another model reads no gradient of this one either
        forward: {other_loss: sum(other(x))}
      - backward: other_loss
      - forward: {loss: sum(net(x))}
      - backward: loss
  - expect: all([finite(p.grad) for p in parameters(net)])
)yaml";
  std::string trace;
  TextOptions options;
  options.world_size = 2;
  options.trace = &trace;
  const Ran ran = run_steps(steps, options);
  EXPECT_THAT(ran.failures(), IsEmpty());
  EXPECT_EQ(count_of(trace, "\"what\":\"gradient\",\"path\":\"net."), 4) << "after the last backward";
  EXPECT_EQ(count_of(trace, "\"what\":\"gradient\",\"path\":\"other."), 4 * 3 * 2) << "after each backward";
  EXPECT_EQ(count_of(trace, "\"what\":\"forward\",\"path\":\"net.0\""), 3);
}

// Within a backward the reductions of the model are in progress, and gradients are incomplete.
TEST(TraceBits, HashesGradientsAtTheEndOfTheBackwardThatMakesThem) {
  const std::string steps = R"yaml(
  - seed: 3
  - model: Sequential(Linear(4, 4), Linear(4, 4))
    as: net
  - model: Linear(4, 2)
    as: side
  - fully_shard: [net.1, net]
  - let: {x: "randn(2, 4)"}
  - hook: {modules: net.0, at: after_backward}
    steps:
      - forward: {side_loss: sum(side(x))}
      - backward: side_loss
  - forward: {loss: sum(net(x))}
  - backward: loss
  - expect: all([finite(p.grad) for p in parameters(net)])
)yaml";
  std::string trace;
  TextOptions options;
  options.world_size = 2;
  options.device = "sim";
  options.head = "plan: {unplanned: a backward within a backward}\n";
  options.trace = &trace;
  const Ran ran = run_steps(steps, options);
  EXPECT_THAT(ran.failures(), IsEmpty());
  EXPECT_EQ(count_of(trace, "\"what\":\"gradient\",\"path\":\"net."), 4) << "at the end of its own backward";
  EXPECT_EQ(count_of(trace, "\"what\":\"gradient\",\"path\":\"side."), 2 * 2) << "within that, and at its end";
}

// A launch cannot read the memory of a GPU, and a kernel may run long after its launch.
TEST(TraceBits, HashesTheSameValuesOnCuda) {
  const std::string steps = R"yaml(
  - seed: 3
  - model: LayerNorm(5)
    as: net
  - forward: {loss: "sum(net(randn(7, 5)) * 0.5)"}
  - backward: loss
  - expect: all([finite(p.grad) for p in parameters(net)])
)yaml";
  const auto records_on = [&](const std::string& device) {
    std::string trace;
    TextOptions options;
    options.device = device;
    options.trace = &trace;
    EXPECT_THAT(run_steps(steps, options).failures(), IsEmpty());
    return trace.substr(trace.find('\n') + 1);
  };
  ::setenv(device::cuda::stand_in_variable, device::cuda::stand_in_value, 1);
  const std::string on_cuda = records_on("cuda");
  ::unsetenv(device::cuda::stand_in_variable);
  EXPECT_EQ(count_of(on_cuda, "\"what\":\"gradient\""), 2);
  EXPECT_EQ(on_cuda, records_on("cpu"));
}

}  // namespace
}  // namespace lockstep::run
