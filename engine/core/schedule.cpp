#include "engine/core/schedule.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"

namespace lockstep::schedule {

namespace detail {
thread_local constinit Actor* self = nullptr;
}

std::vector<Switch> Record::switches() const {
  std::vector<Switch> found;
  for (std::uint64_t i = 0; i < num_kept; ++i) {
    const Decision& one = decisions[i];
    if (one.next != one.fallback) found.push_back({name(one.actor), one.own_step, name(one.next)});
  }
  return found;
}

// ---- actors

void Actor::begin() {
  detail::self = this;
  baton_.take();
}

void Actor::end() {
  if (detail::self == this) detail::self = nullptr;
  state_ = State::ended;
  if (Actor* next = scheduler_.pick(*this, false)) next->baton_.give();
}

void Actor::point() { scheduler_.give_up(*this, false); }
void Actor::poll() { scheduler_.give_up(*this, true); }

bool Actor::wait(const char* what, Condition condition, bool looks) {
  state_ = State::waiting;
  what_ = what;
  condition_ = condition;
  looks_ = looks;
  scheduler_.give_up(*this, false);
  state_ = State::able;
  if (is_stuck_) throw InternalError(scheduler_.stuck_text_);
  return !std::exchange(stalled_, false);
}

// ---- scheduler

Scheduler::Scheduler(Policy& policy, Record* record) : policy_(policy), record_(record) {
  if (record_ != nullptr) {
    record_->num_actors = 0;
    record_->num_decisions = record_->num_kept = 0;
    record_->digest = fnv1a_basis;
  }
}

Scheduler::~Scheduler() = default;

Actor& Scheduler::add(int rank, const std::string& thread) {
  const std::size_t index = actors_.size();
  if (index == Record::max_actors)
    throw Error(str("a schedule of more than ", Record::max_actors, " threads and streams"), "use fewer ranks");
  ActorName name{rank, thread};
  const auto is_taken = [&] {
    return std::any_of(actors_.begin(), actors_.end(), [&](const auto& each) { return each->name_ == name; });
  };
  for (int again = 2; is_taken(); ++again) name.thread = str(thread, " ", again);
  Actor& added = *actors_.emplace_back(new Actor(*this, std::move(name), static_cast<std::uint8_t>(index)));
  in_order_.insert(std::upper_bound(in_order_.begin(), in_order_.end(), &added,
                                    [](const Actor* a, const Actor* b) { return a->name_ < b->name_; }),
                   &added);
  if (record_ != nullptr) {
    const std::string text = to_text(added.name_);
    record_->names[index].fill('\0');
    text.copy(record_->names[index].data(), record_->names[index].size() - 1);
    record_->num_actors = static_cast<std::uint32_t>(index + 1);
  }
  return added;
}

void Scheduler::start() {
  LOCKSTEP_CHECK(!in_order_.empty(), "a schedule without actors");
  for (Actor* first : in_order_) {
    if (first->state_ == Actor::State::ended) continue;
    first->baton_.give();
    return;
  }
}

void Scheduler::give_up(Actor& me, bool must_leave) {
  Actor* const next = pick(me, must_leave);
  if (next == &me) return;
  next->baton_.give();
  me.baton_.take();
}

Actor* Scheduler::pick(Actor& me, bool must_leave) {
  able_.clear();
  able_names_.clear();
  for (Actor* each : in_order_)
    if (each->state_ == Actor::State::able || (each->state_ == Actor::State::waiting && each->condition_.holds()))
      able_.push_back(each);
  if (able_.empty()) return pick_looking();
  looked_ = 0;
  if (must_leave && able_.size() > 1) std::erase(able_, &me);
  for (const Actor* each : able_) able_names_.push_back(&each->name_);
  // The current actor goes on; otherwise the next one in order, and after the last the first.
  auto fallback = std::find(able_.begin(), able_.end(), &me);
  if (fallback == able_.end())
    fallback = std::find_if(able_.begin(), able_.end(), [&](const Actor* each) { return me.name_ < each->name_; });
  if (fallback == able_.end()) fallback = able_.begin();
  const auto fallback_index = static_cast<std::size_t>(fallback - able_.begin());
  ++me.steps_;
  Actor* const next = able_[policy_.choose({++steps_, &me.name_, me.steps_, able_names_, fallback_index, must_leave})];
  note(me, *next, **fallback);
  return next;
}

void Scheduler::note(const Actor& me, const Actor& next, const Actor& fallback) {
  if (record_ == nullptr) return;
  ++record_->num_decisions;
  for (const std::uint8_t byte : {me.index_, next.index_}) record_->digest = (record_->digest ^ byte) * fnv1a_prime;
  if (record_->num_kept == Record::max_kept) return;
  Record::Decision& kept = record_->decisions[record_->num_kept];
  kept = {me.index_, next.index_, fallback.index_, me.steps_, {}};
  for (const Actor* each : able_) kept.able[each->index_ / 64] |= std::uint64_t{1} << (each->index_ % 64);
  ++record_->num_kept;
}

// No actor can run: the next one that looks for deadlocks and deadlines does. These turns are no decisions.
Actor* Scheduler::pick_looking() {
  const auto looks = [](const Actor* each) { return each->state_ == Actor::State::waiting && each->looks_; };
  if (std::none_of(in_order_.begin(), in_order_.end(), looks)) {
    for (Actor* each : in_order_)
      if (each->state_ == Actor::State::waiting) return &stuck(*each);
    return nullptr;  // all have ended
  }
  for (;; looked_ = 0, std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    while (looked_ < in_order_.size()) {
      Actor* const each = in_order_[looked_++];
      if (!looks(each)) continue;
      each->stalled_ = true;
      return each;
    }
}

Actor& Scheduler::stuck(Actor& first) {
  stuck_text_ = "no actor of the schedule can run:";
  for (const Actor* each : in_order_)
    if (each->state_ == Actor::State::waiting)
      stuck_text_ += str(" ", to_text(each->name_), " waits for ", each->what_, ";");
  first.is_stuck_ = true;
  return first;
}

}  // namespace lockstep::schedule
