// Files are flushed by the system, and closed when they have been read.
#include "engine/state/file_system.hpp"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/resources.hpp"
#include "engine/state/input_file.hpp"
#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// The open descriptors of this process, and its mappings of a file.
struct Held {
  std::ptrdiff_t descriptors = 0, mappings = 0;
  bool operator==(const Held&) const = default;
};
Held held_of(const std::string& path) {
  Held held;
  const std::filesystem::directory_iterator descriptors("/proc/self/fd");
  held.descriptors = std::distance(begin(descriptors), end(descriptors));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.ends_with(path)) ++held.mappings;
  return held;
}

TEST(FileSystem, FlushesThroughTheSystem) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  FileSystem& files = real_files();
  EXPECT_THAT(error_of([&] { files.sync(ends[1], "a pipe"); }), HasSubstr("cannot flush `a pipe`: Invalid argument"));
  files.close(ends[0], "a pipe");
  files.close(ends[1], "a pipe");
  EXPECT_THAT(error_of([&] { files.sync(ends[1], "a pipe"); }),
              HasSubstr("cannot flush `a pipe`: Bad file descriptor"));
  EXPECT_THAT(error_of([&] { files.close(ends[1], "a pipe"); }), HasSubstr("cannot close `a pipe`: Bad file"));
  EXPECT_THAT(error_of([&] { files.sync_folder("/absent"); }), HasSubstr("cannot open the folder `/absent`"));
}

TEST(FileSystem, AFullDiskIsNoFaultOfTheScenario) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  const auto write = [full] { real_files().write(full, "a full disk", "bytes", 5); };
  EXPECT_THROW(write(), ResourceError);
  EXPECT_THAT(error_of(write), HasSubstr("cannot write `a full disk`: No space left on device (free space on the"));
  ::close(full);
}

TEST(FileSystem, TheOwnerMayUseTheFoldersThatItMakes) {
  const TemporaryFolder folder;
  const std::string made = folder / "made";
  real_files().make_folder(made);
  const std::filesystem::perms owner = std::filesystem::perms::owner_all;
  EXPECT_EQ(std::filesystem::status(made).permissions() & owner, owner);  // as root nothing else tells
  EXPECT_THAT(error_of([&] { real_files().make_folder(made); }), HasSubstr("cannot make the folder"));
}

TEST(FileSystem, NobodyMayExecuteTheFilesThatItMakes) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const mode_t before = ::umask(0);
  write_file(real_files(), path, "twelve bytes");
  ::umask(before);
  using std::filesystem::perms;
  const perms read = perms::owner_read | perms::group_read | perms::others_read;
  const perms write = perms::owner_write | perms::group_write | perms::others_write;
  EXPECT_EQ(std::filesystem::status(path).permissions(), read | write);
}

TEST(FileSystem, WhatItWroteOrReadIsClosed) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const Held before = held_of(path);
  write_file(real_files(), path, "twelve bytes");
  real_files().sync_folder(folder.path());
  EXPECT_EQ(read_text(path), "twelve bytes");
  EXPECT_EQ(held_of(path), before);
  {
    const std::unique_ptr<InputFile> file = real_files().open(path);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->view(7, 5)), 5), "bytes");
    EXPECT_EQ(held_of(path), (Held{before.descriptors + 1, before.mappings + 1}));
  }
  EXPECT_EQ(held_of(path), before);
  EXPECT_THAT(error_of([&] { InputFile refused(folder.path()); }), HasSubstr("it is not a regular file"));
  EXPECT_THAT(error_of([&] { write_file(real_files(), path, "again"); }), HasSubstr("cannot create"));
  EXPECT_EQ(held_of(path), before);
}

TEST(InputFile, TooManyOpenFilesAreNoFaultOfTheScenario) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  write_file(real_files(), path, "twelve bytes");
  const auto open = [&path] { InputFile file(path); };
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THROW(open(), ResourceError);
  EXPECT_THAT(error_of(open), HasSubstr("file`: Too many open files (check the disk, and the limits of this machine"));
  ::setrlimit(RLIMIT_NOFILE, &before);
  open();
}

// A view fetches more than it needs only if it begins where an earlier one ended. It fails if the file has lost the
// bytes that it needs.
TEST(InputFile, AViewOfOneByteFetchesNothingFarBehindIt) {
  constexpr std::size_t part = std::size_t{64} << 10;
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  write_file(real_files(), path, std::string(8 * part, 'a'));
  InputFile file(path);
  EXPECT_EQ(*file.view(0, 1), std::byte{'a'});
  std::filesystem::resize_file(path, part);
  EXPECT_THAT(error_of([&] { file.view(4 * part, 1); }), HasSubstr("the file has become shorter"));
  EXPECT_EQ(*file.view(part - 1, 1), std::byte{'a'});
}

TEST(InputFile, AViewToTheEndOfAPartFetchesNothingBehindIt) {
  constexpr std::size_t part = std::size_t{64} << 10;
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  write_file(real_files(), path, std::string(2 * part, 'a'));
  InputFile file(path);
  EXPECT_EQ(*file.view(0, part), std::byte{'a'});
  std::filesystem::resize_file(path, part);
  EXPECT_THAT(error_of([&] { file.view(part, 1); }), HasSubstr("the file has become shorter"));
}

TEST(InputFile, AViewEndsWithTheFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  write_file(real_files(), path, "twelve bytes");
  InputFile file(path);
  EXPECT_EQ(*file.view(11, 1), std::byte{'s'});
  EXPECT_EQ(file.view(20, 0), nullptr);
  EXPECT_THAT(error_of([&] { file.view(10, 5); }), HasSubstr("file` ends at byte 12, and 3 more are needed"));
  EXPECT_THAT(error_of([&] { file.view(20, 1); }), HasSubstr("file` ends at byte 12, and 9 more are needed"));
}

TEST(InputFile, ReadsNothingBeyondTheEndOfAFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  write_file(real_files(), path, "twelve bytes");
  const InputFile file(path);
  std::string text(12, ' ');
  file.read(0, text.data(), text.size());
  EXPECT_EQ(text, "twelve bytes");
  EXPECT_THAT(error_of([&] { file.read(7, text.data(), 8); }), HasSubstr("ends at byte 12, and 3 more are needed"));
  EXPECT_THAT(error_of([&] { file.read(12, text.data(), 1); }), HasSubstr("ends at byte 12, and 1 more are needed"));
}

}  // namespace
}  // namespace lockstep::state
