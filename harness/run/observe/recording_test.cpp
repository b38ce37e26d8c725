#include "harness/run/observe/recording.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::run {
namespace {

namespace fs = std::filesystem;

TEST(Recording, LeavesNoUnfinishedFile) {
  const fs::path folder =
      fs::path(testing::TempDir()) / str("recording-", ::testing::UnitTest::GetInstance()->random_seed());
  fs::create_directories(folder);
  const std::string path = recording_path((folder / "timeline-3").string(), 0, 1);
  EXPECT_EQ(fs::path(path).filename(), "timeline-3.stage-0.rank-1.jsonl");
  write_recording(path, "text", "the timeline", "--timeline");
  // What a process leaves that ends within write_recording(): the name is the one that this function used.
  fs::rename(path, path + ".part");
  write_recording(path, "text", "the timeline", "--timeline");
  EXPECT_FALSE(fs::exists(path + ".part")) << "the name of an unfinished file has changed";
  std::ofstream(path + ".part") << "te";
  remove_unfinished_recording(path);
  EXPECT_FALSE(fs::exists(path + ".part"));
  EXPECT_TRUE(fs::exists(path));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::run
