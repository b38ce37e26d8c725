// Flight recorder dumps beside a results file. RESULTS.dumps/case-N holds recorder.jsonl, the recorded stories of the
// ranks as JSON lines, and case.txt, with the case and the command that runs it again.
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
// Removes the dumps of an earlier run. Other files and folders stay.
void clear_dumps(const std::string& folder);
// Throws Error, or ResourceError when the machine lacks space or files.
void write_dump(const std::string& folder, int number, const verdict::CaseResult& row, const std::string& stories);

struct Dump {
  std::string folder;
  std::string about;    // content of case.txt; may be empty
  std::string stories;  // content of recorder.jsonl
};
// The dumps, in the order of their numbers. Throws Error, with the folder that was searched, when there is none.
std::vector<Dump> find_dumps(const std::string& path);

}  // namespace lockstep::report
