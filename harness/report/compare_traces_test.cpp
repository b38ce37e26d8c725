#include "harness/report/compare_traces.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"

namespace lockstep::report {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::SizeIs;

TraceRecord record(const std::string& what, const std::string& path, const std::string& hash, int iteration = 0) {
  return {what, path, 0, iteration, 7, "float32", {2, 3}, hash};
}

RankTrace trace(int rank, std::vector<TraceRecord> records,
                const std::string& case_id = "world_size=2,launch=process,device=cpu") {
  return {"net", case_id, "", rank, 2, std::move(records)};
}

std::vector<TraceRecord> usual() {
  return {record("forward", "model.fc1", "a1"), record("forward", "model", "a2"), record("backward", "model", "a3"),
          record("gradient", "model.fc1.weight", "a4")};
}

TEST(CompareTraces, FindsNothingBetweenEqualOnes) {
  const std::vector<RankTrace> one = {trace(0, usual()), trace(1, usual())};
  const TraceComparison found = compare_traces(one, one);
  EXPECT_EQ(found.exit_code(), 0);
  EXPECT_EQ(found.num_cases, 1);
  EXPECT_EQ(found.num_records, 8u);
  EXPECT_THAT(to_text(found), HasSubstr("1 case compared, 8 records; 0 cases differ"));
}

TEST(CompareTraces, NamesTheRankThatDiffersFirst) {
  std::vector<TraceRecord> late = usual(), early = usual();
  late[3].hash = "b4";
  early[1].hash = "b2";
  early[2].hash = "b3";
  const TraceComparison found =
      compare_traces({trace(0, usual()), trace(1, usual())}, {trace(0, late), trace(1, early)});
  EXPECT_EQ(found.exit_code(), 1);
  ASSERT_THAT(found.differences, SizeIs(1));
  EXPECT_EQ(found.differences[0].rank, 1);
  EXPECT_EQ(found.differences[0].index, 1u);
  EXPECT_EQ(found.differences[0].before->path, "model");
  EXPECT_THAT(found.differences[0].also, ElementsAre(Pair(0, 3u)));
  EXPECT_THAT(to_text(found),
              AllOf(HasSubstr("net [world_size=2,launch=process,device=cpu]"),
                    HasSubstr("rank 1, record 2: iteration 0, forward of model, float32 (2, 3), line 7"),
                    HasSubstr("hash a2 and b2"), HasSubstr("1 records before it agree, of 4"),
                    HasSubstr("also rank 0 at record 4")));
  const auto json = nlohmann::json::parse(to_json(found));
  EXPECT_EQ(json["differences"][0]["rank"], 1);
  EXPECT_EQ(json["differences"][0]["after"]["hash"], "b2");
  EXPECT_EQ(json["exit_code"], 1);
}

// The list does not depend on the rank that differs first.
TEST(CompareTraces, ListsAllOtherRanksThatDiffer) {
  const auto different_from = [](std::size_t index) {
    std::vector<TraceRecord> records = usual();
    for (std::size_t i = index; i < records.size(); ++i) records[i].hash = "b";
    return records;
  };
  const std::vector<RankTrace> before = {trace(0, usual()), trace(1, usual()), trace(2, usual()), trace(3, usual())};
  std::vector<std::size_t> places = {1, 2, 3};
  do {
    const TraceComparison found =
        compare_traces(before, {trace(0, different_from(places[0])), trace(1, different_from(places[1])),
                                trace(2, different_from(places[2])), trace(3, usual())});
    ASSERT_THAT(found.differences, SizeIs(1));
    const auto first = std::find(places.begin(), places.end(), 1u) - places.begin();
    std::vector<std::pair<int, std::size_t>> others = {{0, places[0]}, {1, places[1]}, {2, places[2]}};
    others.erase(others.begin() + first);
    EXPECT_EQ(found.differences[0].rank, first);
    EXPECT_EQ(found.differences[0].also, others);
    EXPECT_THAT(to_text(found), HasSubstr(str("also rank ", others[0].first, " at record ", others[0].second + 1,
                                              ", rank ", others[1].first, " at record ", others[1].second + 1, "\n")));
    const auto json = nlohmann::json::parse(to_json(found))["differences"][0]["also"];
    ASSERT_EQ(json.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(json[i]["rank"], others[i].first);
      EXPECT_EQ(json[i]["record"], others[i].second);
    }
  } while (std::next_permutation(places.begin(), places.end()));
}

TEST(CompareTraces, ShowsARecordOfOneRunOnly) {
  std::vector<TraceRecord> other = usual(), shorter = usual();
  other[2] = record("recompute", "model.fc1", "a3");
  EXPECT_THAT(to_text(compare_traces({trace(0, usual())}, {trace(0, other)})),
              AllOf(HasSubstr("the runs did different things"),
                    HasSubstr("first:  iteration 0, backward, gradient of the output of model"),
                    HasSubstr("second: iteration 0, recompute of model.fc1")));
  shorter.pop_back();
  EXPECT_THAT(to_text(compare_traces({trace(0, usual())}, {trace(0, shorter)})),
              AllOf(HasSubstr("only the first run has it: iteration 0, gradient of model.fc1.weight"),
                    HasSubstr("3 records before it agree, of 4 and 3")));
  // A rank that is missing on one side differs at its first record.
  const TraceComparison missing = compare_traces({trace(0, usual()), trace(1, usual())}, {trace(0, usual())});
  ASSERT_THAT(missing.differences, SizeIs(1));
  EXPECT_EQ(missing.differences[0].rank, 1);
  EXPECT_EQ(missing.differences[0].index, 0u);
}

TEST(CompareTraces, IgnoresLineNumbers) {
  std::vector<TraceRecord> moved = usual();
  for (TraceRecord& one : moved) one.line += 3;
  EXPECT_EQ(compare_traces({trace(0, usual())}, {trace(0, moved)}).exit_code(), 0);
}

TEST(CompareTraces, PairsCasesAcrossLaunchesAndDevices) {
  std::vector<TraceRecord> changed = usual();
  changed[0].hash = "b1";
  const RankTrace process = trace(0, usual());
  const RankTrace thread = trace(0, usual(), "world_size=2,launch=thread,device=cpu");
  const RankTrace sim = trace(0, changed, "world_size=2,launch=thread,device=sim");
  const RankTrace larger = trace(0, usual(), "world_size=4,launch=process,device=cpu");
  EXPECT_EQ(compare_traces({process}, {thread}).exit_code(), 0);
  EXPECT_EQ(compare_traces({process}, {sim}).exit_code(), 1);
  // A case with the same launch is preferred to one with another.
  EXPECT_EQ(compare_traces({process, thread}, {sim, thread, process}).exit_code(), 0);
  EXPECT_THAT(compare_traces({process}, {sim, process}).extra,
              ElementsAre("net [world_size=2,launch=thread,device=sim]"));
  const TraceComparison gone = compare_traces({process, larger}, {process});
  EXPECT_THAT(gone.unpaired, ElementsAre("net [world_size=4,launch=process,device=cpu]"));
  EXPECT_EQ(gone.exit_code(), 1);
  EXPECT_THROW(compare_traces({larger}, {process}), Error);  // without a record to compare there is no agreement
}

std::string error_of(const std::string& text) {
  try {
    parse_trace(text, "x.jsonl");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ReadTraces, ReadsTracesAndRefusesOtherFiles) {
  const std::string head =
      "{\"kind\":\"trace\",\"scenario\":\"net\",\"case\":\"world_size=1\",\"stage\":\"save\",\"rank\":0,\"world_size\":"
      "1}\n";
  const std::string line =
      "{\"what\":\"forward\",\"path\":\"m\",\"part\":1,\"iteration\":-1,\"line\":3,\"type\":\"float64\",\"sizes\":[],"
      "\"hash\":\"00ff\"}\n";
  const std::string end = "{\"kind\":\"end\",\"records\":1}\n";
  const RankTrace read = parse_trace(head + line + end, "x.jsonl");
  EXPECT_EQ(read.scenario, "net");
  EXPECT_EQ(read.stage, "save");
  ASSERT_THAT(read.records, SizeIs(1));
  EXPECT_EQ(read.records[0].hash, "00ff");
  EXPECT_EQ(read.records[0].part, 1);
  EXPECT_THAT(error_of(head + line), HasSubstr("is cut short after 2 lines"));
  EXPECT_THAT(error_of(head + end), HasSubstr("records are missing"));
  EXPECT_THAT(error_of(line + end), HasSubstr("x.jsonl:1"));
  EXPECT_THAT(error_of(head + "{" + line + end), HasSubstr("x.jsonl:2"));
  EXPECT_THAT(error_of(head + "{\"hash\":\"0\"," + line.substr(1) + end),
              HasSubstr("x.jsonl:2: this is not a trace of bits: an object has the key 'hash' twice"));
}

TEST(ReadTraces, IgnoresOtherFilesAndSortsByNumber) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / str("lockstep_traces_", ::getpid());
  fs::remove_all(folder);
  clear_traces(folder.string());  // creates it
  EXPECT_THROW(read_traces(folder.string()), Error);
  const auto put = [&](const std::string& name, const std::string& scenario) {
    std::ofstream(folder / name) << str("{\"kind\":\"trace\",\"scenario\":\"", scenario,
                                        "\",\"case\":\"\",\"stage\":\"\",\"rank\":0,\"world_size\":1}\n"
                                        "{\"kind\":\"end\",\"records\":0}\n");
  };
  put("case-10.stage-0.rank-0.jsonl", "ten");
  put("case-2.stage-0.rank-0.jsonl", "two");
  std::ofstream(folder / "notes.txt") << "mine";
  const std::vector<RankTrace> traces = read_traces(folder.string());
  ASSERT_THAT(traces, SizeIs(2));
  EXPECT_EQ(traces[0].scenario, "two");
  EXPECT_EQ(traces[1].scenario, "ten");
  clear_traces(folder.string());
  EXPECT_TRUE(fs::exists(folder / "notes.txt"));
  EXPECT_THROW(read_traces(folder.string()), Error);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::report
