// One run of a case under a schedule (engine/core/schedule.hpp): what decides, and the record of what was decided. The
// record lies in memory that the launcher shares with the process of the ranks.
//
//   options.schedule = std::make_shared<RunSchedule>();
//   options.schedule->spec = {.kind = SchedulePolicy::random, .seed = 7};
//   launch(options, function);
//   options.schedule->record().switches()
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/core/schedule.hpp"

namespace lockstep::launch {

enum class SchedulePolicy { random, pct, replay };

struct ScheduleSpec {
  SchedulePolicy kind = SchedulePolicy::replay;
  std::uint64_t seed = 0;
  int depth = 1;                             // of pct
  std::uint64_t steps = 0;                   // of pct: those of a run of the same case
  std::vector<schedule::Switch> switches{};  // of replay
};
std::unique_ptr<schedule::Policy> policy_of(const ScheduleSpec& spec);

struct RunSchedule {
  RunSchedule();  // throws ResourceError if the machine refuses the memory
  ~RunSchedule();
  RunSchedule(const RunSchedule&) = delete;
  RunSchedule& operator=(const RunSchedule&) = delete;
  schedule::Record& record() const { return *record_; }

  ScheduleSpec spec;
  int core = 0;  // on which its threads run, of those that the process may use: one runs at a time

 private:
  schedule::Record* record_ = nullptr;
};

// The threads of the ranks of one process as actors. Without a schedule it does nothing.
class RankActors {
 public:
  RankActors(const std::vector<int>& ranks, RunSchedule* schedule);
  void retire(int rank);  // its thread could not be started
  void start();           // once all threads have been started

  // The life of a rank's thread: begins when the scheduler picks it.
  class Turn {
   public:
    Turn(RankActors& actors, int rank);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    schedule::Actor* actor_;
  };

 private:
  std::unique_ptr<schedule::Policy> policy_;
  std::unique_ptr<schedule::Scheduler> scheduler_;
  std::map<int, schedule::Actor*> actors_;
};

}  // namespace lockstep::launch
