// How many threads of a rank can go on without any other rank: the rank's own thread and the workers of its streams,
// less those that sleep until another thread of the rank wakes them, and those that wait for peers (engine/comm). At
// zero the rank goes on only when a peer does.
//
// Whoever wakes a sleeper counts it before it runs, so that the number is never zero while a thread is about to go on.
// One per rank; any of its threads may call.
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

// A condition variable whose sleepers are not active.
class ActivityCondition {
 public:
  // Sleeps once, as std::condition_variable does.
  void wait(std::unique_lock<std::mutex>& lock, Activity& activity) {
    ++num_asleep_;
    const unsigned call = num_calls_;
    activity.remove();
    condition_.wait(lock);
    if (num_calls_ != call) return;  // whoever called has counted this thread
    --num_asleep_;
    activity.add();
  }
  // Under the lock of the sleepers: all of them are active from now on. notify() comes next, with the lock or without.
  void count_awake(Activity& activity) {
    if (num_asleep_ == 0) return;
    activity.add(num_asleep_);
    num_asleep_ = 0;
    ++num_calls_;
  }
  void notify() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
  int num_asleep_ = 0;
  unsigned num_calls_ = 0;
};

}  // namespace lockstep::device
