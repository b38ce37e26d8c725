// JUnit XML for continuous integration, as in the Jenkins schema: one testsuite per scenario, one testcase per case.
//
//   write_junit("build/report/junit.xml", results, run.started);
//
// FAIL and XPASS are failures. HANG, CRASH, INVALID and MISSING are errors. SKIP, UNSUPPORTED and XFAIL are skipped,
// with their reason. The text of a failure begins with file:line of the scenario. Characters that XML 1.0 cannot hold
// are written as \xHH.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/verdict/results.hpp"

namespace lockstep::report {

std::string junit_xml(const std::vector<verdict::CaseResult>& results, const std::string& started = {});
// Writes the file as a whole (write_whole_file in text.hpp), with its folder. Throws Error or ResourceError.
void write_junit(const std::string& path, const std::vector<verdict::CaseResult>& results,
                 const std::string& started = {});

// The text in valid UTF-8 with only characters that XML 1.0 can hold: others become \xHH or \uHHHH, invalid bytes
// U+FFFD.
std::string xml_safe(std::string_view text);

}  // namespace lockstep::report
