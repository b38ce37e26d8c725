// The HTML page: finds a Python with the packages that the page needs, and runs the program that writes the page.
//
//   write_page("reports", "results.jsonl", "page");   // page/index.html
//
// Only $LOCKSTEP_PYTHON is tried when it is set, otherwise /usr/bin/python3 and then every python3 on PATH. The first
// with matplotlib and jinja2 is used. No shell is involved.
#pragma once

#include <string>
#include <vector>

namespace lockstep::report {

// The path of that Python. Throws Error, with the candidates that were tried, when there is none.
std::string find_report_python();
// The candidates, in order.
std::vector<std::string> python_candidates();

// Runs reports_folder/lockstep_report.py RESULTS -o FOLDER and returns 0. Throws Error when there is no such Python,
// and, with the program's output, when the program fails.
int write_page(const std::string& reports_folder, const std::string& results, const std::string& folder);

}  // namespace lockstep::report
