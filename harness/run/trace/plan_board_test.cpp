#include "harness/run/trace/plan_board.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/run/test_support.hpp"
#include "harness/run/trace/control_digest.hpp"
#include "harness/run/trace/plan_bytes.hpp"
#include "harness/run/trace/plan_check.hpp"
#include "harness/run/trace/plan_conditions.hpp"

namespace lockstep::run {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

std::vector<plan::Collective> two_collectives() {
  return {{"data_parallel", "all_gather", "shard", 4, "forward", "net.0", 12, 1024, false, 1},
          {"start_up", "broadcast", "", 8, "other", "net", 13, 16, true, 0}};
}

std::string text_of(const std::vector<plan::Collective>& planned) {
  std::string text;
  for (const plan::Collective& one : planned)
    text += str(one.family, " ", one.operation, " ", one.axis, " ", one.group_size, " ", one.phase, " ", one.owner, " ",
                one.line, " ", one.bytes, " ", one.bytes_are_least, " ", one.turn, "\n");
  return text;
}

TEST(PlanBoard, KeepsEveryMemberOfACollective) {
  const auto read = plan_from_bytes(bytes_of_plan(two_collectives()));
  ASSERT_TRUE(read);
  EXPECT_EQ(text_of(*read), text_of(two_collectives()));
  const auto empty = plan_from_bytes(bytes_of_plan({}));
  ASSERT_TRUE(empty);
  EXPECT_THAT(*empty, IsEmpty());
}

TEST(PlanBoard, RefusesDamagedBytes) {
  const std::string whole = bytes_of_plan(two_collectives());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(plan_from_bytes(std::string_view(whole).substr(0, size))) << size;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(0xff);
    plan_from_bytes(damaged);  // whatever it gives, it reads nothing outside
  }
}

PlanOutcome outcome_of(std::vector<plan::Collective> planned) {
  PlanOutcome outcome;
  outcome.planned = std::move(planned);
  return outcome;
}

bool always(const PlanBoard::Posted&) { return true; }
bool never(const PlanBoard::Posted&) { return false; }

TEST(PlanBoard, ConfirmsRanksOfTheSameDigest) {
  PlanBoard board;
  int num_made = 0;
  const auto make = [&] {
    ++num_made;
    return outcome_of(two_collectives());
  };
  EXPECT_TRUE(make_unless_confirmed(&board, 7, make, always));
  std::string seen;
  EXPECT_FALSE(make_unless_confirmed(&board, 7, make, [&](const PlanBoard::Posted& posted) {
    seen = text_of(plan_from_bytes(posted.planned).value());
    return true;
  }));
  EXPECT_EQ(seen, text_of(two_collectives()));
  EXPECT_EQ(num_made, 1);
  EXPECT_TRUE(make_unless_confirmed(&board, 8, make, always));
  EXPECT_TRUE(make_unless_confirmed(nullptr, 7, make, always));
  EXPECT_EQ(num_made, 3);
}

// A rank that no plan confirms posts its own beside them, until all places are taken.
TEST(PlanBoard, HoldsSeveralPlansOfOneDigest) {
  PlanBoard board;
  int num_made = 0;
  const auto make = [&] {
    ++num_made;
    return outcome_of({});
  };
  for (int i = 0; i < PlanBoard::num_places + 2; ++i) EXPECT_TRUE(make_unless_confirmed(&board, 7, make, never));
  EXPECT_EQ(num_made, PlanBoard::num_places + 2);
  int num_asked = 0;
  EXPECT_FALSE(make_unless_confirmed(&board, 7, make, [&](const PlanBoard::Posted&) {
    return ++num_asked == PlanBoard::num_places;  // the last one
  }));
}

TEST(PlanBoard, PostsNoPlanThatIsIncompleteOrFailed) {
  PlanBoard incomplete;
  const auto early = [] {
    PlanOutcome outcome = outcome_of(two_collectives());
    outcome.unforeseen = "a value";
    return outcome;
  };
  EXPECT_TRUE(make_unless_confirmed(&incomplete, 7, early, always));
  EXPECT_TRUE(make_unless_confirmed(&incomplete, 7, early, always));
  PlanBoard failed;
  EXPECT_THROW(make_unless_confirmed(
                   &failed, 7, []() -> PlanOutcome { throw Error("out of time"); }, always),
               Error);
  EXPECT_TRUE(make_unless_confirmed(
      &failed, 7, [] { return outcome_of({}); }, always));
}

TEST(PlanBoard, WaitsNoLongerThanAsked) {
  PlanBoard board;
  EXPECT_TRUE(board.find(7, 0).value().is_mine);
  EXPECT_FALSE(board.find(7, 0).value().is_mine);
  EXPECT_FALSE(board.read(7, 0, 0.02));
  EXPECT_FALSE(board.read(7, 0, 1000));  // its rank has ended: nobody waits again
  board.post(7, 0, outcome_of(two_collectives()));
  EXPECT_TRUE(board.read(7, 0, 0.0));
}

TEST(PlanBoard, IsSharedByProcesses) {
  PlanBoard board;
  ASSERT_TRUE(board.find(7, 0).value().is_mine);
  const pid_t child = ::fork();
  if (child == 0) {
    ::usleep(20'000);
    board.post(7, 0, outcome_of(two_collectives()));
    ::_exit(0);
  }
  const auto read = board.read(7, 0, 10.0);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(read);
  EXPECT_EQ(text_of(plan_from_bytes(read->planned).value()), text_of(two_collectives()));
}

// ---- cases ----
constexpr const char* replicated = R"yaml(
  - model: Linear(2, 2)
    as: net
  - replicate: net
  - forward: {loss: "sum(net(ones(1, 2)))"}
  - backward: loss
  - expect: net.weight.grad != none
)yaml";

// A posted plan that belongs to another program, under the digest of this rank: the rank finds it out.
TEST(PlanBoard, AWrongPlanDoesNotJudgeARank) {
  scenario::Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  const auto scenario = library.load_text(
      str("steps:", replicated, "scenario: test/text\nsummary: A test.\nranks: {world_size: [2]}\n"), "text.yaml");
  const std::vector<scenario::Case> cases = scenario::expand(scenario, {});
  CaseSpec spec;
  spec.scenario = scenario.get();
  spec.library = &library;
  spec.test_case = &cases.at(0);
  const PlanJudgement expected = check_plan(spec, 1, 2, 0, {}, {}, {7});
  ASSERT_THAT(expected.mismatches, Not(IsEmpty()));
  spec.plans = std::make_shared<PlanBoard>();
  const std::uint64_t digest = digest_of_plan(spec, 7, 0, 2);
  ASSERT_TRUE(spec.plans->find(digest, 0).value().is_mine);
  spec.plans->post(digest, 0, outcome_of(two_collectives()));
  const PlanJudgement judged = check_plan(spec, 1, 2, 0, {}, {}, {7});
  ASSERT_THAT(judged.mismatches, SizeIs(expected.mismatches.size()));
  for (std::size_t i = 0; i < judged.mismatches.size(); ++i)
    EXPECT_EQ(judged.mismatches[i].message, expected.mismatches[i].message);
}

// A rank that issued other collectives than the posted plan makes a plan of its own.
TEST(PlanBoard, APlanConfirmsExactlyItsCollectives) {
  scenario::Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  const auto scenario = library.load_text(
      str("steps:", replicated, "scenario: test/text\nsummary: A test.\nranks: {world_size: [2]}\n"), "text.yaml");
  const std::vector<scenario::Case> cases = scenario::expand(scenario, {});
  CaseSpec spec;
  spec.scenario = scenario.get();
  spec.library = &library;
  spec.test_case = &cases.at(0);
  const auto issued = [](comm::Operation operation, comm::Family family, std::int64_t bytes) {
    comm::LogEntry entry;
    entry.operation = operation;
    entry.family = family;
    entry.axis = "dp";
    entry.group_size = 2;
    entry.owner = "net";
    entry.bytes = bytes;
    return entry;
  };
  const comm::LogEntry first = issued(comm::Operation::broadcast, comm::Family::start_up, 16);
  const comm::LogEntry last = issued(comm::Operation::all_reduce, comm::Family::data_parallel, 24);
  const comm::LogEntry longer = issued(comm::Operation::all_reduce, comm::Family::data_parallel, 32);
  const comm::LogEntry by_hand = issued(comm::Operation::all_reduce, comm::Family::user, 24);
  const auto is_confirmed = [&](const std::vector<comm::LogEntry>& log, const LogRanges& left_out = {}) {
    spec.plans = std::make_shared<PlanBoard>();
    const std::uint64_t digest = digest_of_plan(spec, 7, 0, 2);
    EXPECT_TRUE(spec.plans->find(digest, 0).value().is_mine);
    spec.plans->post(digest, 0,
                     outcome_of({{"start_up", "broadcast", "dp", 2, "other", "net", 0, 16, false, 0},
                                 {"data_parallel", "all_reduce", "dp", 2, "other", "net", 0, 24, false, 0}}));
    return check_plan(spec, 1, 2, 0, log, left_out, {7}).num_dry_runs == 0;
  };
  EXPECT_TRUE(is_confirmed({first, last}));
  EXPECT_FALSE(is_confirmed({}));
  EXPECT_FALSE(is_confirmed({first}));
  EXPECT_FALSE(is_confirmed({first, last, last})) << "it goes on after the end of the plan";
  EXPECT_FALSE(is_confirmed({first, first, last}));
  EXPECT_FALSE(is_confirmed({last, first}));
  EXPECT_FALSE(is_confirmed({first, longer}));
  // No plan contains the collectives that a step asks for, nor those of a step that must fail.
  EXPECT_TRUE(is_confirmed({by_hand, first, last, by_hand}));
  EXPECT_TRUE(is_confirmed({first, last, last}, {{2, 3}}));
}

// Ranks 0 and 1 replicate, ranks 2 and 3 shard: their plans have nothing in common. Each rank is judged by its own.
constexpr const char* apart = R"yaml(
  - if: rank < 2
    steps:
      - mesh: {shape: [2], names: [dp], ranks: [0, 1]}
        as: half
      - model: Linear(2, 2)
        as: net
      - replicate: {modules: net, mesh: half}
    else:
      - mesh: {shape: [2], names: [shard], ranks: [2, 3]}
        as: half
      - model: Linear(2, 2)
        as: net
      - fully_shard: {modules: net, mesh: half}
  - forward: {loss: "sum(net(ones(1, 2)))"}
  - backward: loss
  - expect: any([p.grad != none for p in parameters(net)])
)yaml";

TEST(PlanBoard, RanksWithOtherStepsHavePlansOfTheirOwn) {
  for (const char* launch : {"thread", "process"}) {
    const testing_support::Ran ran = testing_support::run_steps(apart, testing_support::ranks(4, launch));
    EXPECT_PASS(ran);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_GT(ran.evidence(rank).planned_in_order, 0) << launch << " " << rank;
      EXPECT_TRUE(ran.outcomes.at(static_cast<std::size_t>(rank)).plan_verdict.is_judged);
    }
  }
}

// Some ranks leave out a bucket: their collectives differ from the plan that all ranks share.
TEST(PlanBoard, ADefectIsReportedOnEveryRank) {
  const testing_support::ArmedDefect armed(Defect::replicate_bucket_not_sent);
  const testing_support::Ran ran = testing_support::run_steps(replicated, testing_support::ranks(2));
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_THAT(ran.failures(rank), Not(IsEmpty()));
    EXPECT_THAT(ran.failures(rank), ::testing::Contains(HasSubstr("plan "))) << rank;
  }
}

// ---- cases of one scenario ----
constexpr const char* with_matrix = R"yaml(
scenario: test/text
summary: A test.
ranks: {world_size: [2], launch: [thread]}
matrix: {seen: [1, 2], unseen: [1, 2]}
steps:
  - seed: unseen
  - model: Linear(2, 2)
    as: net
  - replicate: net
  - let: {inputs: "ones(seen, 2)"}
  - forward: {loss: sum(net(inputs))}
  - backward: loss
  - clip_grad_norm: {model: net, max_norm: unseen}
    as: norm
  - expect: item(norm) > 0 and unseen > 0
)yaml";

// All cases have the same collectives. A case takes the plan of one in which the dry run reads the same values.
TEST(PlanBoard, IsSharedByCasesWithTheValuesThatThePlanDependsOn) {
  scenario::Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  const auto scenario = library.load_text(with_matrix, "text.yaml");
  const std::vector<scenario::Case> cases = scenario::expand(scenario, {});
  ASSERT_THAT(cases, SizeIs(4));
  PlanBoards boards;
  std::vector<int> dry_runs;
  for (const scenario::Case& one : cases) {
    CaseSpec spec;
    spec.scenario = scenario.get();
    spec.library = &library;
    spec.test_case = &one;
    spec.plans = boards.of(one.scenario);
    launch::LaunchOptions how;
    how.world_size = 2;
    how.launch = launch::Launch::thread;
    int& num = dry_runs.emplace_back(0);
    for (const verdict::RankOutcome& rank : launch::launch(how, [&](int r) { return run_case(spec, r); }).outcomes) {
      EXPECT_THAT(rank.failures, IsEmpty()) << one.id;
      EXPECT_TRUE(rank.plan_verdict.is_judged) << one.id;
      EXPECT_GT(rank.evidence.planned_in_order, 0) << one.id;
      EXPECT_GT(rank.planning.seconds, 0.0);
      EXPECT_GT(rank.planning.rank_seconds, rank.planning.seconds);
      num += rank.planning.num_dry_runs;
    }
  }
  EXPECT_THAT(dry_runs, ::testing::ElementsAre(1, 0, 1, 0));
}

TEST(PlanConditions, NameTheValuesOfACase) {
  scenario::Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  const auto scenario = library.load_text(with_matrix, "text.yaml");
  const std::vector<scenario::Case> cases = scenario::expand(scenario, {});
  CaseSpec first, second;
  first.test_case = &cases.at(0);
  second.test_case = &cases.at(1);
  EXPECT_EQ(conditions_of(first, {"seen", std::string(launch_of_case)}), "$launch\tthread\nseen\t1\n");
  EXPECT_TRUE(meets(second, conditions_of(first, {"seen"})));
  EXPECT_FALSE(meets(second, conditions_of(first, {"unseen"})));
  EXPECT_TRUE(meets(second, ""));
  first.case_folder = "case-1";
  second.case_folder = "case-2";
  EXPECT_FALSE(meets(second, conditions_of(first, {std::string(files_of_case)})));
  for (const char* damaged : {"seen", "seen\t1", "\n", "seen\n\t1\n"}) EXPECT_FALSE(meets(first, damaged)) << damaged;
  EXPECT_NE(digest_of_plan(first, 7, 0, 2), digest_of_plan(first, 7, 1, 2));
  EXPECT_NE(digest_of_plan(first, 7, 0, 2), digest_of_plan(first, 7, 0, 4));
}

TEST(PlanBoards, KeepTheBoardsOfTheLatestScenarios) {
  scenario::Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  const auto first = library.load_text(with_matrix, "text.yaml");
  PlanBoards boards;
  const std::shared_ptr<PlanBoard> board = boards.of(first);
  EXPECT_EQ(boards.of(first), board);
  std::vector<std::shared_ptr<PlanBoard>> others;
  for (int i = 0; i < 8; ++i) others.push_back(boards.of(std::make_shared<const scenario::Scenario>()));
  EXPECT_NE(boards.of(first), board);
}

// ---- digests ----
TEST(ControlDigest, DependsOnStepsAndArguments) {
  scenario::Step step;
  step.verb = scenario::Verb::forward;
  step.place = {"a.yaml", 3, 5};
  const auto digest_of = [&](const std::function<void(ControlDigest&)>& change) {
    ControlDigest digest;
    digest.enter(step);
    change(digest);
    return digest.value();
  };
  const std::uint64_t plain = digest_of([](ControlDigest&) {});
  EXPECT_EQ(digest_of([](ControlDigest&) {}), plain);
  EXPECT_NE(digest_of([&](ControlDigest& digest) { digest.enter(step); }), plain);
  const auto with = [&](const Value& value) {
    return digest_of([&](ControlDigest& digest) { digest.argument("n", value); });
  };
  EXPECT_NE(with(Value(1)), with(Value(2)));
  EXPECT_NE(with(Value("a")), with(Value("b")));
  EXPECT_NE(with(Value::list({Value(1), Value(2)})), with(Value::list({Value(2), Value(1)})));
  step.place.line = 4;
  EXPECT_NE(digest_of([](ControlDigest&) {}), plain);
}

TEST(ControlDigest, LeavesOutArgumentsThatTheDryRunDoesNotRead) {
  scenario::Step step;
  step.verb = scenario::Verb::clip_grad_norm;
  const auto digest_of = [&](const char* name, double value) {
    ControlDigest digest;
    digest.enter(step);
    digest.argument(name, Value(value));
    return digest.value();
  };
  EXPECT_EQ(digest_of("max_norm", 1), digest_of("max_norm", 2));
  EXPECT_NE(digest_of("model", 1), digest_of("model", 2));
}

TEST(ControlDigest, LeavesOutSeedsAndChecks) {
  ControlDigest digest;
  const std::uint64_t empty = digest.value();
  for (const scenario::Verb verb : {scenario::Verb::seed, scenario::Verb::expect, scenario::Verb::record}) {
    scenario::Step step;
    step.verb = verb;
    digest.enter(step);
    digest.argument("value", Value(3));
  }
  EXPECT_EQ(digest.value(), empty);
}

}  // namespace
}  // namespace lockstep::run
