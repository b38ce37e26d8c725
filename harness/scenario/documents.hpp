// The table of the documents' tests that scenarios mirror: number, name, subject, and the number of cases at one world
// size, one launch and one device. Every other list of these tests is generated from it.
//
//   const DocumentTest* test = find_document_test(39);
//   std::ofstream("scenarios/README.md") << documents_page(list_rows(scenarios, {}));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/scenario/describe.hpp"

namespace lockstep::scenario {

struct DocumentTest {
  int number = 0;
  std::string_view document;  // "test_replicate.py"
  std::string_view name;
  std::string_view shows;  // the behavior that the test shows
  int cases = 1;
};

const std::vector<DocumentTest>& document_tests();   // by number, from 1
const DocumentTest* find_document_test(int number);  // nullptr: no test has the number

// The number of cases that a scenario runs at one world size and one launch, skipped cases excluded; the maximum over
// its world sizes and launches.
int num_cases_at_one_size(const ListRow& row);

// reports/lockstep_reports/documents.json, the table for the report of a run: a list of {title, about, tests}, where
// `tests` maps numbers to names.
std::string documents_json();

// scenarios/README.md: the mirrors of each test and their numbers of cases.
std::string documents_page(const std::vector<ListRow>& rows);

}  // namespace lockstep::scenario
