// The HTML page: finding a Python that has what the page needs, and running the program that writes it.
//
//   write_page("reports", "results.jsonl", "page");   // page/index.html
//
// $LOCKSTEP_PYTHON alone when it is set, else /usr/bin/python3 and then every python3 on PATH; the first that has
// matplotlib and jinja2 is taken. No shell is involved.
#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

// Path of that Python; throws Error, with what was tried and the remedy, when there is none.
std::string find_report_python();
// Where it is looked for, in order.
std::vector<std::string> python_candidates();

// Runs reports_folder/lockstep_report.py RESULTS -o FOLDER; gives 0. Throws Error, with the remedy, when there is no
// such Python, and with what it said when it fails.
int write_page(const std::string& reports_folder, const std::string& results, const std::string& folder);

}  // namespace lockstep::report
