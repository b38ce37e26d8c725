#include "harness/report/dumps.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/core/error.hpp"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Dumps : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(root_); }
  void TearDown() override { fs::remove_all(root_); }
  void write(int number, const std::string& scenario) const {
    verdict::CaseResult row;
    row.scenario = scenario;
    row.case_id = "world_size=2";
    row.repro = "lockstep run " + scenario;
    write_dump(dump_folder_of(results_), number, row, "{\"rank\":0}\n");
  }
  static std::string error_of(const std::string& path) {
    try {
      find_dumps(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  const std::string root_ = str(::testing::TempDir(), "lockstep_dumps_test_", ::getpid());
  const std::string results_ = root_ + "/results.jsonl";
};

TEST_F(Dumps, AreFoundFromAnyOfThreePaths) {
  std::ofstream(results_) << "{}";
  write(2, "b");
  write(10, "c");
  for (const std::string& path : {results_, results_ + ".dumps", results_ + ".dumps/"}) {
    const std::vector<Dump> dumps = find_dumps(path);
    ASSERT_EQ(dumps.size(), 2u) << path;
    EXPECT_EQ(dumps[0].about, "b [world_size=2]\nlockstep run b\n");
    EXPECT_EQ(dumps[1].about, "c [world_size=2]\nlockstep run c\n");  // by number
  }
  ASSERT_EQ(find_dumps(results_ + ".dumps/case-10").size(), 1u);
  EXPECT_EQ(find_dumps(results_ + ".dumps/case-10")[0].stories, "{\"rank\":0}\n");
}

TEST_F(Dumps, AreAnErrorWhereThereAreNone) {
  EXPECT_THAT(error_of(root_ + "/missing"), HasSubstr("there is no file or folder"));
  EXPECT_THAT(error_of(root_), HasSubstr("there is no flight recorder dump in " + root_));
  std::ofstream(results_) << "{}";
  EXPECT_THAT(error_of(results_), HasSubstr("no folder " + results_ + ".dumps"));
}

TEST_F(Dumps, AreClearedWithoutOtherFiles) {
  write(1, "a");
  write(2, "b");
  const std::string folder = dump_folder_of(results_), elsewhere = root_ + "/elsewhere";
  std::ofstream(folder + "/case-2/notes.txt") << "mine";
  fs::create_directories(elsewhere);
  std::ofstream(elsewhere + "/recorder.jsonl") << "mine";
  fs::create_directory_symlink(elsewhere, folder + "/case-3");
  clear_dumps(folder);
  EXPECT_FALSE(fs::exists(folder + "/case-1"));
  EXPECT_FALSE(fs::exists(folder + "/case-2/recorder.jsonl"));
  EXPECT_TRUE(fs::exists(folder + "/case-2/notes.txt"));
  EXPECT_TRUE(fs::exists(elsewhere + "/recorder.jsonl"));
  fs::remove_all(folder + "/case-2");
  fs::remove(folder + "/case-3");
  clear_dumps(folder);
  EXPECT_FALSE(fs::exists(folder));
}

}  // namespace
}  // namespace lockstep::report
