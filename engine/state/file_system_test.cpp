// Files are flushed by the system, and closed when they have been read.
#include "engine/state/file_system.hpp"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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

}  // namespace
}  // namespace lockstep::state
