#include "harness/report/timeline.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/core/error.hpp"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::ElementsAre;

class TimelineFile : public testing::Test {
 protected:
  TimelineFile() : folder_(fs::temp_directory_path() / str("lockstep_timeline_test_", ::getpid())) {
    fs::create_directories(folder_);
  }
  ~TimelineFile() override { fs::remove_all(folder_); }

  std::string prefix() const { return (folder_ / "timeline-1").string(); }
  fs::path piece(int stage, int rank) const {
    return folder_ / str("timeline-1.stage-", stage, ".rank-", rank, ".jsonl");
  }
  // Writes the file of a rank: a step of 1000 ns with two launches, of which the second is a collective of group 5.
  void leave(int stage, int rank, std::int64_t begin, int sequence, bool end = true) const {
    std::ofstream out(piece(stage, rank));
    out << R"({"kind":"timeline","scenario":"a/b","case":"world_size=2","stage":"","rank":)" << rank
        << R"(,"world_size":2,"purposes":["parameter","gradient"]})"
        << "\n"
        << R"({"kind":"stream","id":0,"name":"cpu/compute"})"
        << "\n"
        << R"({"kind":"launch","name":"matmul","stream":0,"issued":)" << begin + 50 << R"(,"begin":)" << begin + 100
        << R"(,"resumed":0,"end":)" << begin + 350 << R"(,"iteration":2,"line":7})"
        << "\n"
        << R"({"kind":"launch","name":"all_reduce","stream":0,"issued":)" << begin + 400 << R"(,"begin":)"
        << begin + 400 << R"(,"resumed":)" << begin + 500 << R"(,"end":)" << (end ? begin + 900 : 0)
        << R"(,"iteration":-1,"line":8,"collective":{"family":"user","phase":"backward","axis":"dp","group_size":2,)"
        << R"("group":5,"sequence":)" << sequence << R"(,"bytes":64,"owner":"net.fc1"}})"
        << "\n"
        << R"({"kind":"span","what":"step","name":"forward","begin":)" << begin << R"(,"end":)" << begin + 1000
        << R"(,"iteration":-1,"line":7})"
        << "\n"
        << R"({"kind":"memory","time":)" << begin + 10 << R"(,"bytes":[128,64]})"
        << "\n"
        << R"({"kind":"bound","of":"seen","purposes":["gradient"],"begin":)" << begin << R"(,"end":)" << begin + 1000
        << R"(,"bytes":100,"peak":64,"line":9,"text":"seen.peak_bytes <= 100"})"
        << "\n";
    if (end)
      out << R"({"kind":"end","launches_dropped":)" << rank << R"(,"spans_dropped":0})"
          << "\n";
  }
  Json joined(const std::vector<int>& world_sizes) const {
    const std::string file = join_timeline(prefix(), world_sizes);
    EXPECT_EQ(file, prefix() + ".json");
    std::ifstream in(file);
    return Json::parse(in);
  }
  static std::vector<Json> of_phase(const Json& trace, const std::string& phase) {
    std::vector<Json> found;
    for (const Json& event : trace["traceEvents"])
      if (event["ph"] == phase) found.push_back(event);
    return found;
  }

  fs::path folder_;
};

TEST_F(TimelineFile, GivesBoxesWithRankStreamAndMicroseconds) {
  leave(0, 0, 1'000'000, 4);
  leave(0, 1, 1'002'500, 4);
  const Json trace = joined({2});
  const std::vector<Json> boxes = of_phase(trace, "X");
  ASSERT_EQ(boxes.size(), 6u);
  const Json& matmul = boxes[1];
  EXPECT_EQ(matmul["name"], "matmul");
  EXPECT_EQ(matmul["cat"], "launch");
  EXPECT_EQ(matmul["pid"], 0);
  EXPECT_EQ(matmul["tid"], 1);
  EXPECT_DOUBLE_EQ(matmul["ts"].get<double>(), 0.1);
  EXPECT_DOUBLE_EQ(matmul["dur"].get<double>(), 0.25);
  EXPECT_DOUBLE_EQ(matmul["args"]["waited"].get<double>(), 0.05);
  EXPECT_EQ(matmul["args"]["iteration"], 2);
  const Json& collective = boxes[5];
  EXPECT_EQ(collective["cat"], "collective");
  EXPECT_EQ(collective["pid"], 1);
  EXPECT_DOUBLE_EQ(collective["ts"].get<double>(), 2.9);
  EXPECT_DOUBLE_EQ(collective["args"]["resumed"].get<double>(), 3.0);
  EXPECT_EQ(collective["args"]["owner"], "net.fc1");
  EXPECT_EQ(collective["args"]["phase"], "backward");
  EXPECT_FALSE(collective["args"].contains("iteration"));
  EXPECT_EQ(boxes[0]["tid"], 0);
  EXPECT_EQ(boxes[0]["cat"], "step");
  const std::vector<Json> memory = of_phase(trace, "C");
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0]["args"]["gradient"], 64);
  EXPECT_EQ(trace["otherData"]["num_dropped"], 1);
  ASSERT_EQ(trace["otherData"]["bounds"].size(), 2u);
  EXPECT_EQ(trace["otherData"]["bounds"][1]["bytes"], 100);
  EXPECT_DOUBLE_EQ(trace["otherData"]["bounds"][1]["begin"].get<double>(), 2.5);
  EXPECT_FALSE(fs::exists(piece(0, 0))) << "what the ranks left is in the one file now";
}

// Boxes of a row do not overlap.
TEST_F(TimelineFile, DrawsALaunchFromTheEndOfTheOneBefore) {
  leave(0, 0, 1'000'000, 4);
  leave(1, 0, 1'000'700, 5);
  std::vector<Json> products;
  for (const Json& box : of_phase(joined({1, 1}), "X"))
    if (box["name"] == "matmul") products.push_back(box);
  ASSERT_EQ(products.size(), 2u);
  EXPECT_FALSE(products[0]["args"].contains("began"));
  EXPECT_DOUBLE_EQ(products[1]["ts"].get<double>(), 0.9);
  EXPECT_DOUBLE_EQ(products[1]["dur"].get<double>(), 0.15);
  EXPECT_DOUBLE_EQ(products[1]["args"]["began"].get<double>(), 0.8);
}

TEST_F(TimelineFile, JoinsCollectivesAcrossRanksInOrderOfTime) {
  leave(0, 0, 9'000'000, 4);
  leave(0, 1, 8'000'000, 4);
  const Json trace = joined({2});
  const std::vector<Json> starts = of_phase(trace, "s"), ends = of_phase(trace, "f");
  ASSERT_EQ(starts.size(), 1u);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(starts[0]["pid"], 1);
  EXPECT_EQ(ends[0]["pid"], 0);
  EXPECT_EQ(ends[0]["bp"], "e");
  EXPECT_EQ(starts[0]["id"], ends[0]["id"]);
  EXPECT_EQ(starts[0]["name"], "all_reduce");
}

TEST_F(TimelineFile, KeepsOtherSequencesAndStagesApart) {
  leave(0, 0, 1'000'000, 4);
  leave(0, 1, 1'000'000, 5);
  leave(1, 0, 2'000'000, 5);
  leave(1, 1, 2'000'000, 5);
  const Json trace = joined({2, 2});
  const std::vector<Json> starts = of_phase(trace, "s");
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_DOUBLE_EQ(starts[0]["ts"].get<double>(), 1000.4);
  EXPECT_EQ(of_phase(trace, "X").size(), 12u);
}

TEST_F(TimelineFile, KeepsTheRowOfAStreamThatStagesNumberDifferently) {
  leave(0, 0, 1'000'000, 4);
  leave(1, 0, 2'000'000, 5);
  // In the second stage the stream is the second one, after a stream that the first stage does not have.
  std::ifstream in(piece(1, 0));
  std::string text((std::istreambuf_iterator<char>(in)), {});
  for (std::size_t at = 0; (at = text.find(R"("stream":0)", at)) != std::string::npos;)
    text.replace(at, 10, R"("stream":1)");
  const std::string own = R"({"kind":"stream","id":0,"name":"cpu/compute"})";
  text.replace(text.find(own), own.size(),
               R"({"kind":"stream","id":0,"name":"cpu/copy_in"})"
               "\n"
               R"({"kind":"stream","id":1,"name":"cpu/compute"})");
  in.close();
  std::ofstream(piece(1, 0)) << text;
  const Json trace = joined({1, 1});
  std::map<std::int64_t, std::string> names;
  for (const Json& event : of_phase(trace, "M"))
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  EXPECT_EQ(names.at(1), "cpu/compute");
  EXPECT_EQ(names.at(2), "cpu/copy_in");
  for (const Json& box : of_phase(trace, "X")) EXPECT_EQ(box["tid"], box["cat"] == "step" ? 0 : 1) << box;
}

TEST_F(TimelineFile, NamesARankThatWasKilledAndEndsItsOpenBox) {
  leave(0, 0, 1'000'000, 4, false);
  std::ofstream(piece(0, 0), std::ios::app) << R"({"kind":"launch","name":"cut)";
  const Json trace = joined({3});
  EXPECT_THAT(trace["otherData"]["ranks_missing"], ElementsAre(1, 2));
  EXPECT_THAT(trace["otherData"]["ranks_cut"], ElementsAre(0));
  const std::vector<Json> boxes = of_phase(trace, "X");
  ASSERT_EQ(boxes.size(), 3u);
  EXPECT_TRUE(boxes[2]["args"]["unfinished"].get<bool>());
  EXPECT_DOUBLE_EQ(boxes[2]["dur"].get<double>(), 0.6);
}

TEST_F(TimelineFile, EscapesCharactersThatSteerAReader) {
  leave(0, 0, 1'000'000, 4);
  const std::string name = "all\xe2\x80\xae\xc2\x9bgather";  // a right-to-left override, and a C1 control
  std::ofstream(piece(0, 0), std::ios::app)
      << R"({"kind":"span","what":"module","name":")" << name << R"(","begin":1000100,"end":1000200,"line":7})"
      << "\n";
  const Json trace = joined({1});
  std::ifstream in(prefix() + ".json");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_THAT(text, testing::HasSubstr("all\\u202e\\u009bgather"));
  EXPECT_EQ(text.find(name), std::string::npos);
  EXPECT_EQ(of_phase(trace, "X")[1]["name"], name) << "the value is the same for every JSON reader";
}

TEST_F(TimelineFile, WritesNoFileForNothing) {
  EXPECT_EQ(join_timeline(prefix(), {2}), "");
  EXPECT_FALSE(fs::exists(prefix() + ".json"));
}

TEST_F(TimelineFile, ClearsTimelinesOnly) {
  leave(0, 0, 1'000'000, 4);
  std::ofstream(folder_ / "timeline-9.json") << "{}";
  std::ofstream(folder_ / "case-1.stage-0.rank-0.jsonl") << "{}";
  clear_timelines(folder_.string());
  EXPECT_FALSE(fs::exists(piece(0, 0)));
  EXPECT_FALSE(fs::exists(folder_ / "timeline-9.json"));
  EXPECT_TRUE(fs::exists(folder_ / "case-1.stage-0.rank-0.jsonl"));
}

}  // namespace
}  // namespace lockstep::report
