#include "harness/launch/run_schedule.hpp"

#include <cerrno>

#include <sys/mman.h>

#include "engine/core/resources.hpp"

namespace lockstep::launch {

std::unique_ptr<schedule::Policy> policy_of(const ScheduleSpec& spec) {
  switch (spec.kind) {
    case SchedulePolicy::random:
      return schedule::random_policy(spec.seed);
    case SchedulePolicy::pct:
      return schedule::pct_policy(spec.depth, spec.seed, spec.steps);
    case SchedulePolicy::replay:
      break;
  }
  return schedule::replay_policy(spec.switches);
}

RunSchedule::RunSchedule() {
  void* memory = ::mmap(nullptr, sizeof(schedule::Record), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw resource_error("mapping the record of a schedule", errno);
  record_ = static_cast<schedule::Record*>(memory);  // pages of zeros: an empty record
}

RunSchedule::~RunSchedule() { ::munmap(record_, sizeof(schedule::Record)); }

RankActors::RankActors(const std::vector<int>& ranks, RunSchedule* schedule) {
  if (schedule == nullptr) return;
  policy_ = policy_of(schedule->spec);
  scheduler_ = std::make_unique<schedule::Scheduler>(*policy_, &schedule->record());
  for (const int rank : ranks) actors_[rank] = &scheduler_->add(rank, "");
}

void RankActors::retire(int rank) {
  if (scheduler_) actors_.at(rank)->retire();
}

void RankActors::start() {
  if (scheduler_) scheduler_->start();
}

RankActors::Turn::Turn(RankActors& actors, int rank) : actor_(actors.scheduler_ ? actors.actors_.at(rank) : nullptr) {
  if (actor_ != nullptr) actor_->begin();
}

RankActors::Turn::~Turn() {
  if (actor_ != nullptr) actor_->end();
}

}  // namespace lockstep::launch
