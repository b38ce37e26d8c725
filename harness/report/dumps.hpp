// Flight recorder dumps beside a results file: RESULTS.dumps/case-N holds recorder.jsonl, the ranks' stories as lines
// of JSON, and case.txt, the case's name and the command that runs it again.
//
//   clear_dumps(dump_folder_of(results));     // before a run
//   write_dump(folder, 1, row, to_text(stories));
//   find_dumps(path);                         // of a results file, its .dumps, or one case's folder
#pragma once

#include <string>
#include <vector>

#include "harness/verdict/results.hpp"

namespace lockstep::report {

std::string dump_folder_of(const std::string& results);
// Removes the dumps of an earlier run. Files and folders that no run wrote stay.
void clear_dumps(const std::string& folder);
// Throws Error, ResourceError for a full disk and its like.
void write_dump(const std::string& folder, int number, const verdict::CaseResult& row, const std::string& stories);

struct Dump {
  std::string folder;
  std::string about;    // text of case.txt; may be empty
  std::string stories;  // text of recorder.jsonl
};
// In the order of their numbers. Throws Error when there is none, and says where it looked.
std::vector<Dump> find_dumps(const std::string& path);

}  // namespace lockstep::report
