// Compares the program's scenarios with the table of the documents' tests.
#include "harness/scenario/documents.hpp"

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "harness/scenario/library.hpp"

namespace lockstep::scenario {
namespace {

std::vector<ListRow> all_rows() {
  Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  std::vector<std::shared_ptr<const Scenario>> scenarios;
  for (const std::string& path : library.find({})) scenarios.push_back(library.load(path));
  return list_rows(scenarios, {});
}

TEST(Documents, NumberTestsFromOne) {
  ASSERT_EQ(document_tests().size(), 46u);
  for (std::size_t i = 0; i < document_tests().size(); ++i)
    EXPECT_EQ(document_tests()[i].number, static_cast<int>(i + 1));
  EXPECT_EQ(find_document_test(13)->document, "test_fully_shard_state_dict.py");
  EXPECT_EQ(find_document_test(14)->name, "replicate_single_module_save_load");
  EXPECT_EQ(find_document_test(46)->name, "register_fsdp_forward_method");
  EXPECT_EQ(find_document_test(0), nullptr);
  EXPECT_EQ(find_document_test(47), nullptr);
}

TEST(Documents, MatchMirrorsByNumberAndName) {
  for (const ListRow& row : all_rows()) {
    const auto& mirrors = row.scenario->mirrors;
    if (!mirrors || !mirrors->number) continue;
    const DocumentTest* test = find_document_test(*mirrors->number);
    ASSERT_NE(test, nullptr) << row.scenario->name;
    EXPECT_EQ(mirrors->document, test->document) << row.scenario->name;
    EXPECT_EQ(mirrors->test, test->name) << row.scenario->name;
  }
}

TEST(Documents, HaveMirrorsWithEnoughCases) {
  std::map<int, int> cases;
  for (const ListRow& row : all_rows())
    if (row.scenario->mirrors && row.scenario->mirrors->number)
      cases[*row.scenario->mirrors->number] += num_cases_at_one_size(row);
  EXPECT_GE(cases.size(), 25u);
  for (const auto& [number, count] : cases)
    EXPECT_GE(count, find_document_test(number)->cases) << number << " " << find_document_test(number)->name;
}

TEST(Documents, CountCasesAtOneWorldSizeAndLaunch) {
  Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  const auto scenario = library.load_text(
      "scenario: test/text\nsummary: A test.\nranks: {world_size: [2, 4], launch: [process, thread]}\n"
      "matrix: {a: [1, 2, 3]}\nskip:\n  - {when: a == 2 and world_size == 4, reason: test}\nsteps:\n  - barrier: {}\n",
      "text.yaml");
  EXPECT_EQ(num_cases_at_one_size(list_rows({scenario}, {}).front()), 3);
  ExpandOptions at_four;
  at_four.world_size = 4;
  EXPECT_EQ(num_cases_at_one_size(list_rows({scenario}, at_four).front()), 2);
}

TEST(Documents, PageAddsUpTheCasesOfTheMirrorsOfATest) {
  Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  const auto mirror = [&](const std::string& name, const std::string& values) {
    return library.load_text(
        str("scenario: test/", name, "\nsummary: A test.\nmirrors: {document: test_fully_shard_state_dict.py, test: ",
            "replicate_single_module_save_load, number: 14}\nranks: {world_size: [2, 4]}\nmatrix: {a: ", values,
            "}\nsteps:\n  - expect: rank < 9\n"),
        name + ".yaml");
  };
  const std::string page =
      documents_page(list_rows({mirror("one", "[1, 2]"), mirror("two", "[1, 2, 3]"), mirror("three", "[1]")}, {}));
  const std::size_t row = page.find("\n| 14 | ");
  ASSERT_NE(row, std::string::npos);
  const std::string text = page.substr(row + 1, page.find('\n', row + 1) - row - 1);
  EXPECT_TRUE(text.ends_with(" | 6 of 1 |")) << text;
}

// Compares a generated file with its text, or writes it where LOCKSTEP_WRITE_REFERENCE is set.
void expect_fresh(const std::string& file, const std::string& text, const std::string& remedy) {
  const std::string path = str(LOCKSTEP_SOURCE_DIR "/", file);
  if (std::getenv("LOCKSTEP_WRITE_REFERENCE") != nullptr) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream stream(path);
  std::stringstream stored;
  stored << stream.rdbuf();
  EXPECT_TRUE(stored.str() == text) << file << " is out of date; " << remedy;
}

TEST(Documents, PageIsUpToDate) {
  expect_fresh("scenarios/README.md", documents_page(all_rows()),
               "run `lockstep reference --documents > scenarios/README.md`");
}

TEST(Documents, TableOfReportIsUpToDate) {
  expect_fresh("reports/lockstep_reports/documents.json", documents_json(),
               "run `LOCKSTEP_WRITE_REFERENCE=1 scenario_tests --gtest_filter=Documents.*`");
}

}  // namespace
}  // namespace lockstep::scenario
