#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/core/text.hpp"
#include "harness/report/results_file.hpp"
#include "harness/report/results_test_support.hpp"

namespace lockstep::report {
namespace {

using namespace testing_support;
using testing::HasSubstr;
using verdict::CaseResult;
using verdict::Status;

TEST(JsonLine, HasTheFieldsOfACaseInTheirOrder) {
  EXPECT_EQ(
      json_line(full_case()),
      R"({"kind":"case","scenario":"replicate/single_module","case":"world_size=2,launch=process,device=cpu",)"
      R"("mirrors":16,"params":{"zeta":true,"alpha":[1,0.1]},"world_size":2,"launch":"process","device":"cpu",)"
      R"("status":"FAIL","seconds":0.021,"evidence":{"comparisons":12,"conditions":6,"trivial":1,"elements":340,"same_bits":11,)"
      R"("bits_required":10,"max_abs_difference":0.0,"loosest":{"rtol":1.3e-06,"atol":1e-05},)"
      R"("collectives_checked":4,"orders_checked":2,"errors_expected":3,"planned_in_order":17},)"
      R"("collectives":[{"family":"data_parallel","operation":"all_reduce","axis":"dp","group_size":2,)"
      R"("phase":"backward","count":2,"bytes":176},{"family":"user","operation":"send","axis":"","group_size":2,)"
      R"("phase":"other","count":1,"bytes":8,"rank":1,"stage":"load"}],)"
      R"("plan":[{"family":"data_parallel","operation":"all_reduce","axis":"dp","group_size":2,"phase":"backward",)"
      R"("planned":2,"planned_bytes":170,"bytes_are_least":true,"observed":2,"observed_bytes":176,)"
      R"("stage":"load"}],)"
      R"("memory":{"parameter":96,"other":5,"peak_total":1024},"records":{"losses":[[1.5,2.5],[0.1]]},)"
      R"("failure":{"check":"expect_equal","file":"scenarios/replicate/single_module.yaml","line":9,"column":5,)"
      R"("rank":1,"iteration":null,"message":"1 of 2 elements\n  \"quoted\"",)"
      R"("scenario_line":31,"source":["  - expect_equal:","      actual: a"],"also":["rank 0: other"]},)"
      R"("repro":"lockstep run replicate/single_module --case 'world_size=2'"})");
}

TEST(JsonLine, HasTheFieldsOfRunAndSummary) {
  EXPECT_EQ(json_line(run_info()),
            R"({"kind":"run","schema":1,"version":"0.1.0","started":"2026-01-02T03:04:05Z",)"
            R"("command":["lockstep","run","a b"],"build":{"compiler":"GNU 12","kokkos":"3.4.1"},)"
            R"("machine":{"cores":2,"cpu":"some processor","memory":8000000000}})");
  EXPECT_EQ(json_line(verdict::Summary{{{"PASS", 3}, {"FAIL", 1}}, 1.5, 1}),
            R"({"kind":"summary","counts":{"FAIL":1,"PASS":3},"seconds":1.5,"exit_code":1})");
}

TEST(JsonLine, GivesTheReasonWhyAPlanWasNotJudged) {
  CaseResult row = full_case();
  row.plan_verdict = {true, ""};
  EXPECT_EQ(json_line(row), json_line(full_case()));
  row.plan_verdict = {false, "ended early: rank 1"};
  EXPECT_THAT(json_line(row),
              HasSubstr(R"("plan":{"judged":false,"reason":"ended early: rank 1","collectives":[{"fam)"));
  row.plan.clear();
  EXPECT_THAT(json_line(row), HasSubstr(R"("plan":{"judged":false,"reason":"ended early: rank 1"},"memory")"));
  row.plan_verdict = {true, ""};
  EXPECT_THAT(json_line(row), HasSubstr(R"("plan":{"judged":true},"memory")"));

  verdict::Summary summary;
  summary.num_plans_judged = 3;
  summary.plans_not_judged = {{"unplanned", 1}, {"ended early", 2}};
  EXPECT_THAT(json_line(summary),
              HasSubstr(R"("exit_code":0,"plan":{"judged":3,"not_judged":{"ended early":2,"unplanned":1}}})"));
}

TEST(JsonLine, GivesAReasonOnlyWhereThereIsOne) {
  CaseResult row = full_case();
  EXPECT_THAT(json_line(row), Not(HasSubstr("\"reason\"")));
  row.status = Status::SKIP;
  row.reason = "needs 4 ranks";
  row.failure.reset();
  row.mirrors.reset();
  EXPECT_THAT(json_line(row), HasSubstr(R"("status":"SKIP","reason":"needs 4 ranks","seconds":)"));
  EXPECT_THAT(json_line(row), HasSubstr(R"("mirrors":null)"));
  EXPECT_THAT(json_line(row), Not(HasSubstr("\"failure\"")));
}

TEST(JsonLine, NamesATimelineOnlyWhereThereIsOne) {
  CaseResult row = full_case();
  EXPECT_THAT(json_line(row), Not(HasSubstr("\"timeline\"")));
  row.timeline = "when/timeline-3.json";
  EXPECT_THAT(json_line(row), HasSubstr(R"("timeline":"when/timeline-3.json","repro":)"));
  const std::string text = str(json_line(run_info()), "\n", json_line(row), "\n");
  EXPECT_EQ(parse_results(text, "r.jsonl").cases.at(0).timeline, "when/timeline-3.json");
}

TEST(JsonLine, NamesAnOrderOfSumsOtherThanTheFixedOne) {
  CaseResult row = full_case();
  EXPECT_THAT(json_line(row), Not(HasSubstr("sum_order")));
  EXPECT_THAT(json_line(row), Not(HasSubstr("bits_relaxed")));
  row.sum_order = "library";
  row.evidence.bits_relaxed = 3;
  EXPECT_THAT(json_line(row), HasSubstr(R"("sum_order":"library","status":)"));
  const std::string text = str(json_line(run_info()), "\n", json_line(row), "\n");
  const CaseResult read = parse_results(text, "r.jsonl").cases.at(0);
  EXPECT_EQ(read.sum_order, "library");
  EXPECT_EQ(read.evidence.bits_relaxed, 3);
}

TEST(JsonLine, IsOneLineOfJsonForHostileContent) {
  CaseResult row = full_case();
  row.scenario = std::string("a\"\\\n\r\t\x01\x7f\xff\xc0\xaf\0end", 15);
  row.params = {{"x\n", "{\n\"a\":\r\n1}"}, {"y", "not json"}, {"z", ""}};
  row.records["r"] = {"[1,\n2]", "nan"};
  const std::string line = json_line(row);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["params"]["y"], "not json");
  EXPECT_EQ(json["params"]["x\n"]["a"], 1);
  EXPECT_EQ(json["records"]["r"][0], nlohmann::json::parse("[1,2]"));
  EXPECT_EQ(json["records"]["r"][1], "nan");
}

TEST(JsonNumber, ReadsBackToTheSameBits) {
  std::mt19937_64 generator(11);
  for (int i = 0; i < 20000; ++i) {
    const double value = std::bit_cast<double>(generator());
    if (!std::isfinite(value)) continue;
    const double back = nlohmann::json::parse(json_number(value)).get<double>();
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(value)) << json_number(value);
  }
  EXPECT_EQ(json_number(-0.0), "-0.0");
  EXPECT_EQ(json_number(1.0), "1.0");
  EXPECT_EQ(json_number(1e300), "1e+300");
  EXPECT_EQ(json_number(std::nan("")), "\"nan\"");
  EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), "\"-inf\"");
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "\"inf\"");
}

}  // namespace
}  // namespace lockstep::report
