#include "harness/cli/schedule_file.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "engine/core/error.hpp"
#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "harness/report/text.hpp"
#include "harness/scenario/regular_file.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::cli {

namespace {
constexpr const char* head = "# A schedule of lockstep, version 1. Run it: lockstep run --schedule replay:THIS_FILE";

// Takes one of the options that are numbers. False for a text that is none, or out of range.
bool take_number(ScheduleFile& file, const std::string& key, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const bool is_time = key == "timeout" || key == "deadline";
  const double most = is_time ? 1e9 : key == "world_size" ? 1024.0 : static_cast<double>(scenario::limits::most_mb);
  if (text.empty() || *end != '\0' || !(number > 0.0) || number > most) return false;
  if (!is_time && std::floor(number) != number) return false;
  if (key == "timeout") file.timeout = number;
  if (key == "deadline") file.deadline = number;
  if (key == "world_size") file.world_size = static_cast<int>(number);
  if (key == "memory_mb") file.memory_mb = static_cast<std::int64_t>(number);
  if (key == "output_mb") file.output_mb = static_cast<std::int64_t>(number);
  return true;
}

}  // namespace

std::string to_text(const ScheduleFile& file) {
  std::string text = str(head, "\nscenario: ", file.scenario, "\ncase: ", file.case_id, "\n");
  for (const std::string& each : file.set) text += str("set: ", each, "\n");
  if (!file.defect.empty()) text += str("defect: ", file.defect, "\n");
  if (!file.order_check) text += "order_check: off\n";
  if (file.world_size) text += str("world_size: ", *file.world_size, "\n");
  if (file.timeout) text += str("timeout: ", *file.timeout, "\n");
  if (file.deadline) text += str("deadline: ", *file.deadline, "\n");
  if (file.memory_mb) text += str("memory_mb: ", *file.memory_mb, "\n");
  if (file.output_mb) text += str("output_mb: ", *file.output_mb, "\n");
  text += str("found_by: ", file.found_by, "\ncheck: ", printable_line(file.check), "\n");
  for (const schedule::Switch& each : file.switches) text += str("switch: ", to_text(each), "\n");
  return text;
}

ScheduleFile schedule_file_from_text(const std::string& text, const std::string& path) {
  ScheduleFile file;
  std::istringstream lines(text);
  std::string line;
  const auto refuse = [&](int number, const std::string& why) {
    throw Error(str(path, ":", number, ": ", why), "give a file that a failed `lockstep run --schedule` has written");
  };
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) refuse(number, "this is no line of a schedule");
    const std::string key = line.substr(0, colon), value = line.substr(colon + 2);
    if (key == "scenario") {
      file.scenario = value;
    } else if (key == "case") {
      file.case_id = value;
    } else if (key == "set") {
      file.set.push_back(value);
    } else if (key == "defect") {
      file.defect = value;
    } else if (key == "order_check") {
      file.order_check = value != "off";
    } else if (key == "world_size" || key == "timeout" || key == "deadline" || key == "memory_mb" ||
               key == "output_mb") {
      if (!take_number(file, key, value)) refuse(number, str("`", printable_line(value), "` is no `", key, "`"));
    } else if (key == "found_by") {
      file.found_by = value;
    } else if (key == "check") {
      file.check = value;
    } else if (key == "switch") {
      try {
        file.switches.push_back(schedule::switch_from_text(value));
      } catch (const Error& error) {
        refuse(number, error.message());
      }
    } else {
      refuse(number, str("`", printable_line(key), "` is no key of a schedule"));
    }
  }
  if (file.scenario.empty()) refuse(1, "the file names no scenario");
  return file;
}

std::string write_schedule(const std::string& folder, int number, const ScheduleFile& file) {
  const auto path_of = [&](int n) { return (std::filesystem::path(folder) / str("schedule-", n)).string(); };
  std::error_code ignored;  // writing meets it again
  while (std::filesystem::exists(path_of(number), ignored)) ++number;
  report::write_whole_file(path_of(number), to_text(file));
  return path_of(number);
}

ScheduleFile read_schedule_file(const std::string& path) {
  std::string text;
  try {
    text = scenario::read_regular_file(path, scenario::limits::file_bytes);
  } catch (const ResourceError&) {
    throw;
  } catch (const Error& error) {
    throw Error(str("--schedule: ", error.message()), "name the file of a schedule");
  }
  return schedule_file_from_text(text, path);
}

}  // namespace lockstep::cli
