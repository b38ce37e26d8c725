// The end of a rank in the middle of its next steps: a thread that ends the process after some time.
//
//   DelayedKill kill(300, [] { launch::end_rank_by_signal(); });
//   ...                                                           // the steps
//   kill.wait();                                                  // does not return
//
// A rank that leaves the scope before, because a step failed, lives on and reports its failure.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::run {

class DelayedKill {
 public:
  // Calls `end`, which must not return, with the context of the calling rank.
  DelayedKill(double after_ms, std::function<void()> end);
  ~DelayedKill();
  DelayedKill(const DelayedKill&) = delete;
  DelayedKill& operator=(const DelayedKill&) = delete;

  [[noreturn]] void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changes_;
  bool is_cancelled_ = false;
  std::thread thread_;
};

}  // namespace lockstep::run
