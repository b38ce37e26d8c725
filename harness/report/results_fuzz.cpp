// Any text is a results file or is refused. What was read is written as lines that read back as the same lines.
#include <cstdint>

#include "engine/core/error.hpp"
#include "harness/report/results_file.hpp"

namespace {

std::string lines_of(const lockstep::report::ResultsFile& file) {
  std::string lines = lockstep::report::json_line(file.run) + "\n";
  for (const auto& row : file.cases) lines += lockstep::report::json_line(row) + "\n";
  if (file.summary) lines += lockstep::report::json_line(*file.summary) + "\n";
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  std::string lines;
  try {
    lines = lines_of(report::parse_results({reinterpret_cast<const char*>(data), size}, "fuzz.jsonl"));
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    return 0;
  }
  const std::string again = lines_of(report::parse_results(lines, "again.jsonl"));
  LOCKSTEP_CHECK(again == lines, str("written as ", lines, "read back as ", again));
  return 0;
}
