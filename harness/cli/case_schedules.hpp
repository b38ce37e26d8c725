// The runs of one case under `--schedule`: the schedules of the request until one fails, then the runs that leave
// switches out of it.
//
//   CaseSchedules schedules(options);
//   do row = run(schedules.current()); while (schedules.goes_on(row));
//   row = schedules.result();
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "harness/launch/schedule_search.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::cli {

struct ScheduleOptions {
  launch::ScheduleRequest request{};
  std::int64_t count = 1;  // schedules per case, of random and pct
  std::string folder{};    // for the files of schedules that fail
  int max_runs_to_shrink = 1000;
  double seconds_to_shrink = 60.0;
  bool is_on() const { return request.kind != launch::ScheduleRequest::Kind::none; }
};

class CaseSchedules {
 public:
  explicit CaseSchedules(const ScheduleOptions& options);
  // Of the run to start now.
  const std::shared_ptr<launch::RunSchedule>& current() const { return current_; }
  // After the run: whether another one follows.
  bool goes_on(verdict::CaseResult row);
  // The row of the case: that of the last schedule, or of the failing one with the fewest switches.
  verdict::CaseResult result() { return std::move(row_); }

  bool has_failed() const { return shrinker_.has_value(); }
  const std::vector<schedule::Switch>& switches() const { return shrinker_->switches(); }
  const std::string& found_by() const { return found_by_; }
  // "3 schedules passed, 812 decisions in the longest"; of a failure: the schedule, and its fewest switches.
  std::string text() const;

 private:
  bool search(verdict::CaseResult row);
  bool shrink(verdict::CaseResult row);
  bool start_candidate();

  ScheduleOptions options_;
  launch::ScheduleSearch search_;
  std::shared_ptr<launch::RunSchedule> current_;
  verdict::CaseResult row_;
  double seconds_ = 0.0, seconds_to_failure_ = 0.0;
  std::uint64_t most_decisions_ = 0;
  std::string found_by_;
  std::size_t num_found_ = 0;  // switches of the schedule that failed first
  std::optional<launch::SwitchShrinker> shrinker_;
};

}  // namespace lockstep::cli
