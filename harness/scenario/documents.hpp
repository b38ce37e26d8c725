// The tests that scenarios mirror, document by document: their names, what they show, and how many cases each has at
// one world size, one launch and one device.
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
  std::string_view shows;
  int cases = 1;
};

const std::vector<DocumentTest>& document_tests();   // by number, from 1
const DocumentTest* find_document_test(int number);  // nullptr: there is none

// The cases that a scenario runs at one world size and one launch: of those it has, the most.
int cases_at_one_size(const ListRow& row);

// reports/lockstep_reports/documents.json, the same table for the page of a run: a list of {title, about, tests}, where
// `tests` maps numbers to names.
std::string documents_json();

// scenarios/README.md: which test is mirrored where, in how many cases.
std::string documents_page(const std::vector<ListRow>& rows);

}  // namespace lockstep::scenario
