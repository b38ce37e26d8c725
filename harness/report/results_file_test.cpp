#include "harness/report/results_file.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/resources.hpp"

namespace lockstep::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using verdict::CaseResult;
using verdict::Status;

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-report-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

verdict::RunInfo run_info() {
  verdict::RunInfo run;
  run.version = "0.1.0";
  run.started = "2026-01-02T03:04:05Z";
  run.command = {"lockstep", "run", "a b"};
  run.build = {{"compiler", "GNU 12"}, {"kokkos", "3.4.1"}};
  run.machine = {{"cores", "2"}, {"cpu", "some processor"}, {"memory", "8000000000"}};
  return run;
}

CaseResult full_case() {
  CaseResult row;
  row.scenario = "replicate/single_module";
  row.case_id = "world_size=2,launch=process,device=cpu";
  row.mirrors = 16;
  row.params = {{"zeta", "true"}, {"alpha", "[1,0.1]"}};
  row.world_size = 2;
  row.launch = "process";
  row.device = "cpu";
  row.status = Status::FAIL;
  row.seconds = 0.021;
  row.evidence = verdict::Evidence{12, 1, 340, 11, 10, 0.0, {1.3e-6, 1e-5, 0}, 4, 2, 3, 17, 6};
  row.collectives = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 176, -1, ""},
                     {"user", "send", "", 2, "other", 1, 8, 1, "load"}};
  row.plan = {{"data_parallel", "all_reduce", "dp", 2, "backward", 2, 170, true, 2, 176, "load"}};
  row.memory = {{"parameter", 96}, {"peak_total", 1024}, {"other", 5}};
  row.records["losses"] = {"[1.5,2.5]", "[0.1]"};
  row.failure = verdict::Failure{};
  row.failure->check = "expect_equal";
  row.failure->file = "scenarios/replicate/single_module.yaml";
  row.failure->line = 9;
  row.failure->column = 5;
  row.failure->rank = 1;
  row.failure->message = "1 of 2 elements\n  \"quoted\"";
  row.failure->source = {"  - expect_equal:", "      actual: a"};
  row.failure->also = {"rank 0: other"};
  row.repro = "lockstep run replicate/single_module --case 'world_size=2'";
  return row;
}

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
      R"("source":["  - expect_equal:","      actual: a"],"also":["rank 0: other"]},)"
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

TEST(JsonLine, SaysWhyAPlanWasNotJudged) {
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

TEST(ResultsFile, ReadsWhetherAPlanWasJudged) {
  const auto read_back = [](const CaseResult& row) {
    verdict::Summary summary;
    summary.num_plans_judged = 3;
    summary.plans_not_judged = {{"unplanned", 1}};
    const ResultsFile file =
        parse_results(str(json_line(run_info()), "\n", json_line(row), "\n", json_line(summary), "\n"), "r.jsonl");
    EXPECT_EQ(file.summary->num_plans_judged, 3);
    EXPECT_EQ(file.summary->plans_not_judged, summary.plans_not_judged);
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

TEST(JsonLine, StaysOneLineOfJsonWithHostileContent) {
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

TEST(ResultsFile, EachLineIsThereAsSoonAsItIsWritten) {
  const Folder folder;
  const std::string path = folder / "results.jsonl";
  ResultsWriter writer(path);
  EXPECT_EQ(content_of(path), "");
  writer.write(run_info());
  EXPECT_EQ(content_of(path), json_line(run_info()) + "\n");
  writer.write(full_case());
  EXPECT_EQ(content_of(path), json_line(run_info()) + "\n" + json_line(full_case()) + "\n");
}

TEST(ResultsFile, AnOlderRowHasItsConditionsAmongTheComparisons) {
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

TEST(ResultsFile, ACutLastLineIsToldAndTheRestKept) {
  const std::string whole = json_line(run_info()) + "\n" + json_line(full_case()) + "\n";
  const std::string cut = json_line(full_case());
  for (const std::size_t length : {std::size_t{1}, cut.size() / 2, cut.size() - 1}) {
    const ResultsFile file = parse_results(whole + cut.substr(0, length), "r.jsonl");
    EXPECT_EQ(file.cases.size(), 1u);
    EXPECT_THAT(file.warnings, ElementsAre("r.jsonl:3: the last line is cut off; the 1 results before it are kept",
                                           "r.jsonl has no summary: the run did not come to its end"));
  }
  // A last line that is whole but for its newline counts.
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

TEST(ResultsFile, RefusesWhatIsNoResultsFile) {
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
  EXPECT_EQ(refusal(run + run), "r.jsonl:2: a second run begins here; a results file holds one");
  EXPECT_EQ(refusal(run + "{\"kind\":\"bench\"}\n"), "r.jsonl:2: no line of a results file is of kind 'bench'");
  EXPECT_EQ(refusal(run + json_line(verdict::Summary{}) + "\n" + json_line(full_case()) + "\n"),
            "r.jsonl:3: something follows the summary");
}

TEST(ResultsFile, RefusesWrongKindsAndMissingFields) {
  EXPECT_EQ(refusal("{\"kind\":\"run\",\"schema\":2}\n"),
            "r.jsonl:1: schema 2 is not the one this program reads, which is 1");
  EXPECT_EQ(refusal(with_case("\"scenario\":\"replicate/single_module\",", "")),
            "r.jsonl:2: the field 'scenario' is missing");
  EXPECT_EQ(refusal(with_case("\"world_size\":2", "\"world_size\":\"2\"")),
            "r.jsonl:2: 'world_size' should be an integer, not string");
  EXPECT_EQ(refusal(with_case("\"world_size\":2", "\"world_size\":2.5")),
            "r.jsonl:2: 'world_size' should be an integer, not number");
  EXPECT_EQ(refusal(with_case("\"world_size\":2", "\"world_size\":99999999999")),
            "r.jsonl:2: 'world_size' is out of range: 99999999999");
  EXPECT_EQ(refusal(with_case("\"count\":2", "\"count\":18446744073709551615")),
            "r.jsonl:2: 'count' is larger than 64 bits hold");
  EXPECT_EQ(refusal(with_case("\"seconds\":0.021", "\"seconds\":\"fast\"")),
            "r.jsonl:2: 'seconds' should be a number, not string");
  EXPECT_THAT(refusal(with_case("\"status\":\"FAIL\"", "\"status\":\"GREEN\"")),
              HasSubstr("r.jsonl:2: no verdict is named 'GREEN'"));
  EXPECT_EQ(refusal(with_case("[{\"family\"", "[3,{\"family\"")),
            "r.jsonl:2: 'collectives' should be an object, not number");
  EXPECT_EQ(refusal(with_case("\"memory\":{", "\"memory\":[],\"m\":{")),
            "r.jsonl:2: 'memory' should be an object, not array");
  EXPECT_EQ(refusal(with_case("\"losses\":[[1.5,2.5],[0.1]]", "\"losses\":1")),
            "r.jsonl:2: the record 'losses' should be a list with one entry a rank");
  EXPECT_EQ(refusal(with_case("\"also\":[\"rank 0: other\"]", "\"also\":[null]")),
            "r.jsonl:2: 'also' should be a text, not null");
}

TEST(ResultsFile, FieldsItDoesNotKnowAreLeftAlone) {
  const ResultsFile file = parse_results(with_case("\"seconds\":", "\"later\":{\"a\":[1]},\"seconds\":"), "r.jsonl");
  EXPECT_EQ(json_line(file.cases.at(0)), json_line(full_case()));
}

TEST(ResultsFile, DeepNestingIsNoDanger) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_EQ(refusal(deep + "\n"), "r.jsonl:1: a line should be a JSON object, not array");
}

TEST(ResultsFile, NoCutAnywhereCrashesTheReader) {
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

TEST(ResultsFile, RefusesFoldersAndFilesThatAreNotThere) {
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

// The process gets so much room for a file, and an error instead of a signal beyond it.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::size_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_ = SIG_DFL;
};

TEST(ResultsFile, ALineThatDoesNotFitLeavesTheOthersWhole) {
  const Folder folder;
  const std::string path = folder / "results.jsonl";
  ResultsWriter writer(path);
  writer.write(run_info());
  writer.write(full_case());
  const std::string whole = content_of(path);
  {
    const FileSizeLimit limit(whole.size() + 20);
    try {
      writer.write(full_case());
      ADD_FAILURE() << "no error came";
    } catch (const ResourceError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path));
      EXPECT_THAT(error.what(), HasSubstr("ulimit -f"));
    }
    EXPECT_EQ(content_of(path), whole);
  }
  writer.write(verdict::Summary{});
  EXPECT_EQ(content_of(path), whole + json_line(verdict::Summary{}) + "\n");
}

TEST(ResultsFile, BelongsToOneWriter) {
  const Folder folder;
  const std::string path = folder / "results.jsonl";
  {
    ResultsWriter first(path);
    first.write(run_info());
    try {
      ResultsWriter second(path);
      ADD_FAILURE() << "no error came";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("another run is writing the results file " + path));
    }
    EXPECT_EQ(content_of(path), json_line(run_info()) + "\n");
  }
  ResultsWriter next(path);
  EXPECT_EQ(content_of(path), "");
  const ResultsWriter nothing("/dev/null"), nothing_again("/dev/null");  // a device has no content to mix
}

TEST(ResultsFile, HasNoCharacterThatEndsALineForSomeReaders) {
  const Folder folder;
  const std::string path = folder / "results.jsonl";
  CaseResult row = full_case();
  row.case_id =
      "word=a\xe2\x80\xa8"
      "b\xc2\x85"
      "c";
  {
    ResultsWriter writer(path);
    writer.write(run_info());
    writer.write(row);
  }
  EXPECT_THAT(content_of(path), HasSubstr("word=a\\u2028b\\u0085c"));
  EXPECT_EQ(read_results(path).cases.front().case_id, row.case_id);
}

TEST(ResultsFile, AFullDiskIsToldNotIgnored) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  ResultsWriter writer("/dev/full");
  EXPECT_THROW(writer.write(run_info()), Error);
}

}  // namespace
}  // namespace lockstep::report
