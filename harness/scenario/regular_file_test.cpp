#include "harness/scenario/regular_file.hpp"

#include <chrono>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"

namespace lockstep::scenario {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RegularFileTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string refusal(const std::string& file, std::int64_t most = 100) {
    const auto start = std::chrono::steady_clock::now();
    std::string message = "none";
    try {
      read_regular_file(file, most);
    } catch (const Error& error) {
      message = error.message();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2)) << file;
    return message;
  }

 private:
  const fs::path folder_ = fs::temp_directory_path() / str("lockstep_regular_file_", ::getpid());
};

TEST_F(RegularFileTest, ReadsFileOfLargestSize) {
  EXPECT_EQ(read_regular_file(write("a", ""), 0), "");
  const std::string text = std::string(99, 'x') + '\0';
  EXPECT_EQ(read_regular_file(write("b", text), 100), text);
  const std::string large(300'000, 'y');
  EXPECT_EQ(read_regular_file(write("c", large), 300'000), large);
  // /proc reports a size of 0.
  EXPECT_THAT(read_regular_file("/proc/self/status", 1 << 20), HasSubstr("Name:"));
}

TEST_F(RegularFileTest, RefusesLargeFile) {
  EXPECT_EQ(refusal(write("a", std::string(101, 'x'))),
            str(path("a"), " has more than 100 bytes; at most 100 are allowed"));
  EXPECT_EQ(refusal(write("b", std::string(500, 'x'))), str(path("b"), " has 500 bytes; at most 100 are allowed"));
  EXPECT_THAT(refusal("/proc/self/status", 10), HasSubstr("at most 10 are allowed"));
}

TEST_F(RegularFileTest, RefusesOtherKindsOfFiles) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal(path("pipe")), str(path("pipe"), " is a pipe, not a regular file"));
  fs::create_symlink(path("pipe"), path("link"));
  EXPECT_EQ(refusal(path("link")), str(path("link"), " is a pipe, not a regular file"));
  EXPECT_EQ(refusal("/dev/zero"), "/dev/zero is a device, not a regular file");
  EXPECT_EQ(refusal(fs::temp_directory_path().string()),
            str(fs::temp_directory_path().string(), " is a folder, not a regular file"));
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path("socket").copy(static_cast<char*>(address.sun_path), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(refusal(path("socket")), str(path("socket"), " is a socket, not a regular file"));
  ::close(socket);
}

TEST_F(RegularFileTest, ReportsMissingFile) {
  EXPECT_EQ(refusal(path("missing")), str("cannot read ", path("missing"), ": No such file or directory"));
  fs::create_symlink(path("loop"), path("loop"));
  EXPECT_THAT(refusal(path("loop")), HasSubstr("cannot read"));
  EXPECT_THAT(refusal(write("file", "x") + "/below"), HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace lockstep::scenario
