// Verbs of one rank: training, state, files, records and windows.
#include "harness/run/verbs/verbs.hpp"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/run/test_support.hpp"

namespace lockstep::run {
namespace {

using ::testing::HasSubstr;
using testing_support::Ran;
using testing_support::run_steps;

TEST(Verbs, TrainingVerbsTrain) {
  const Ran ran = run_steps(R"yaml(
  - seed: 0
  - model: Sequential(Linear(2, 2), ReLU(), Linear(2, 1))
    as: m
  - copy: m
    as: before
  - optimizer: {type: SGD, model: m, lr: 0.5}
    as: opt
  - forward: {loss: "sum(m(ones(3, 2)))"}
  - backward: loss
  - expect: all([p.grad != none for p in parameters(m)])
  - step: opt
  - expect_equal: [m.2.bias, before.2.bias - 0.5 * m.2.bias.grad]
  - zero_grad: opt
  - expect: m.2.bias.grad == none
  - set_gradient: {parameter: m.2.bias, to: 2}
  - expect_equal: [m.2.bias.grad, 2]
  - zero_grad: {of: m, set_to_none: false}
  - expect: m.2.bias.grad != none
  - optimizer: {type: Adam, parameters: [m.0.weight], lr: 1e-2, betas: [0.8, 0.9]}
    as: adam
  - init_optimizer_state: adam
  - expect: len(tensors(adam)) > 0
  - state_dict: adam
    as: state
  - expect: keys(state.state) == ['0.weight'] and state.groups[0].betas == [0.8, 0.9]
  - load_state_dict: {into: adam, state: state}
  - optimizer: {type: SGD, groups: [{parameters: "[m.0.weight]", lr: 1}, {parameters: "[m.0.bias]"}], lr: 0.1}
    as: grouped
  - state_dict: grouped
    as: state
  - expect: "[g.lr for g in state.groups] == [1, 0.1]"
  - set_requires_grad: {parameters: m.0.*, to: false}
  - expect: "[p.requires_grad for p in parameters(m)] == [false, false, true, true]"
  - forward: {y: "m(ones(1, 2))"}
  - backward: {loss: y, gradient: "full([1, 1], 3.0)"}
  - expect_equal: [m.2.bias.grad, 3]
  - set_training: {model: m, to: false}
  - set_parameter: {parameter: m.0.bias, to: m.2.bias}
    when: false
  - set_parameter: {parameter: m.2.bias, to: "full([1], 4.0)"}
  - expect: m.2.bias.requires_grad and m.2.bias.name == '2.bias'
  - expect_equal: [m.2.bias, 4]
  - to: {model: m, dtype: float64}
  - expect: "[p.dtype for p in parameters(m)] == [float64] * 4"
)yaml");
  EXPECT_PASS(ran);
}

TEST(Verbs, StateDictsAndFilesRoundTrip) {
  const Ran ran = run_steps(R"yaml(
  - seed: 0
  - model: Net()
    as: m
  - model: Net()
    as: n
  - state_dict: m
    as: state
  - expect: keys(state) == names(m)
  - expect: "state['fc1.weight'].storage == m.fc1.weight.storage"
  - load_state_dict: {into: n, state: state}
  - expect_equal: [n, m]
  - load_state_dict: {into: n, state: "{'fc1.weight': ones(2, 2)}"}
    raises: fc2.weight
  - load_state_dict: {into: n, state: "{'fc1.weight': ones(2, 2)}", strict: false, assign: true}
  - expect_equal: [n.fc1.weight, 1]
  - write: {file: model.safetensors, value: state}
  - read: model.safetensors
    as: back
  - expect_equal: {actual: back, expected: state, bits: true}
  - write: {file: sub/v.json, value: "{'a': [1, 2.5, 'x', none, true]}"}
  - read: sub/v.json
    as: v
  - expect: "v == {'a': [1, 2.5, 'x', none, true]}"
  - let: {up: "'..'", root: "'/x'"}
  - read: ${up}/outside.json
    raises: leads out of its folder
  - read: missing.json
    raises: cannot read
  - write: {file: "${root}.json", value: 1}
    raises: for reading only
)yaml");
  EXPECT_PASS(ran);
}

TEST(Verbs, RecordWritesJson) {
  const Ran ran = run_steps(R"yaml(
  - let: {x: "tensor([[0.1, 2.0], [3.0, 4.0]])"}
  - record: {losses: "[0.1, 1e300, inf]", t: x, nan: item(sum(zeros(1) / zeros(1))), n: 3}
  - record: {n: 4}
  - record: {big: "zeros(10001)"}
    raises: 10000
  - record: {doubled: "[{1: 'a', '1': 'b'}]"}
    raises: a map with the keys 1 and '1' cannot be written out
  - record: {both: "{1: 'a', '2': 'b'}"}
)yaml");
  std::map<std::string, std::string> records(ran.outcomes[0].records.begin(), ran.outcomes[0].records.end());
  EXPECT_EQ(records["n"], "4");
  EXPECT_THAT(records["losses"], HasSubstr("[0.1,1e+300,\""));
  EXPECT_THAT(records["t"], HasSubstr("[[0.10000000149011612,2"));
  EXPECT_EQ(records["nan"].front(), '"');
  EXPECT_EQ(records.count("big"), 0u);
  EXPECT_EQ(records.count("doubled"), 0u);
  EXPECT_EQ(records["both"], "{\"1\":\"a\",\"2\":\"b\"}");
}

TEST(Verbs, ObserveMeasuresMemoryAndTime) {
  const Ran ran = run_steps(R"yaml(
  - observe: [activation]
    as: run
    steps:
      - let: {x: zeros(1024)}
      - delay: {ms: 2, where: host}
  - expect: [run.peak_bytes == 4096, run.seconds >= 0.002]
  - expect: "memory(['activation']) >= 4096"
  - expect_collectives: {during: run, total: 0}
  - delay: 0
  - record_event: current
    as: e
  - wait: e
)yaml");
  EXPECT_PASS(ran);
  EXPECT_EQ(ran.evidence().collectives_checked, 1);
}

}  // namespace
}  // namespace lockstep::run
