#include "harness/report/junit.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <pugixml.hpp>

#include "engine/core/text.hpp"
#include "harness/report/console.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {

namespace {

using verdict::CaseResult;
using verdict::Status;

enum class Outcome { passed, failed, error, skipped };

Outcome outcome_of(Status status) {
  switch (status) {
    case Status::PASS:
      return Outcome::passed;
    case Status::FAIL:
    case Status::XPASS:
      return Outcome::failed;
    case Status::SKIP:
    case Status::UNSUPPORTED:
    case Status::XFAIL:
      return Outcome::skipped;
    case Status::HANG:
    case Status::CRASH:
    case Status::INVALID:
    case Status::MISSING:
      break;
  }
  return Outcome::error;
}

// The schema demands decimals without an exponent.
std::string time_text(double seconds) { return fmt::format("{:.3f}", seconds > 0 && seconds < 1e9 ? seconds : 0.0); }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string short_message(const CaseResult& row) {
  if (row.failure) return first_line(row.failure->message);
  return row.reason.empty() ? std::string(verdict::name_of(row.status)) : row.reason;
}

void set(pugi::xml_node node, const char* name, const std::string& value) {
  node.append_attribute(name) = xml_safe(printable_line(value)).c_str();
}

struct Totals {
  int tests = 0;
  int failures = 0;
  int errors = 0;
  int skipped = 0;
  double seconds = 0.0;
  void add(const CaseResult& row) {
    ++tests;
    const Outcome outcome = outcome_of(row.status);
    failures += outcome == Outcome::failed ? 1 : 0;
    errors += outcome == Outcome::error ? 1 : 0;
    skipped += outcome == Outcome::skipped ? 1 : 0;
    seconds += row.seconds > 0 ? row.seconds : 0.0;
  }
};

// The line that an editor should open: the failed step, or the step of the scenario's own file that called its routine.
int line_of(const CaseResult& row) {
  if (!row.failure) return 1;
  if (row.failure->file == row.file && row.failure->line > 0) return row.failure->line;
  return std::max(row.failure->scenario_line, 1);
}

void add_properties(pugi::xml_node testcase, const CaseResult& row) {
  pugi::xml_node properties = testcase.append_child("properties");
  const auto add = [&](const char* name, const std::string& value) {
    pugi::xml_node property = properties.append_child("property");
    set(property, "name", name);
    set(property, "value", value);
  };
  add("status", std::string(verdict::name_of(row.status)));
  add("world_size", str(row.world_size));
  if (!row.launch.empty()) add("launch", row.launch);
  if (!row.device.empty()) add("device", row.device);
  if (row.mirrors) add("mirrors", str(*row.mirrors));
  add("comparisons", str(row.evidence.comparisons));
  add("same_bits", str(row.evidence.same_bits));
  if (!row.sum_order.empty()) add("sum_order", row.sum_order);
  add("collectives_checked", str(row.evidence.collectives_checked));
  if (!row.repro.empty()) add("repro", row.repro);
}

void add_case(pugi::xml_node suite, const CaseResult& row, const std::string& name) {
  pugi::xml_node node = suite.append_child("testcase");
  set(node, "name", name);
  set(node, "classname", row.scenario);
  set(node, "time", time_text(row.seconds));
  if (!row.file.empty()) {
    set(node, "file", row.file);
    set(node, "line", str(line_of(row)));
  }
  add_properties(node, row);
  const Outcome outcome = outcome_of(row.status);
  if (outcome == Outcome::passed) return;
  if (outcome == Outcome::skipped) {
    pugi::xml_node skipped = node.append_child("skipped");
    set(skipped, "type", std::string(verdict::name_of(row.status)));
    const std::string reason = row.reason.empty() ? short_message(row) : row.reason;
    set(skipped, "message", row.status == Status::XFAIL ? "expected failure: " + reason : reason);
    if (row.failure) skipped.append_child(pugi::node_pcdata).set_value(xml_safe(failure_text(row)).c_str());
    return;
  }
  pugi::xml_node bad = node.append_child(outcome == Outcome::failed ? "failure" : "error");
  set(bad, "type", std::string(verdict::name_of(row.status)));
  set(bad, "message", short_message(row));
  bad.append_child(pugi::node_pcdata).set_value(xml_safe(failure_text(row)).c_str());
}

}  // namespace

std::string xml_safe(std::string_view text) {
  const std::string shown = printable(text);
  std::string out;
  out.reserve(shown.size());
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (shown.compare(i, 3, "\xef\xbf\xbe") == 0 || shown.compare(i, 3, "\xef\xbf\xbf") == 0) {
      out += "\xef\xbf\xbd";  // U+FFFE and U+FFFF are valid UTF-8, but not characters of XML
      i += 2;
    } else {
      out += shown[i];
    }
  }
  return out;
}

std::string junit_xml(const std::vector<CaseResult>& results, const std::string& started) {
  // Suites are in the order of the first case of each scenario.
  std::vector<std::string> order;
  std::map<std::string, std::vector<const CaseResult*>> suites;
  Totals all;
  for (const CaseResult& row : results) {
    auto& suite = suites[row.scenario];
    if (suite.empty()) order.push_back(row.scenario);
    suite.push_back(&row);
    all.add(row);
  }
  pugi::xml_document document;
  pugi::xml_node declaration = document.prepend_child(pugi::node_declaration);
  declaration.append_attribute("version") = "1.0";
  declaration.append_attribute("encoding") = "UTF-8";
  pugi::xml_node root = document.append_child("testsuites");
  set(root, "name", "lockstep");
  set(root, "time", time_text(all.seconds));
  set(root, "tests", str(all.tests));
  set(root, "failures", str(all.failures));
  set(root, "errors", str(all.errors));
  for (const std::string& scenario : order) {
    Totals totals;
    for (const CaseResult* row : suites[scenario]) totals.add(*row);
    pugi::xml_node suite = root.append_child("testsuite");
    set(suite, "name", scenario);
    set(suite, "tests", str(totals.tests));
    set(suite, "failures", str(totals.failures));
    set(suite, "errors", str(totals.errors));
    set(suite, "skipped", str(totals.skipped));
    set(suite, "time", time_text(totals.seconds));
    if (!started.empty()) set(suite, "timestamp", started);
    // A repeated case gets a number, because the names of testcases must differ.
    std::map<std::string, int> seen;
    for (const CaseResult* row : suites[scenario]) {
      const int times = ++seen[row->case_id];
      add_case(suite, *row, times == 1 ? row->case_id : str(row->case_id, " (", times, ")"));
    }
  }
  std::ostringstream out;
  document.save(out, "  ", pugi::format_default, pugi::encoding_utf8);
  return out.str();
}

void write_junit(const std::string& path, const std::vector<CaseResult>& results, const std::string& started) {
  write_whole_file(path, junit_xml(results, started));
}

}  // namespace lockstep::report
