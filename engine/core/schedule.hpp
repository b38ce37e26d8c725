// Schedules: who runs next is decided by a policy and not by the machine, so that any interleaving can be repeated.
//
// Actors are the threads of a case's ranks: each rank's own thread and each stream of its sim devices (and the thread
// of an asynchronous save). Exactly one actor runs at a time: the one that has the baton. It gives the baton up at
// decision points only, where the scheduler picks the next of the actors that can run:
//   - a rank's thread, after it has issued a launch, an event wait or a collective to a stream;
//   - a stream, before each item, and within a collective between arrival, data and departure;
//   - every wait: for an event, for peers, for an item. A waiting actor states a condition and can run when it holds.
// Between two points an actor runs alone, so its accesses need no lock, and the same decisions give the same run.
//
// Under a schedule no launch on sim runs at once: it waits in its stream until the scheduler picks the stream. A wait
// that is missing in the program therefore shows as a wrong value in some schedule. Memory that has been freed is
// filled with NaN in stream order, and so is memory that a launch only writes, before it does.
//
// Policies (schedule_policy.hpp): random, priorities with change points (PCT), and the replay of a list of switches. A
// switch is a decision that differs from the fallback: the current actor goes on if it can, otherwise the next one in
// order of rank and name runs. A list of switches is a schedule. The record of a run names all its decisions.
//
// Waits of which no condition holds are a deadlock. The scheduler then lets the waiting actors look in turn
// (`stalled`), so that the search of comm/wait_graph.hpp names the cycle, and deadlines end what it cannot name.
//
//   if (schedule::Actor* me = schedule::self()) [[unlikely]]   // null without a schedule: one thread-local load
//     me->wait("an event", [&] { return completed >= number; });
//
// One scheduler per process. Its actors are created by actors, or before start(). No actor may hold a mutex that
// another actor takes when it comes to a decision point.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <semaphore.h>

#include "engine/core/schedule_policy.hpp"

namespace lockstep::schedule {

class Scheduler;

// What a run has decided, in memory that the launcher shares with the process of the ranks, so that it survives a
// crash. Decisions after the first `max_kept` are counted and not kept.
struct Record {
  static constexpr std::size_t max_actors = 128;
  static constexpr std::size_t max_kept = std::size_t{1} << 17;
  struct Decision {
    std::uint8_t actor = 0, next = 0, fallback = 0;  // indices into `names`
    std::uint32_t own_step = 0;                      // the step of `actor`, from 1
    std::array<std::uint64_t, 2> able{};             // bit set of the actors that could run
    bool can_run(std::size_t i) const { return ((able[i / 64] >> (i % 64)) & 1u) != 0; }
  };
  std::uint32_t num_actors = 0;
  std::array<std::array<char, 56>, max_actors> names{};
  std::uint64_t num_decisions = 0;
  std::uint64_t num_kept = 0;
  std::uint64_t digest = 0;  // of all decisions: equal for runs that decided the same
  std::array<Decision, max_kept> decisions;

  std::string name(std::size_t actor) const { return names[actor].data(); }
  // The decisions that differ from the fallback.
  std::vector<Switch> switches() const;
};

// A condition, by reference: it must outlive the call that takes it.
class Condition {
 public:
  Condition() = default;
  template <class F>
  explicit Condition(const F& holds)
      : object_(&holds), call_([](const void* object) -> bool { return (*static_cast<const F*>(object))(); }) {}
  bool holds() const { return call_(object_); }

 private:
  const void* object_ = nullptr;
  bool (*call_)(const void*) = nullptr;
};

// The right to run, which one thread hands to another. take() sleeps at once, unlike that of std::binary_semaphore: on
// one core, a thread that spins delays the one it waits for.
class Baton {
 public:
  Baton() { ::sem_init(&semaphore_, 0, 0); }
  ~Baton() { ::sem_destroy(&semaphore_); }
  Baton(const Baton&) = delete;
  Baton& operator=(const Baton&) = delete;
  void give() { ::sem_post(&semaphore_); }
  void take() {
    while (::sem_wait(&semaphore_) != 0) {  // a signal was handled
    }
  }

 private:
  sem_t semaphore_;
};

// A thread or stream whose turns the scheduler decides.
class Actor {
 public:
  const ActorName& name() const { return name_; }
  Scheduler& scheduler() const { return scheduler_; }

  // ---- the actor's own thread, which has the baton
  void point();  // others may run
  void poll();   // another actor runs if one can: for loops that ask again and again
  // Returns true when the condition holds. `what` is a literal, for the text of a deadlock. Throws InternalError if no
  // actor can ever run.
  template <class F>
  void wait(const char* what, const F& condition) {
    wait(what, Condition(condition), false);
  }
  // Returns false if no actor can run: the caller looks for a deadlock or a deadline, and waits again.
  template <class F>
  bool wait_or_stall(const char* what, const F& condition) {
    return wait(what, Condition(condition), true);
  }
  void begin();                             // first call of its thread: returns when the scheduler picks it
  void end();                               // last call of its thread; another actor runs
  void retire() { state_ = State::ended; }  // of the creator, which has the baton: its thread could not be started
  bool has_ended() const { return state_ == State::ended; }

 private:
  friend class Scheduler;
  enum class State : std::uint8_t { able, waiting, ended };
  Actor(Scheduler& scheduler, ActorName name, std::uint8_t index)
      : scheduler_(scheduler), name_(std::move(name)), index_(index) {}
  bool wait(const char* what, Condition condition, bool looks);

  Scheduler& scheduler_;
  ActorName name_;
  std::uint8_t index_;
  State state_ = State::able;
  const char* what_ = "";
  Condition condition_;
  bool looks_ = false;     // when nothing can run
  bool stalled_ = false;   // woken to look
  bool is_stuck_ = false;  // woken to throw
  std::uint32_t steps_ = 0;
  Baton baton_;
};

class Scheduler {
 public:
  // `record` may be null. Both outlive the scheduler.
  Scheduler(Policy& policy, Record* record);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // A new actor; its thread must call begin() and end(). The second thread of one name is called "NAME 2". Throws Error
  // for more than Record::max_actors.
  Actor& add(int rank, const std::string& thread);
  void start();  // after the first actors have been added: one of them runs

 private:
  friend class Actor;
  void give_up(Actor& me, bool must_leave);  // returns when `me` has the baton again
  Actor* pick(Actor& me, bool must_leave);
  Actor* pick_looking();
  Actor& stuck(Actor& first);
  void note(const Actor& me, const Actor& next, const Actor& fallback);

  Policy& policy_;
  Record* record_;
  std::vector<std::unique_ptr<Actor>> actors_;  // by index
  std::vector<Actor*> in_order_;                // by rank and name
  std::vector<Actor*> able_;
  std::vector<const ActorName*> able_names_;
  std::uint64_t steps_ = 0;
  std::size_t looked_ = 0;  // how many of in_order_ have looked since some actor could run
  std::string stuck_text_;
};

namespace detail {
extern thread_local constinit Actor* self;
}
// The actor of this thread; null without a schedule.
inline Actor* self() { return detail::self; }

// A point of this thread's actor, if it is one.
inline void point() {
  if (Actor* me = self()) [[unlikely]]
    me->point();
}

}  // namespace lockstep::schedule
