#include "harness/report/results_file.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/report/results_test_support.hpp"

namespace lockstep::report {
namespace {

using namespace testing_support;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using verdict::CaseResult;
using verdict::Status;

TEST(ResultsFile, ReadsWhetherAPlanWasJudged) {
  const auto read_back = [](const CaseResult& row) {
    verdict::Summary summary;
    summary.num_plans_judged = 3;
    summary.plans_not_judged = {{"unplanned", 1}};
    summary.planning = {0.25, 8.0, 7};
    const ResultsFile file =
        parse_results(str(json_line(run_info()), "\n", json_line(row), "\n", json_line(summary), "\n"), "r.jsonl");
    EXPECT_EQ(file.summary->num_plans_judged, 3);
    EXPECT_EQ(file.summary->plans_not_judged, summary.plans_not_judged);
    EXPECT_EQ(file.summary->planning.seconds, 0.25);
    EXPECT_EQ(file.summary->planning.rank_seconds, 8.0);
    EXPECT_EQ(file.summary->planning.num_dry_runs, 7);
    return file.cases.at(0);
  };
  CaseResult row = full_case();
  EXPECT_TRUE(read_back(row).plan_verdict->is_judged);
  EXPECT_EQ(read_back(row).plan.size(), 1u);
  row.plan_verdict = {false, "ended early: rank 1"};
  EXPECT_FALSE(read_back(row).plan_verdict->is_judged);
  EXPECT_EQ(read_back(row).plan_verdict->reason, "ended early: rank 1");
  EXPECT_EQ(read_back(row).plan.size(), 1u);
  row.plan.clear();
  EXPECT_EQ(read_back(row).plan.size(), 0u);
  row.plan_verdict.reset();
  EXPECT_FALSE(read_back(row).plan_verdict.has_value());
}

TEST(ResultsFile, WritesAndReadsBackTheSameLines) {
  const Folder folder;
  const std::string path = folder / "deep/er/results.jsonl";
  CaseResult second = full_case();
  second.case_id = "other";
  second.status = Status::XFAIL;
  second.reason = "known";
  second.evidence.max_abs_difference = std::nan("");
  second.evidence.loosest.of_largest = 0.125;
  second.seconds = std::numeric_limits<double>::infinity();
  second.stage_memory = {{"save", {{"parameter", 3}}}, {"load", {}}};
  second.params = {{"zero", "-0.0"}, {"text", "\"b\""}};
  {
    ResultsWriter writer(path);
    writer.write(run_info());
    writer.write(full_case());
    writer.write(second);
    writer.write(verdict::Summary{{{"FAIL", 1}, {"XFAIL", 1}}, 0.25, 1});
  }
  const ResultsFile file = read_results(path);
  EXPECT_THAT(file.warnings, IsEmpty());
  ASSERT_EQ(file.cases.size(), 2u);
  ASSERT_TRUE(file.summary.has_value());
  EXPECT_EQ(json_line(file.run), json_line(run_info()));
  EXPECT_EQ(json_line(file.cases[0]), json_line(full_case()));
  EXPECT_EQ(json_line(file.cases[1]), json_line(second));
  EXPECT_EQ(file.summary->exit_code, 1);
  EXPECT_EQ(file.summary->counts.at("XFAIL"), 1);
  EXPECT_TRUE(std::isnan(file.cases[1].evidence.max_abs_difference));
  EXPECT_EQ(file.cases[0].failure->iteration, -1);
  EXPECT_EQ(file.run.machine.at("cores"), "2");
}

TEST(ResultsFile, ReadsAnOlderRowWithConditionsAmongTheComparisons) {
  const std::string head = json_line(run_info()) + "\n";
  std::string line = json_line(full_case());
  EXPECT_TRUE(parse_results(head + line + "\n", "r.jsonl").cases.at(0).evidence.conditions_apart);
  const std::string field = "\"conditions\":6,";
  line.erase(line.find(field), field.size());
  const ResultsFile file = parse_results(head + line + "\n", "r.jsonl");
  ASSERT_EQ(file.cases.size(), 1u);
  EXPECT_FALSE(file.cases[0].evidence.conditions_apart);
  EXPECT_EQ(file.cases[0].evidence.conditions, 0);
  EXPECT_EQ(file.cases[0].evidence.comparisons, 12);
}

TEST(ResultsFile, WarnsAboutALastLineThatIsCutOff) {
  const std::string whole = json_line(run_info()) + "\n" + json_line(full_case()) + "\n";
  const std::string cut = json_line(full_case());
  for (const std::size_t length : {std::size_t{1}, cut.size() / 2, cut.size() - 1}) {
    const ResultsFile file = parse_results(whole + cut.substr(0, length), "r.jsonl");
    EXPECT_EQ(file.cases.size(), 1u);
    EXPECT_THAT(file.warnings, ElementsAre("r.jsonl:3: the last line is cut off; the 1 results before it are kept",
                                           "r.jsonl has no summary: the run was cut short"));
  }
  // A last line that lacks only its newline counts.
  EXPECT_EQ(parse_results(whole + cut, "r.jsonl").cases.size(), 2u);
}

std::string refusal(const std::string& text) {
  try {
    parse_results(text, "r.jsonl");
  } catch (const Error& error) {
    return error.message();
  }
  return "nothing was refused";
}

std::string with_case(const std::string& from, const std::string& to) {
  std::string line = json_line(full_case());
  const std::size_t at = line.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  line.replace(at, from.size(), to);
  return json_line(run_info()) + "\n" + line + "\n";
}

TEST(ResultsFile, RefusesOtherFiles) {
  EXPECT_EQ(refusal(""), "r.jsonl is empty");
  EXPECT_EQ(refusal("\n \n"), "r.jsonl is empty");
  EXPECT_EQ(refusal("scenario: a\n"), "r.jsonl:1: this is not JSON");
  EXPECT_EQ(refusal("{\"kind\":"), "r.jsonl:1: this is not JSON");
  EXPECT_EQ(refusal("[1]\n"), "r.jsonl:1: a line should be a JSON object, not array");
  EXPECT_EQ(refusal("{}\n"), "r.jsonl:1: the field 'kind' is missing");
  EXPECT_EQ(refusal("{\"kind\":3}\n"), "r.jsonl:1: 'kind' should be a text, not number");
  EXPECT_EQ(refusal("{\"kind\":\"defect\"}\n"), "r.jsonl:1: the first line should be of kind 'run', not 'defect'");
  EXPECT_EQ(refusal(std::string("\0\0\0\n", 4)), "r.jsonl:1: this is not JSON");
  EXPECT_EQ(refusal("{\"kind\":\"\xff\"}\n"), "r.jsonl:1: this is not JSON");
  const std::string run = json_line(run_info()) + "\n";
  EXPECT_EQ(refusal(run + "broken\n" + json_line(full_case()) + "\n"), "r.jsonl:2: this is not JSON");
  EXPECT_EQ(refusal(run + run), "r.jsonl:2: a second run begins here, but a results file holds one run");
  EXPECT_EQ(refusal(run + "{\"kind\":\"bench\"}\n"), "r.jsonl:2: a results file has no lines of kind 'bench'");
  EXPECT_EQ(refusal(run + json_line(verdict::Summary{}) + "\n" + json_line(full_case()) + "\n"),
            "r.jsonl:3: a line follows the summary");
}

// Of two entries with the same key, a parser keeps one.
TEST(ResultsFile, RefusesAKeyThatAnObjectHasTwice) {
  EXPECT_EQ(refusal(with_case("\"status\":\"FAIL\"", "\"status\":\"FAIL\",\"status\":\"PASS\"")),
            "r.jsonl:2: an object has the key 'status' twice");
  EXPECT_EQ(refusal(with_case("\"count\":2", "\"count\":2,\"\\u0063ount\":3")),
            "r.jsonl:2: an object has the key 'count' twice");
  // Two objects may have the same keys.
  EXPECT_EQ(refusal(with_case("\"seconds\":", "\"later\":[{\"a\":{\"a\":1}},{\"a\":2}],\"seconds\":")),
            "nothing was refused");
}

TEST(ResultsFile, RefusesWrongTypesAndMissingFields) {
  EXPECT_EQ(refusal("{\"kind\":\"run\",\"schema\":2}\n"),
            "r.jsonl:1: the file has schema 2, but this program reads schema 1");
  EXPECT_EQ(refusal(with_case("\"scenario\":\"replicate/single_module\",", "")),
            "r.jsonl:2: the field 'scenario' is missing");
  EXPECT_EQ(refusal(with_case("\"world_size\":2", "\"world_size\":\"2\"")),
            "r.jsonl:2: 'world_size' should be an integer, not string");
  EXPECT_EQ(refusal(with_case("\"world_size\":2", "\"world_size\":2.5")),
            "r.jsonl:2: 'world_size' should be an integer, not number");
  EXPECT_EQ(refusal(with_case("\"world_size\":2", "\"world_size\":99999999999")),
            "r.jsonl:2: 'world_size' is out of range: 99999999999");
  EXPECT_EQ(refusal(with_case("\"count\":2", "\"count\":18446744073709551615")),
            "r.jsonl:2: 'count' does not fit in 64 bits");
  EXPECT_EQ(refusal(with_case("\"seconds\":0.021", "\"seconds\":\"fast\"")),
            "r.jsonl:2: 'seconds' should be a number, not string");
  EXPECT_THAT(refusal(with_case("\"status\":\"FAIL\"", "\"status\":\"GREEN\"")),
              HasSubstr("r.jsonl:2: no verdict is named 'GREEN'"));
  EXPECT_EQ(refusal(with_case("[{\"family\"", "[3,{\"family\"")),
            "r.jsonl:2: 'collectives' should be an object, not number");
  EXPECT_EQ(refusal(with_case("\"memory\":{", "\"memory\":[],\"m\":{")),
            "r.jsonl:2: 'memory' should be an object, not array");
  EXPECT_EQ(refusal(with_case("\"losses\":[[1.5,2.5],[0.1]]", "\"losses\":1")),
            "r.jsonl:2: the record 'losses' should be a list with one entry per rank");
  EXPECT_EQ(refusal(with_case("\"also\":[\"rank 0: other\"]", "\"also\":[null]")),
            "r.jsonl:2: 'also' should be a text, not null");
}

TEST(ResultsFile, IgnoresUnknownFields) {
  const ResultsFile file = parse_results(with_case("\"seconds\":", "\"later\":{\"a\":[1]},\"seconds\":"), "r.jsonl");
  EXPECT_EQ(json_line(file.cases.at(0)), json_line(full_case()));
}

TEST(ResultsFile, SurvivesDeepNesting) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_EQ(refusal(deep + "\n"), "r.jsonl:1: a line should be a JSON object, not array");
}

TEST(ResultsFile, SurvivesACutAtAnyByte) {
  const std::string whole = json_line(run_info()) + "\n" + json_line(full_case()) + "\n" +
                            json_line(verdict::Summary{{{"FAIL", 1}}, 1, 1}) + "\n";
  const std::size_t first_line = whole.find('\n');
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);
    if (length < first_line) {
      EXPECT_THROW(parse_results(cut, "r.jsonl"), Error) << length;
    } else {
      EXPECT_NO_THROW(parse_results(cut, "r.jsonl")) << length;
    }
  }
}

TEST(ResultsFile, RefusesFoldersAndMissingFiles) {
  const Folder folder;
  EXPECT_THROW(read_results(folder / "none.jsonl"), Error);
  try {
    read_results(folder / "");
    FAIL() << "a folder was read";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("is a folder"));
  }
  EXPECT_THROW(ResultsWriter(folder / ""), Error);
  std::ofstream(folder / "file") << "x";
  EXPECT_THROW(ResultsWriter(folder / "file/results.jsonl"), Error);
}

}  // namespace
}  // namespace lockstep::report
