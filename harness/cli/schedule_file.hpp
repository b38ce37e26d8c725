// The file of a schedule that failed: the case, the options of the run and the switches, a line each. `lockstep run
// --schedule replay:FILE` runs the case again as the file says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/launch/schedule_search.hpp"

namespace lockstep::cli {

struct ScheduleFile {
  std::string scenario;            // name, or path of a user's own file
  std::string case_id;             // "world_size=2,launch=thread,device=sim"
  std::vector<std::string> set{};  // of --set
  std::string defect{};
  bool order_check = true;
  std::optional<int> world_size{};                       // of --world-size
  std::optional<double> timeout{}, deadline{};           // of --timeout and --deadline, in seconds
  std::optional<std::int64_t> memory_mb{}, output_mb{};  // of --memory-mb and --output-mb
  std::string found_by{};                                // the schedule that failed first: "random:7"
  std::string check{};                                   // which check failed, and how
  std::vector<schedule::Switch> switches{};
};

std::string to_text(const ScheduleFile& file);
ScheduleFile schedule_file_from_text(const std::string& text, const std::string& path);  // throws Error with the line
// Writes it as FOLDER/schedule-N, where N is the first number from `number` on that no file has, and returns that path:
// the file of an earlier run is kept, because a results file may name it. A file of this name is whole. Throws Error,
// or ResourceError when the machine lacks space or files.
std::string write_schedule(const std::string& folder, int number, const ScheduleFile& file);
ScheduleFile read_schedule_file(const std::string& path);  // throws Error

}  // namespace lockstep::cli
