#include "harness/run/observe/timeline.hpp"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "harness/launch/launcher.hpp"
#include "harness/run/case_runner.hpp"

namespace lockstep::run {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::IsSupersetOf;

class TimelineOfCase : public testing::Test {
 protected:
  TimelineOfCase() : folder_(fs::temp_directory_path() / str("lockstep_run_timeline_test_", ::getpid())) {
    fs::create_directories(folder_ / "scenarios");
    fs::create_directories(folder_ / "case");
  }
  ~TimelineOfCase() override { fs::remove_all(folder_); }

  // Runs steps on two ranks as threads. The steps begin in line 2.
  std::vector<verdict::RankOutcome> run(const std::string& steps, bool timeline = true) {
    const std::string text =
        str("steps:\n", steps, "scenario: a/b\nsummary: A test.\nranks: {world_size: [2], launch: thread}\n");
    scenario::Library library((folder_ / "scenarios").string());
    const std::shared_ptr<const scenario::Scenario> scenario = library.load_text(text, "text.yaml");
    scenario::ExpandOptions expand;
    expand.device = "cpu";
    const std::vector<scenario::Case> cases = scenario::expand(scenario, expand);
    CaseSpec spec;
    spec.scenario = scenario.get();
    spec.test_case = &cases.at(0);
    spec.library = &library;
    spec.case_folder = (folder_ / "case").string();
    if (timeline) spec.timeline = (folder_ / "output" / "timeline-1").string();
    launch::LaunchOptions how;
    how.world_size = 2;
    how.launch = launch::Launch::thread;
    how.timeout_seconds = 30;
    return launch::launch(how, [&](int rank) { return run_case(spec, rank); }).outcomes;
  }
  std::vector<Json> lines(int rank, const std::string& kind) const {
    std::vector<Json> found;
    std::ifstream in(folder_ / "output" / str("timeline-1.stage-0.rank-", rank, ".jsonl"));
    for (std::string line; std::getline(in, line);) {
      Json json = Json::parse(line);
      if (json["kind"] == kind) found.push_back(std::move(json));
    }
    return found;
  }
  static std::vector<std::string> names(const std::vector<Json>& entries) {
    std::vector<std::string> found;
    for (const Json& entry : entries) found.push_back(entry["name"]);
    return found;
  }

  fs::path folder_;
};

constexpr const char* training = R"yaml(  - seed: 1
  - {model: "Linear(3, 2)",
                     as : net
}
  - replicate: net
  - observe: gradient
    steps:
      - forward: {loss: "sum(net(full([5, 3], rank + 1)))"}
      - backward: loss
    as: seen
  - expect: seen.peak_bytes <= 4096
)yaml";

TEST_F(TimelineOfCase, HoldsStepsModulesLaunchesAndCollectives) {
  const std::vector<verdict::RankOutcome> outcomes = run(training);
  ASSERT_TRUE(outcomes[0].failures.empty()) << outcomes[0].failures[0].message;
  const Json header = lines(1, "timeline").at(0);
  EXPECT_EQ(header["scenario"], "a/b");
  EXPECT_EQ(header["rank"], 1);
  EXPECT_EQ(header["purposes"].size(), 7u);
  EXPECT_THAT(names(lines(0, "span")),
              IsSupersetOf({"seed", "model net", "replicate", "observe seen", "forward", "net", "backward", "expect"}));
  for (const Json& span : lines(0, "span")) {
    EXPECT_GT(span["begin"], 0);
    EXPECT_GE(span["end"], span["begin"]);
    EXPECT_EQ(span["what"], span["name"] == "net" ? "module" : "step") << span;
  }
  std::vector<Json> reduces;
  for (const Json& launch : lines(0, "launch")) {
    EXPECT_GE(launch["end"], launch["begin"]) << launch;
    if (launch.contains("collective") && launch["name"] == "all_reduce") reduces.push_back(launch);
  }
  ASSERT_EQ(reduces.size(), 1u);
  const Json& made = reduces[0]["collective"];
  EXPECT_EQ(made["family"], "data_parallel");
  EXPECT_EQ(made["phase"], "backward");
  EXPECT_EQ(made["group_size"], 2);
  EXPECT_EQ(made["bytes"], 8 * 4);
  EXPECT_EQ(lines(0, "end").size(), 1u);
}

TEST_F(TimelineOfCase, CollectivesOfTheRanksShareGroupAndSequence) {
  run(training);
  const auto keys = [this](int rank) {
    std::vector<std::string> found;
    for (const Json& launch : lines(rank, "launch"))
      if (launch.contains("collective"))
        found.push_back(str(launch["name"].get<std::string>(), " ", launch["collective"]["group"].get<std::int64_t>(),
                            " ", launch["collective"]["sequence"].get<std::int64_t>()));
    return found;
  };
  EXPECT_GE(keys(0).size(), 2u);
  EXPECT_EQ(keys(0), keys(1));
}

TEST_F(TimelineOfCase, EachLoggedCollectiveExceptBarriersHasALaunch) {
  const std::vector<verdict::RankOutcome> outcomes = run(training);
  std::int64_t logged = 0, launched = 0;
  for (const verdict::CollectiveCount& row : outcomes[0].collectives)
    if (row.operation != "barrier") logged += row.count;
  for (const Json& launch : lines(0, "launch")) launched += launch.contains("collective");
  EXPECT_GT(logged, 0);
  EXPECT_EQ(launched, logged);
}

TEST_F(TimelineOfCase, ABoundHasItsWindowAndPeak) {
  const std::vector<verdict::RankOutcome> outcomes = run(training);
  std::int64_t peak = 0;
  for (const Json& sample : lines(0, "memory")) peak = std::max(peak, sample["bytes"][1].get<std::int64_t>());
  EXPECT_EQ(peak, outcomes[0].memory.at("gradient"));
  const std::vector<Json> bounds = lines(0, "bound");
  ASSERT_EQ(bounds.size(), 1u);
  EXPECT_EQ(bounds[0]["bytes"], 4096);
  EXPECT_EQ(bounds[0]["peak"], peak);
  EXPECT_THAT(bounds[0]["purposes"].get<std::vector<std::string>>(), ElementsAre("gradient"));
  EXPECT_EQ(bounds[0]["text"], "seen.peak_bytes <= 4096");
  EXPECT_LT(bounds[0]["begin"], bounds[0]["end"]);
}

TEST_F(TimelineOfCase, ABoundOnASumIsConvertedToABoundOnThePeak) {
  run(R"yaml(  - observe: activation
    steps:
      - let: {x: "full([256], 1)"}
    as: seen
  - expect: [seen.peak_bytes + 1000 < 3 * 1024, seen.seconds < 100]
)yaml");
  const std::vector<Json> bounds = lines(0, "bound");
  ASSERT_EQ(bounds.size(), 1u);
  EXPECT_EQ(bounds[0]["peak"], 1024);
  EXPECT_EQ(bounds[0]["bytes"], 3 * 1024 - 1000);
}

TEST_F(TimelineOfCase, SpansLeftOpenByAnErrorEndWithTheStep) {
  run(R"yaml(  - {model: "Linear(3, 2)", as: net}
  - let: {x: "net(full([5, 4], 1))"}
    raises: size
  - let: {y: "net(full([5, 3], 1))"}
)yaml");
  const std::vector<Json> spans = lines(0, "span");
  EXPECT_THAT(names(spans), ElementsAre("model net", "let", "net", "let", "net"));
  EXPECT_LE(spans[2]["end"], spans[3]["begin"]);
}

TEST_F(TimelineOfCase, WritesNothingUnlessEnabled) {
  run(training, false);
  EXPECT_FALSE(fs::exists(folder_ / "output"));
}

}  // namespace
}  // namespace lockstep::run
