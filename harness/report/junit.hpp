// JUnit XML for continuous integration: a testsuite a scenario, a testcase a case, as the Jenkins schema has it.
//
//   write_junit("build/report/junit.xml", results, run.started);
//
// FAIL and XPASS are failures; HANG, CRASH, INVALID and MISSING are errors; SKIP, UNSUPPORTED and XFAIL are skipped
// with their reason. A failure's text begins with file:line of the scenario. What XML 1.0 cannot hold is written as
// \xHH.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/verdict/results.hpp"

namespace lockstep::report {

std::string junit_xml(const std::vector<verdict::CaseResult>& results, const std::string& started = {});
// Makes the folder, writes beside the file and renames, so that there is never half of one; throws Error.
void write_junit(const std::string& path, const std::vector<verdict::CaseResult>& results,
                 const std::string& started = {});

// Valid UTF-8 of characters that XML 1.0 can hold: others as \xHH, bytes that are no UTF-8 as U+FFFD.
std::string xml_safe(std::string_view text);

}  // namespace lockstep::report
