#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "harness/report/results_file.hpp"
#include "harness/report/results_test_support.hpp"

namespace lockstep::report {
namespace {

using namespace testing_support;
using testing::HasSubstr;
using verdict::CaseResult;

TEST(ResultsWriter, WritesEachLineAtOnce) {
  const Folder folder;
  const std::string path = folder / "results.jsonl";
  ResultsWriter writer(path);
  EXPECT_EQ(content_of(path), "");
  writer.write(run_info());
  EXPECT_EQ(content_of(path), json_line(run_info()) + "\n");
  writer.write(full_case());
  EXPECT_EQ(content_of(path), json_line(run_info()) + "\n" + json_line(full_case()) + "\n");
}

// Limits the size of the files of this process; a write beyond it is an error instead of a signal.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::size_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_ = SIG_DFL;
};

TEST(ResultsWriter, RemovesALineThatDoesNotFit) {
  const Folder folder;
  const std::string path = folder / "results.jsonl";
  ResultsWriter writer(path);
  writer.write(run_info());
  writer.write(full_case());
  const std::string whole = content_of(path);
  {
    const FileSizeLimit limit(whole.size() + 20);
    try {
      writer.write(full_case());
      ADD_FAILURE() << "no error came";
    } catch (const ResourceError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path));
      EXPECT_THAT(error.what(), HasSubstr("ulimit -f"));
    }
    EXPECT_EQ(content_of(path), whole);
  }
  writer.write(verdict::Summary{});
  EXPECT_EQ(content_of(path), whole + json_line(verdict::Summary{}) + "\n");
}

TEST(ResultsWriter, LocksTheFile) {
  const Folder folder;
  const std::string path = folder / "results.jsonl";
  {
    ResultsWriter first(path);
    first.write(run_info());
    try {
      ResultsWriter second(path);
      ADD_FAILURE() << "no error came";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("another run is writing the results file " + path));
    }
    EXPECT_EQ(content_of(path), json_line(run_info()) + "\n");
  }
  ResultsWriter next(path);
  EXPECT_EQ(content_of(path), "");
  const ResultsWriter nothing("/dev/null"), nothing_again("/dev/null");  // a device needs no lock
}

TEST(ResultsWriter, EscapesCharactersThatEndALineForSomeReaders) {
  const Folder folder;
  const std::string path = folder / "results.jsonl";
  CaseResult row = full_case();
  row.case_id =
      "word=a\xe2\x80\xa8"
      "b\xc2\x85"
      "c";
  {
    ResultsWriter writer(path);
    writer.write(run_info());
    writer.write(row);
  }
  EXPECT_THAT(content_of(path), HasSubstr("word=a\\u2028b\\u0085c"));
  EXPECT_EQ(read_results(path).cases.front().case_id, row.case_id);
}

TEST(ResultsWriter, ReportsAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  ResultsWriter writer("/dev/full");
  EXPECT_THROW(writer.write(run_info()), Error);
}

}  // namespace
}  // namespace lockstep::report
