#include "harness/launch/run_folder.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/resources.hpp"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Sets TMPDIR to a temporary folder.
class RunFolders : public ::testing::Test {
 protected:
  void SetUp() override {
    parent_ = str(::testing::TempDir(), "lockstep_run_folder_test_", ::getpid());
    fs::create_directories(parent_);
    ASSERT_EQ(::setenv("TMPDIR", parent_.c_str(), 1), 0);
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    fs::remove_all(parent_);
  }
  // Starts a run and kills it at once. Returns the folder that it leaves behind.
  std::string left_by_killed_run() const {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const RunFolder run;
      const CaseFolder folder(run, "case-1");
      std::ofstream(folder.path() + "/state.json") << "{}";
      if (::write(ends[1], run.path().data(), run.path().size()) < 0) ::_exit(1);
      for (;;) ::kill(::getpid(), SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
    ::close(ends[1]);
    char path[4096];
    const ssize_t bytes = ::read(ends[0], path, sizeof path);
    ::close(ends[0]);
    return {path, static_cast<std::size_t>(bytes)};
  }
  std::string parent_;
};

TEST_F(RunFolders, AreRemovedWithTheirOwner) {
  std::string path;
  {
    const RunFolder run;
    path = run.path();
    const CaseFolder folder(run, "case-1");
    EXPECT_TRUE(fs::is_directory(folder.path()));
    EXPECT_EQ(fs::path(folder.path()).parent_path(), path);
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(RunFolders, OfAKilledOwnerAreRemovedByTheNextRun) {
  const std::string left = left_by_killed_run();
  ASSERT_TRUE(fs::exists(left + "/case-1/state.json"));
  const RunFolder next;
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(RunFolders, OfARunningOwnerStay) {
  const RunFolder first;
  const CaseFolder folder(first, "case-1");
  { const RunFolder second; }
  EXPECT_TRUE(fs::exists(folder.path()));
  EXPECT_EQ(sweep_run_folders(parent_), 0);
}

TEST_F(RunFolders, AreSweptWithoutLinksAndOtherFiles) {
  const std::string mine = parent_ + "/mine", link = parent_ + "/lockstep-run-link",
                    file = parent_ + "/lockstep-run-file";
  fs::create_directories(mine + "/inner");
  fs::create_directory_symlink(mine, link);
  std::ofstream(file) << "a file";
  // Folders of the user: one with a longer name, one with a file in it, one that others may enter.
  const std::string results = parent_ + "/lockstep-run-results", output = parent_ + "/lockstep-run-output",
                    open = parent_ + "/lockstep-run-folder";
  for (const std::string& folder : {results, output, open}) {
    fs::create_directories(folder + "/case-1");
    fs::permissions(folder, folder == open ? fs::perms(0755) : fs::perms::owner_all);
  }
  std::ofstream(output + "/r.jsonl") << "{}";
  EXPECT_EQ(sweep_run_folders(parent_), 0);
  for (const std::string& folder : {results, output, open}) EXPECT_TRUE(fs::exists(folder + "/case-1")) << folder;
  EXPECT_TRUE(fs::exists(mine + "/inner"));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::exists(file));
}

// As a process that ends by std::terminate() does. A fork removes nothing.
TEST_F(RunFolders, AreRemovedByAProcessThatRunsNoDestructors) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunFolder run;
    const TemporaryTree part(parent_ + "/kept.part");
    fs::create_directories(part.path());
    std::ofstream(part.path() + "/state.json") << "{}";
    const pid_t rank = ::fork();
    if (rank == 0) {
      TemporaryTree::remove_all_of_process();
      ::_exit(0);
    }
    ::waitpid(rank, nullptr, 0);
    const char after_rank = fs::exists(part.path() + "/state.json") && fs::exists(run.path()) ? 'y' : 'n';
    if (::write(ends[1], &after_rank, 1) != 1) ::_exit(1);
    TemporaryTree::remove_all_of_process();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  char after_rank = '?';
  EXPECT_EQ(::read(ends[0], &after_rank, 1), 1);
  EXPECT_EQ(after_rank, 'y');
  EXPECT_TRUE(fs::is_empty(parent_));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(RunFolders, OfAFollowingHostStayWhileItRuns) {
  const std::string run = parent_ + "/lockstep-run-a1B2c3";
  {
    FollowedFolder folder;
    EXPECT_FALSE(folder.enter(run + "/case-1"));
    EXPECT_FALSE(folder.enter(run + "/case-1"));  // the next stage
    { const RunFolder other; }
    EXPECT_TRUE(fs::is_directory(run + "/case-1"));
    EXPECT_FALSE(folder.enter(run + "/case-2"));
    EXPECT_FALSE(fs::exists(run + "/case-1"));
    EXPECT_TRUE(fs::is_directory(run + "/case-2"));
  }
  EXPECT_TRUE(fs::is_empty(parent_));
}

TEST_F(RunFolders, OfAKilledFollowingHostAreRemovedByTheNextRun) {
  const std::string run = parent_ + "/lockstep-run-a1B2c3";
  const pid_t child = ::fork();
  if (child == 0) {
    FollowedFolder folder;
    folder.enter(run + "/case-1");
    for (;;) ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(fs::is_directory(run + "/case-1"));
  const RunFolder next;
  EXPECT_FALSE(fs::exists(run));
}

TEST_F(RunFolders, OfHost0AreUsedWhereAFollowingHostSeesThem) {
  const RunFolder run;
  const CaseFolder of_host_0(run, "case-1");
  {
    FollowedFolder folder;
    EXPECT_TRUE(folder.enter(of_host_0.path()));
    EXPECT_THROW(RunFolder{run.path()}, ResourceError);
  }
  EXPECT_TRUE(fs::is_directory(of_host_0.path()));
}

TEST_F(RunFolders, OfAFollowingHostMayBeRefused) {
  std::ofstream(parent_ + "/file") << "in the way";
  FollowedFolder folder;
  EXPECT_FALSE(folder.enter(parent_ + "/file/lockstep-run-a1B2c3/case-1"));
  EXPECT_TRUE(fs::is_regular_file(parent_ + "/file"));
}

TEST_F(RunFolders, NameAMissingTemporaryFolder) {
  ::setenv("TMPDIR", "/nonexistent", 1);
  try {
    const RunFolder run;
    FAIL() << "no error came";
  } catch (const ResourceError& error) {
    EXPECT_THAT(error.message(), HasSubstr("/nonexistent"));
    EXPECT_THAT(error.remedy(), HasSubstr("TMPDIR"));
  }
}

}  // namespace
}  // namespace lockstep::launch
