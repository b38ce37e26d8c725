// Which schedules a case runs under, one after the other, and the fewest switches of one that fails. Pure functions of
// the records of earlier runs.
//
//   ScheduleSearch search(request_from_text("random:7"), 200);
//   while (auto spec = search.next()) search.ran(run_under(*spec));
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "harness/launch/run_schedule.hpp"

namespace lockstep::launch {

struct ScheduleRequest {
  enum class Kind { none, random, pct, exhaustive, replay };
  Kind kind = Kind::none;
  std::uint64_t seed = 0;
  int depth = 1;                             // of pct
  std::int64_t bound = 0;                    // of exhaustive: the number of schedules
  std::string file{};                        // of replay
  std::vector<schedule::Switch> switches{};  // of replay; the caller reads them from `file`
};
// "random:SEED", "pct:DEPTH,SEED", "exhaustive:N", "replay:FILE" or a path with a `/` or a `.`. Throws Error otherwise.
ScheduleRequest request_from_text(const std::string& text);

// The schedules of one case.
//   random, pct   `count` schedules, with the seeds SEED, SEED + 1, ... Before those of pct, one without switches gives
//                 the number of steps from which change points are drawn.
//   exhaustive    all schedules, those with fewer switches first, and of these the ones with earlier switches; at most
//   N replay        one
class ScheduleSearch {
 public:
  ScheduleSearch(ScheduleRequest request, std::int64_t count);
  std::optional<ScheduleSpec> next();        // nothing: it has ended
  void ran(const schedule::Record& record);  // after each next()
  std::string text() const;                  // of the last schedule: "random:9", "pct:3,9", "no switches"
  std::int64_t num_run() const { return num_run_; }
  bool has_run_all() const { return request_.kind == ScheduleRequest::Kind::exhaustive && frontier_.empty(); }

 private:
  // A schedule that has run, and the switches that may follow its last one.
  struct Branch {
    std::vector<schedule::Switch> switches;
    std::vector<schedule::Switch> more;
    std::size_t next = 0;
  };
  std::optional<ScheduleSpec> next_exhaustive();

  ScheduleRequest request_;
  std::int64_t count_;
  std::int64_t num_run_ = 0;
  std::uint64_t steps_ = 0;
  ScheduleSpec last_;
  std::deque<Branch> frontier_;
};

// Leaves switches out of a schedule that fails, as long as it fails (Zeller and Hildebrandt, "Simplifying and isolating
// failure-inducing input", 2002: the complements of n parts, then of 2n parts).
class SwitchShrinker {
 public:
  SwitchShrinker(std::vector<schedule::Switch> failing, int max_runs);
  const std::vector<schedule::Switch>& switches() const { return switches_; }  // the fewest so far
  std::optional<std::vector<schedule::Switch>> candidate();                    // to run next; nothing: it has ended
  void judged(bool fails, const schedule::Record& record);                     // after each candidate()
  int num_run() const { return num_run_; }

 private:
  std::vector<schedule::Switch> switches_, candidate_;
  int max_runs_, num_run_ = 0;
  bool tried_none_ = false;
  std::size_t parts_ = 2, part_ = 0;
};

}  // namespace lockstep::launch
