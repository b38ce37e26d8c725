// Counts the active threads of a rank: its own thread and the workers of its streams, except those that sleep until
// another thread of the rank wakes them and those that wait for peers (engine/comm). If the count is zero, the rank can
// continue only when a peer does. The detection of wait cycles uses this (comm/wait_graph.hpp).
//
// A thread that wakes a sleeper counts it as active before it runs, so the count is never zero while a thread is about
// to continue. One object per rank; any thread of the rank may call it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "engine/core/rank_context.hpp"

namespace lockstep::device {

class Activity {
 public:
  explicit Activity(RankContext&) {}
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;
  void add(int threads = 1) { active_.fetch_add(threads); }
  void remove() { active_.fetch_sub(1); }
  bool none() const { return active_.load() == 0; }

 private:
  std::atomic<int> active_{1};  // the rank's own thread
};

// A condition variable whose waiting threads are not active.
class ActivityCondition {
 public:
  // Waits once, like std::condition_variable::wait without a predicate.
  void wait(std::unique_lock<std::mutex>& lock, Activity& activity) {
    ++num_asleep_;
    const unsigned generation = generation_;
    activity.remove();
    condition_.wait(lock);
    if (generation_ != generation) return;  // count_awake() has counted this thread
    --num_asleep_;
    activity.add();
  }
  // Counts all waiting threads as active. The caller holds their lock and then calls notify(), with or without the
  // lock.
  void count_awake(Activity& activity) {
    if (num_asleep_ == 0) return;
    activity.add(num_asleep_);
    num_asleep_ = 0;
    ++generation_;
  }
  void notify() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
  int num_asleep_ = 0;
  unsigned generation_ = 0;  // increases with each count_awake()
};

}  // namespace lockstep::device
