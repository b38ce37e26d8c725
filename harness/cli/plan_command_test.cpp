// `lockstep plan`: figures by hand, and figures of real runs.
#include "harness/cli/plan_command.hpp"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* replicated =
    "ranks: {world_size: [2]}\nparameters: {width: 4}\nsteps:\n  - {model: \"Linear(width, 2)\", as: net}\n"
    "  - replicate: net\n  - forward: {loss: \"sum(net(ones(1, width)))\"}\n  - backward: loss\n"
    "  - expect: net.weight.grad != none\n";

constexpr const char* trains = R"yaml(ranks: {world_size: [2, 4]}
steps:
  - seed: 42
  - model: Transformer(n_layers=3, dim=32, dropout_p=0)
    as: model
  - fully_shard: {modules: [model.layers.*, model]}
  - optimizer: {type: Adam, model: model, lr: 1e-2}
    as: adam
  - seed: 42 + rank
  - repeat: 3
    steps:
      - let: {tokens: "randint(0, 8, [2, 16])"}
      - forward: {loss: sum(model(tokens))}
      - backward: loss
      - step: adam
      - zero_grad: adam
  - expect: any([p.sharded for p in parameters(model)])
)yaml";

// One group of all parameters. Its buffers of the forward are free before the backward.
constexpr const char* one_group = R"yaml(ranks: {world_size: [4]}
steps:
  - model: Sequential(Linear(40, 40), Linear(40, 40), Linear(40, 2))
    as: model
  - fully_shard: model
  - optimizer: {type: Adam, model: model, lr: 0.1}
    as: adam
  - repeat: 2
    steps:
      - forward: {y: "sum(model(ones([3, 40])))"}
      - backward: y
      - step: adam
      - zero_grad: adam
  - expect: y != none
)yaml";

// Reductions add to gradients. Those of the root and of the first group come together, as the inputs have no gradient.
constexpr const char* accumulates = R"yaml(ranks: {world_size: [4]}
steps:
  - model: Sequential(Linear(40, 40), Linear(40, 40), Linear(40, 2))
    as: model
  - fully_shard: [model.0, model.1, model]
  - optimizer: {type: Adam, model: model, lr: 0.1}
    as: adam
  - repeat: 2
    steps:
      - repeat: 2
        steps:
          - forward: {y: "sum(model(ones([3, 40])))"}
          - backward: y
      - step: adam
      - zero_grad: adam
  - expect: y != none
)yaml";

// The sums of rows are computed in float32, and so are products.
constexpr const char* looks_up = R"yaml(ranks: {world_size: [2]}
steps:
  - model: {build: "Sequential(Embedding(4096, 64), Linear(64, 64))", dtype: bfloat16}
    as: model
  - fully_shard: model
  - optimizer: {type: Adam, model: model, lr: 0.5}
    as: adam
  - repeat: 2
    steps:
      - forward: {y: "sum(model(tensor([1, 2, 3])))"}
      - backward: y
      - step: adam
      - zero_grad: adam
  - expect: y != none
)yaml";

// Each gradient is cast from the output of its reduction, and the second one is added to the first.
constexpr const char* reduces_in_sixteen_bits = R"yaml(ranks: {world_size: [2]}
steps:
  - model: Sequential(Linear(512, 64), Linear(64, 64))
    as: model
  - fully_shard: {modules: [model.1, model], mixed_precision: {param: bfloat16}}
  - optimizer: {type: Adam, model: model, lr: 0.5}
    as: adam
  - repeat: 2
    steps:
      - repeat: 2
        steps:
          - forward: {y: "sum(model(ones([3, 512])))"}
          - backward: y
      - step: adam
      - zero_grad: adam
  - expect: y != none
)yaml";

// Each rank keeps the shards of two ranks after forward. Those of model.0 have padding, so its slots hold copies.
constexpr const char* keeps = R"yaml(ranks: {world_size: [4]}
steps:
  - model: Sequential(Linear(40, 42), Linear(42, 40), Linear(40, 2))
    as: model
  - fully_shard: {modules: [model.0, model.1, model], reshard_after_forward: 2}
  - optimizer: {type: Adam, model: model, lr: 0.1}
    as: adam
  - repeat: 2
    steps:
      - forward: {y: "sum(model(ones([3, 40])))"}
      - backward: y
      - step: adam
      - zero_grad: adam
  - expect: y != none
)yaml";

class PlanCommand : public testing::Test {
 protected:
  PlanCommand() {
    home_.add("replicated", replicated);
    home_.add("trains", trains);
    home_.add("one_group", one_group);
    home_.add("accumulates", accumulates);
    home_.add("keeps", keeps);
    home_.add("looks_up", looks_up);
    home_.add("reduces_in_sixteen_bits", reduces_in_sixteen_bits);
    home_.add("plain", passes);
    std::ofstream(machine_) << "machine: flat\nlevels:\n"
                               "  - {name: links, ranks: 8192, latency_us: 1, bandwidth_gb_per_s: 1}\n";
  }
  Ended run(std::vector<std::string> arguments) const { return lockstep(home_, std::move(arguments)); }
  json line_of(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--format", "json"});
    const Ended ended = run(std::move(arguments));
    EXPECT_EQ(ended.code, 0) << ended.err;
    return json::parse(ended.out);
  }
  Home home_;
  std::string machine_ = home_ / "flat.machine";
};

// One all_reduce of 4 x 2 + 2 floats.
TEST_F(PlanCommand, PlansAnyWorldSize) {
  for (const int world_size : {1 << 1, 1 << 12}) {
    const json line = line_of({"plan", "replicated", "--world-size", std::to_string(world_size), "--rank", "1"});
    EXPECT_EQ(line["rank"], 1);
    EXPECT_EQ(line["world_size"], world_size);
    json backward;
    for (const json& row : line["collectives"])
      if (row["phase"] == "backward") backward.push_back(row);
    ASSERT_EQ(backward.size(), 1U);
    EXPECT_EQ(backward[0]["operation"], "all_reduce");
    EXPECT_EQ(backward[0]["group_size"], world_size);
    EXPECT_EQ(backward[0]["count"], 1);
    EXPECT_EQ(backward[0]["bytes"], 40);
    EXPECT_FALSE(backward[0].contains("seconds"));
    EXPECT_EQ(line["memory"]["parameter"], 40);
    EXPECT_EQ(line["bytes"][0]["by_phase"]["backward"], 40);
  }
  EXPECT_EQ(line_of({"plan", "replicated", "--set", "width=9"})["memory"]["parameter"], 80);
}

// A ring of n ranks: 2 (n - 1) messages of 1 us and 40 / n bytes of 1 ns.
TEST_F(PlanCommand, TimesTheCollectivesOnAMachine) {
  const json line = line_of({"plan", "replicated", "--world-size", "4096", "--machine", machine_});
  EXPECT_EQ(line["machine"], "flat");
  for (const json& row : line["collectives"]) {
    if (row["operation"] != "all_reduce") continue;
    EXPECT_EQ(row["level"], "links");
    EXPECT_NEAR(row["seconds"].get<double>(), 2 * 4095 * (1e-6 + 40.0 / 4096 * 1e-9), 1e-12);
  }
  const Ended page = run({"plan", "replicated", "--machine", machine_});
  EXPECT_EQ(page.code, 0);
  EXPECT_THAT(page.out, AllOf(HasSubstr("rank 0 of 2"), HasSubstr("all_reduce"), HasSubstr("Peak memory"),
                              HasSubstr("Time of the collectives on flat")));
}

TEST_F(PlanCommand, RefusesWhatItCannotPlan) {
  EXPECT_THAT(run({"plan", "plain"}).err, HasSubstr("plans nothing"));
  EXPECT_THAT(run({"plan", "replicated", "--rank", "2"}).err, HasSubstr("--rank 2 in a world of 2 ranks"));
  std::ofstream(home_ / "bad.machine") << "machine: m\nlevels: 3\n";
  const Ended bad = run({"plan", "replicated", "--machine", home_ / "bad.machine"});
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("bad.machine:2:"));
  std::ofstream(home_ / "small.machine")
      << "machine: small\nlevels:\n  - {name: a, ranks: 2, latency_us: 1, bandwidth_gb_per_s: 1}\n";
  EXPECT_THAT(run({"plan", "replicated", "--world-size", "4", "--machine", home_ / "small.machine"}).err,
              HasSubstr("rank 3 is not on the machine `small`"));
}

// The number in a condition is not known before the launch. The exit code is that of all stages.
TEST_F(PlanCommand, FailsWhereAnyStageEndsEarly) {
  const auto stage = [](const std::string& name, const std::string& condition) {
    return str("  - name: ", name, "\n    steps:\n      - {model: \"Linear(2, 2)\", as: net}\n",
               "      - replicate: net\n      - forward: {loss: \"sum(net(ones(1, 2)))\"}\n      - if: ", condition,
               "\n        steps:\n          - backward: loss\n      - expect: net.weight.grad != none\n");
  };
  const std::string open = "item(loss) < 100", closed = "rank < 2";
  for (const auto& [first, second, code] : std::vector<std::tuple<std::string, std::string, int>>{
           {closed, closed, 0}, {open, closed, 1}, {closed, open, 1}}) {
    home_.add("stages", str("ranks: {world_size: [2]}\nstages:\n", stage("one", first), stage("two", second)));
    const Ended ended = run({"plan", "stages"});
    EXPECT_EQ(ended.code, code) << ended.out << ended.err;
  }
}

// The plan before a launch against the log and the statistics of the run.
TEST_F(PlanCommand, AgreesWithRuns) {
  const std::vector<std::pair<std::string, std::string>> programs = {{"trains", "2"},
                                                                     {"trains", "4"},
                                                                     {"one_group", "4"},
                                                                     {"accumulates", "4"},
                                                                     {"keeps", "4"},
                                                                     {"looks_up", "2"},
                                                                     {"reduces_in_sixteen_bits", "2"}};
  for (const auto& [name, world_size] : programs) {
    const json line = line_of({"plan", name, "--world-size", world_size});
    const std::string results = home_ / "results.jsonl";
    ASSERT_EQ(run({"run", name, "--world-size", world_size, "--results", results}).code, 0);
    std::ifstream file(results);
    json row;
    for (std::string text; std::getline(file, text);)
      if (json one = json::parse(text); one["kind"] == "case") row = std::move(one);
    ASSERT_EQ(row["status"], "PASS");
    std::set<std::string> planned, observed;
    const auto text_of = [](const json& one) {
      return json::array({one["family"], one["operation"], one["axis"], one["group_size"], one["phase"], one["count"],
                          one["bytes"]})
          .dump();
    };
    for (const json& one : line["collectives"]) planned.insert(text_of(one));
    for (const json& one : row["collectives"])
      if (one["family"] != "user") observed.insert(text_of(one));
    EXPECT_EQ(planned, observed) << name << " of " << world_size;
    EXPECT_GE(planned.size(), 2U);
    for (const char* purpose :
         {"parameter", "gradient", "gathered", "activation", "optimizer", "communication", "peak_total"}) {
      EXPECT_GT(row["memory"][purpose], 0) << purpose;
      // The dry run frees the copies of kept shards together; a run frees each as its parameter is gathered. The peaks
      // of all purposes together differ by 8 bytes here.
      const std::int64_t most = name == "keeps" && purpose == std::string_view("peak_total") ? 16 : 0;
      const std::int64_t is = line["memory"][purpose], was = row["memory"][purpose];
      EXPECT_LE(std::abs(is - was), most) << purpose << " of " << name << " on " << world_size;
    }
  }
}

}  // namespace
}  // namespace lockstep::cli
