#include "engine/core/resources.hpp"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Resources, NamesTheLimitWithItsValueAndARemedy) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const ResourceError error = resource_error("opening a pipe", EMFILE);
  EXPECT_EQ(error.message(), str("opening a pipe: Too many open files; the limit on open files (ulimit -n) is ",
                                 static_cast<std::uint64_t>(files.rlim_cur)));
  EXPECT_THAT(error.remedy(), HasSubstr("--jobs"));
  EXPECT_THAT(resource_error("starting a process", EAGAIN).what(), AllOf(HasSubstr("ulimit -u"), HasSubstr("(raise")));
}

TEST(Resources, DistinguishesExhaustionFromAWrongPath) {
  for (int reason : {EAGAIN, EMFILE, ENFILE, EFBIG, ENOMEM, ENOSPC, EDQUOT, EIO}) EXPECT_TRUE(is_exhaustion(reason));
  for (int reason : {ENOENT, EACCES, EISDIR, ENOTDIR, EROFS}) EXPECT_FALSE(is_exhaustion(reason));
  EXPECT_EQ(resource_error("opening a.txt", ENOENT).message(), "opening a.txt: No such file or directory");
}

}  // namespace
}  // namespace lockstep
