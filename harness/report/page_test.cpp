#include "harness/report/page.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A folder with a script in place of Python, and LOCKSTEP_PYTHON set to it.
class PageTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-page-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    write("results.jsonl", "{}\n");
    write("reports/lockstep_report.py", "");
  }
  void TearDown() override {
    ::unsetenv("LOCKSTEP_PYTHON");
    std::filesystem::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << content;
  }
  void play_python(const std::string& body) const {
    write("python", "#!/bin/sh\n" + body);
    std::filesystem::permissions(path("python"), std::filesystem::perms::owner_all);
    ::setenv("LOCKSTEP_PYTHON", path("python").c_str(), 1);
  }
  std::string refusal() const {
    try {
      write_page(path("reports"), path("results.jsonl"), path("page"));
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was refused";
  }
  std::string folder_;
};

TEST_F(PageTest, RunsTheProgramWithTheArguments) {
  play_python("if [ \"$1\" = -c ]; then exit 0; fi\nprintf '%s\\n' \"$@\" > " + path("seen"));
  EXPECT_EQ(write_page(path("reports"), path("results.jsonl"), path("a page; $(touch x)")), 0);
  std::ifstream file(path("seen"));
  const std::string seen{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(seen, path("reports/lockstep_report.py") + "\n" + path("results.jsonl") + "\n-o\n" +
                      path("a page; $(touch x)") + "\n");
}

TEST_F(PageTest, GivesTheRemedyForMissingPackages) {
  play_python("exit 9");
  EXPECT_THAT(refusal(), HasSubstr("no Python with matplotlib and jinja2 was found; tried " + path("python") +
                                   " (lacks the packages)"));
  EXPECT_THAT(refusal(), HasSubstr("install python3-matplotlib and python3-jinja2"));
  ::setenv("LOCKSTEP_PYTHON", path("none").c_str(), 1);
  EXPECT_THAT(refusal(), HasSubstr(path("none") + " (not a program)"));
}

TEST_F(PageTest, ShowsTheOutputOfAProgramThatFails) {
  play_python("if [ \"$1\" = -c ]; then exit 0; fi\necho 'results are broken' >&2\nexit 2");
  EXPECT_THAT(refusal(), HasSubstr("ended with exit code 2:\nresults are broken"));
  play_python("if [ \"$1\" = -c ]; then exit 0; fi\nkill -9 $$");
  EXPECT_THAT(refusal(), HasSubstr("was ended by a signal"));
}

TEST_F(PageTest, RefusesMissingResultsAndPrograms) {
  play_python("exit 0");
  EXPECT_THROW(write_page(path("reports"), path("none.jsonl"), path("page")), Error);
  EXPECT_THROW(write_page(path("nowhere"), path("results.jsonl"), path("page")), Error);
}

TEST_F(PageTest, RefusesToOverwriteTheResults) {
  play_python("exit 0");
  write("page/index.html", "{}\n");
  EXPECT_THROW(write_page(path("reports"), path("page/index.html"), path("page")), Error);
  EXPECT_EQ(write_page(path("reports"), path("results.jsonl"), path("page")), 0) << "an older page may be overwritten";
}

TEST_F(PageTest, TriesTheSystemsPythonFirstAndThenPath) {
  const std::string before = std::getenv("PATH") ? std::getenv("PATH") : "";
  ::setenv("PATH", "/opt/a:relative::/usr/bin:/opt/b/", 1);
  EXPECT_THAT(python_candidates(), ElementsAre("/usr/bin/python3", "/opt/a/python3", "/opt/b/python3"));
  ::setenv("LOCKSTEP_PYTHON", "/opt/c/python", 1);
  EXPECT_THAT(python_candidates(), ElementsAre("/opt/c/python"));
  ::setenv("PATH", before.c_str(), 1);
}

}  // namespace
}  // namespace lockstep::report
