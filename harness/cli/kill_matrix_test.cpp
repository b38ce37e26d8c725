#include "harness/cli/kill_matrix.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using scenario::Case;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

// A sum over two ranks, which the defect sum_leaves_out_rank makes wrong.
constexpr const char* summing =
    "ranks: {world_size: [2], launch: [thread]}\nsteps:\n  - let: {x: \"full([2], rank + 1)\"}\n"
    "  - all_reduce: {tensor: x, op: sum}\n  - expect_equal: [x, 3]\n";

class KillMatrix : public testing::Test {
 protected:
  Ended run(const std::vector<Case>& cases, KillMatrixOptions options) {
    return in_child([&] { return kill_matrix(library_, cases, options); });
  }
  void add(const std::string& name, const std::string& text) {
    for (Case& one : cases_of_text(library_, text, name)) cases_.push_back(std::move(one));
  }
  static KillMatrixOptions only(const std::string& defect) {
    KillMatrixOptions options;
    options.defects = {defect};
    return options;
  }

  Home home_;
  scenario::Library library_{home_.scenarios()};
  std::vector<Case> cases_;
};

TEST_F(KillMatrix, ReportsACaughtDefect) {
  add("sums", summing);
  KillMatrixOptions options = only("sum_leaves_out_rank");
  options.results_file = home_ / "defects.jsonl";
  const Ended ended = run(cases_, options);
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("caught   sum_leaves_out_rank"));
  EXPECT_THAT(ended.out,
              HasSubstr("value    1 check of its kind and 0 others in 1 case; first: sums (expect_equal)\n"));
  EXPECT_THAT(ended.out, HasSubstr("1 of 1 defect caught; the run of 1 case without a defect is clean\n"));
  EXPECT_EQ(content_of(options.results_file),
            "{\"kind\":\"defect\",\"name\":\"sum_leaves_out_rank\",\"place\":\"engine/comm\","
            "\"caught_by\":[{\"scenario\":\"sums\",\"check\":\"expect_equal\",\"case\":\"world_size=2,launch=thread,"
            "device=cpu\"}]}\n");
}

TEST_F(KillMatrix, ReportsADefectThatNoCaseSees) {
  add("alone", passes);
  const Ended ended = run(cases_, only("sum_leaves_out_rank"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("MISSED   sum_leaves_out_rank"));
  EXPECT_THAT(ended.out, HasSubstr("0 checks of its kind and 0 others in 1 case; 0 cases reach its point\n"));
  EXPECT_THAT(ended.out, HasSubstr("0 of 1 defect caught; the run of 0 cases without a defect is clean\n"));
}

TEST_F(KillMatrix, RunsTheCasesFirstThatReachADefect) {
  for (const char* name : {"a", "b", "c", "d"}) add(name, passes);
  add("e", summing);
  // No case reaches the first defect, so all run under it, and the matrix learns which one reaches the second.
  KillMatrixOptions options;
  options.defects = {"replicate_no_division", "sum_leaves_out_rank"};
  const Ended ended = run(cases_, options);
  EXPECT_THAT(ended.out, HasSubstr("0 checks of its kind and 0 others in 5 cases; 0 cases reach its point\n"));
  EXPECT_THAT(ended.out, HasSubstr("1 check of its kind and 0 others in 2 cases; first: e (expect_equal)\n"));
}

TEST_F(KillMatrix, RunsFirstWhatCaughtADefectInAnEarlierRun) {
  for (const char* name : {"a", "b", "c"}) add(name, passes);
  add("e", summing);
  KillMatrixOptions earlier = only("sum_leaves_out_rank");
  earlier.results_file = home_ / "defects.jsonl";
  EXPECT_THAT(run(cases_, earlier).out, HasSubstr("0 others in 4 cases; first: e (expect_equal)\n"));
  KillMatrixOptions later = only("sum_leaves_out_rank");
  later.earlier_results = later.results_file = earlier.results_file;
  EXPECT_THAT(run(cases_, later).out, HasSubstr("0 others in 1 case; first: e (expect_equal)\n"));
}

TEST_F(KillMatrix, RunsAllCasesIfWhatCaughtBeforeIsGoneOrCatchesNoMore) {
  add("alone", passes);
  add("sums", summing);
  KillMatrixOptions options = only("sum_leaves_out_rank");
  options.earlier_results = home_ / "earlier.jsonl";
  std::ofstream(options.earlier_results)
      << R"({"name":"sum_leaves_out_rank","caught_by":[{"scenario":"gone","case":"x"},)"
      << R"({"scenario":"alone","case":")" << cases_.front().id << "\"}]}\n";
  const Ended ended = run(cases_, options);
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("first: sums (expect_equal)\n"));
}

TEST_F(KillMatrix, RefusesAnEarlierFileThatIsNone) {
  KillMatrixOptions options;
  options.earlier_results = home_ / "none.jsonl";
  EXPECT_THAT([&] { kill_matrix(library_, {}, options); }, ThrowsMessage<Error>(HasSubstr("cannot read")));
  std::ofstream(options.earlier_results) << "{\"name\":\"sum_leaves_out_rank\"}\n";
  EXPECT_THAT([&] { kill_matrix(library_, {}, options); },
              ThrowsMessage<Error>(HasSubstr("none.jsonl:1 is no line of a results file of kill-matrix")));
}

TEST_F(KillMatrix, MissesADefectThatOnlyACheckOfAnotherKindSees) {
  add("counts",
      "ranks: {world_size: [2], launch: [thread]}\nsteps:\n  - let: {x: \"full([2], rank + 1)\"}\n"
      "  - {all_reduce: {tensor: x, op: sum}, when: \"rank >= 0\"}\n"
      "  - {expect_equal: [x, 3], raises: {message: elements}}\n");
  const Ended ended = run(cases_, only("replicate_bucket_not_sent"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("MISSED   replicate_bucket_not_sent"));
}

TEST_F(KillMatrix, MissesEveryDefectWithoutACase) {
  add("skipped", is_skipped);
  const Ended ended = run(cases_, only("sum_leaves_out_rank"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.out, HasSubstr("0 checks of its kind and 0 others in 0 cases; 0 cases reach its point\n"));
}

TEST_F(KillMatrix, FailsWhenACatcherFailsWithoutTheDefect) {
  add("broken", fails);
  KillMatrixOptions options = only("sum_leaves_out_rank");
  options.results_file = home_ / "defects.jsonl";
  for (const bool caught_before : {false, true}) {
    if (caught_before) options.earlier_results = options.results_file;
    const Ended ended = run(cases_, options);
    EXPECT_EQ(ended.code, 1) << caught_before;
    EXPECT_THAT(ended.out, HasSubstr("caught   sum_leaves_out_rank"));
    EXPECT_THAT(ended.out, HasSubstr("without a defect: FAIL broken [world_size=1,launch=thread,device=cpu]: "));
    EXPECT_THAT(ended.out, HasSubstr("1 of 1 defect caught; the run of 1 case without a defect is NOT clean\n"));
  }
}

TEST_F(KillMatrix, StopsAfterTheFirstCatchUnlessAllCasesAreAsked) {
  add("a", summing);
  add("b", summing);
  add("c", summing);
  // The row after the first catch ends the run.
  EXPECT_THAT(run(cases_, only("sum_leaves_out_rank")).out, HasSubstr("2 checks of its kind and 0 others in 2 cases;"));
  KillMatrixOptions all = only("sum_leaves_out_rank");
  all.all = true;
  const Ended ended = run(cases_, all);
  EXPECT_THAT(ended.out, HasSubstr("3 checks of its kind and 0 others in 3 cases; first: a (expect_equal)\n"));
  EXPECT_THAT(ended.out, HasSubstr("the run of 3 cases without a defect is clean\n"));
}

TEST_F(KillMatrix, RefusesAnUnknownDefect) {
  try {
    kill_matrix(library_, cases_, only("no_such_defect"));
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown defect `no_such_defect`"));
  }
}

TEST_F(KillMatrix, RefusesAResultsFileThatCannotBeOpened) {
  KillMatrixOptions options;
  options.results_file = home_ / "none/defects.jsonl";
  try {
    kill_matrix(library_, {}, options);
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot write " + options.results_file));
  }
}

}  // namespace
}  // namespace lockstep::cli
