// The process ends, or an operation fails, at every operation of a save in turn: the checkpoint is the old one or the
// new one, complete, and the next save works.
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/defects.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/state/inspect.hpp"
#include "engine/state/load.hpp"
#include "engine/state/save.hpp"
#include "engine/state/test_support.hpp"
#include "engine/state/writer.hpp"

namespace lockstep::state {
namespace {

using testing::counting;
using testing::error_of;
using testing::require;
using testing::require_equal;
using testing::run;
using testing::TemporaryFolder;

enum class Fault { none, end, end_in_write, error, full_disk };

// Counts the operations of all ranks. At number `at` (from 1) the fault happens; after an error all later operations of
// that rank work again, so that it can clean up.
class FaultyFiles : public FileSystem {
 public:
  FaultyFiles(Fault fault, int at) : fault_(fault), at_(at) {}
  int num_operations() const { return count_; }

  void make_folder(const std::string& path) override { enter(path), FileSystem::make_folder(path); }
  int create(const std::string& path) override { return enter(path), FileSystem::create(path); }
  void write(int file, const std::string& path, const void* bytes, std::size_t size) override {
    const bool is_here = ++count_ == at_;
    if (is_here && fault_ == Fault::end) end();
    if (is_here && fault_ != Fault::none) {
      FileSystem::write(file, path, bytes, size / 2);
      if (fault_ == Fault::end_in_write) ::_exit(9);
      refuse(path);
    }
    FileSystem::write(file, path, bytes, size);
  }
  void sync(int file, const std::string& path) override { enter(path), FileSystem::sync(file, path); }
  void close(int file, const std::string& path) override {
    FileSystem::close(file, path);
    enter(path);
  }
  void sync_folder(const std::string& path) override { enter(path), FileSystem::sync_folder(path); }
  void rename(const std::string& from, const std::string& to) override { enter(from), FileSystem::rename(from, to); }
  void exchange(const std::string& a, const std::string& b) override { enter(a), FileSystem::exchange(a, b); }
  void remove_file(const std::string& path) override { enter(path), FileSystem::remove_file(path); }
  void remove_folder(const std::string& path) override { enter(path), FileSystem::remove_folder(path); }

 protected:
  virtual void end() { ::_exit(9); }

 private:
  void enter(const std::string& path) {
    if (++count_ != at_ || fault_ == Fault::none) return;
    if (fault_ == Fault::end || fault_ == Fault::end_in_write) end();
    refuse(path);
  }
  [[noreturn]] void refuse(const std::string& path) const {
    throw Error(str("injected at `", path,
                    "`: ", fault_ == Fault::full_disk ? "No space left on device" : "Input/output error"));
  }

  const Fault fault_;
  const int at_;
  std::atomic<int> count_{0};
};

// Ends the process at operation `at`, as if the power failed: of each file that was not flushed, the second half is
// lost. Renames are kept, because the disk may write them at any time.
class PowerCut : public FaultyFiles {
 public:
  explicit PowerCut(int at) : FaultyFiles(Fault::end, at) {}

  int create(const std::string& path) override {
    const int file = FaultyFiles::create(path);
    const std::lock_guard lock(mutex_);
    unflushed_[file] = ::dup(file);  // the save closes its own
    return file;
  }
  void sync(int file, const std::string& path) override {
    FaultyFiles::sync(file, path);
    const std::lock_guard lock(mutex_);
    const auto found = unflushed_.find(file);
    ::close(found->second);
    unflushed_.erase(found);
  }

 private:
  void end() override {
    const std::lock_guard lock(mutex_);
    for (const auto& [file, copy] : unflushed_) {
      struct stat status = {};
      ::fstat(copy, &status);
      if (::ftruncate(copy, status.st_size / 2) != 0) ::_exit(8);
    }
    ::_exit(9);
  }

  std::mutex mutex_;
  std::map<int, int> unflushed_;  // a second descriptor by the descriptor of the save
};

constexpr int num_ranks = 2;
const Dims sizes{6, 5};

State state_of(double start) {
  return {{"w", distribute(counting(sizes, start), DeviceMesh::world(), {layout::shard(0)})},
          {"plain", counting({7}, start)},
          {"step", PlainValue{str(start)}}};
}

// "old", "new", or a description of the error: values of two saves, a damaged or missing checkpoint.
std::string content(const std::string& path) {
  if (!std::filesystem::exists(path)) return "none";
  std::string found = "no rank ran";
  const std::string failure = run(1, [&](int) {
    const Tensor w = counting(sizes, -1), plain = counting({7}, -1);
    const LoadReport report = load({{"w", w}, {"plain", plain}, {"step", PlainValue{"0"}}}, path);
    for (const auto& [name, start] : {std::pair("old", 1.0), std::pair("new", 100.0)})
      if (report.values.at("step") == str(start)) {
        require_equal(w, counting(sizes, start), "w");
        require_equal(plain, counting({7}, start), "plain");
        found = name;
      }
  });
  return failure.empty() ? found : failure;
}

struct Kind {
  bool overwrite, async;
};
void save_new(const std::string& path, FileSystem& files, const Kind& kind) {
  save(state_of(100.0), path, {.overwrite = kind.overwrite, .async = kind.async, .files = &files}).wait();
}

// Saves in another process that the fault may end. Returns whether the process ended by itself, without an error.
bool save_in_child(const std::string& path, FileSystem& files, const Kind& kind) {
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string failure = run(num_ranks, [&](int) { save_new(path, files, kind); });
    ::_exit(failure.empty() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void save_old(const std::string& path, const Kind& kind) {
  if (!kind.overwrite) return;
  ASSERT_EQ(run(num_ranks, [&](int) { save(state_of(1.0), path); }), "");
}

int count_operations(const Kind& kind) {
  const TemporaryFolder folder;
  save_old(folder / "a", kind);
  FaultyFiles files(Fault::none, 0);
  EXPECT_EQ(run(num_ranks, [&](int) { save_new(folder / "a", files, kind); }), "");
  EXPECT_EQ(content(folder / "a"), "new");
  return files.num_operations();
}

std::vector<std::string> names_beside(const TemporaryFolder& folder) { return names_in(folder.path()); }

class CrashTest : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  Kind kind() const { return {std::get<0>(GetParam()), std::get<1>(GetParam())}; }
  std::string before() const { return kind().overwrite ? "old" : "none"; }
};

TEST_P(CrashTest, AProcessThatEndsAtAnyOperationLeavesOldOrNew) {
  const int num_operations = count_operations(kind());
  ASSERT_GE(num_operations, 15);
  int num_old = 0, num_new = 0;
  for (const Fault fault : {Fault::end, Fault::end_in_write})
    for (int at = 1; at <= num_operations; ++at) {
      const TemporaryFolder folder;
      const std::string path = folder / "a";
      save_old(path, kind());
      FaultyFiles files(fault, at);
      EXPECT_FALSE(save_in_child(path, files, kind())) << "nothing happened at operation " << at;
      const std::string found = content(path);
      ASSERT_TRUE(found == before() || found == "new") << found << " at operation " << at;
      ++(found == "new" ? num_new : num_old);
      // The next save removes the unfinished folder.
      if (!kind().overwrite && found == "new") continue;
      ASSERT_EQ(run(num_ranks, [&](int) { save_new(path, real_files(), kind()); }), "") << "operation " << at;
      ASSERT_EQ(content(path), "new");
      ASSERT_EQ(names_beside(folder), std::vector<std::string>{"a"});
    }
  EXPECT_GE(num_old, 15);
  EXPECT_GE(num_new, 2);
}

TEST_P(CrashTest, APowerCutAtAnyOperationLeavesOldOrNew) {
  const int num_operations = count_operations(kind());
  int num_new = 0;
  for (int at = 1; at <= num_operations; ++at) {
    const TemporaryFolder folder;
    save_old(folder / "a", kind());
    PowerCut files(at);
    EXPECT_FALSE(save_in_child(folder / "a", files, kind())) << "nothing happened at operation " << at;
    const std::string found = content(folder / "a");
    ASSERT_TRUE(found == before() || found == "new") << found << " at operation " << at;
    num_new += found == "new";
  }
  EXPECT_GE(num_new, 1);
}

TEST_P(CrashTest, AnErrorAtAnyOperationLeavesOldOrNewAndIsRaisedOnEveryRank) {
  const int num_operations = count_operations(kind());
  for (const Fault fault : {Fault::error, Fault::full_disk})
    for (int at = 1; at <= num_operations; ++at) {
      const TemporaryFolder folder;
      const std::string path = folder / "a";
      save_old(path, kind());
      FaultyFiles files(fault, at);
      std::vector<std::string> errors(num_ranks);
      ASSERT_EQ(run(num_ranks,
                    [&](int rank) {
                      errors[static_cast<std::size_t>(rank)] = error_of([&] { save_new(path, files, kind()); });
                    }),
                "");
      EXPECT_EQ(errors[0], errors[1]) << "operation " << at;
      const std::string found = content(path);
      const bool has_failed = errors[0] != "no error";
      // Removing the old checkpoint, after the new one has its name, may fail without an error.
      if (has_failed)
        EXPECT_THAT(errors[0], ::testing::AllOf(::testing::HasSubstr("rank"), ::testing::HasSubstr("injected")));
      else
        EXPECT_EQ(found, "new") << "operation " << at;
      ASSERT_TRUE(found == before() || found == "new") << found << " at operation " << at;
      if (!kind().overwrite && found == "new") continue;
      ASSERT_EQ(run(num_ranks, [&](int) { save_new(path, real_files(), kind()); }), "") << "operation " << at;
      ASSERT_EQ(content(path), "new");
      ASSERT_EQ(names_beside(folder), std::vector<std::string>{"a"});
    }
}

// Fails after it has closed the file of rank 1.
class FailingClose : public FileSystem {
 public:
  void close(int file, const std::string& path) override {
    FileSystem::close(file, path);
    if (path.ends_with(file_of_rank(1))) throw Error("injected");
  }
};

TEST(FailedClose, IsRaisedOnEveryRankAndLeavesTheOldCheckpoint) {
  for (const bool async : {false, true}) {
    const Kind kind{true, async};
    const TemporaryFolder folder;
    save_old(folder / "a", kind);
    FailingClose files;
    std::vector<std::string> errors(num_ranks);
    ASSERT_EQ(run(num_ranks,
                  [&](int rank) {
                    errors[static_cast<std::size_t>(rank)] = error_of([&] { save_new(folder / "a", files, kind); });
                  }),
              "");
    for (const std::string& error : errors) EXPECT_THAT(error, ::testing::HasSubstr("rank 1: injected"));
    EXPECT_EQ(content(folder / "a"), "old");
  }
}

TEST(PowerCut, ShowsAnIndexThatComesBeforeTheData) {
  for (const bool overwrite : {false, true}) {
    const Kind kind{overwrite, false};
    const int num_operations = count_operations(kind);
    int num_damaged = 0;
    for (int at = 1; at <= num_operations; ++at) {
      const TemporaryFolder folder;
      save_old(folder / "a", kind);
      PowerCut files(at);
      arm_defect(Defect::saved_index_before_data);
      save_in_child(folder / "a", files, kind);
      arm_defect(Defect::none);
      const std::string found = content(folder / "a");
      num_damaged += found != (overwrite ? "old" : "none") && found != "new";
    }
    EXPECT_GE(num_damaged, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CrashTest, ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& test) {
                           return str(std::get<0>(test.param) ? "Overwrite" : "New",
                                      std::get<1>(test.param) ? "Async" : "Sync");
                         });

}  // namespace
}  // namespace lockstep::state
