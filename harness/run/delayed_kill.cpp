#include "harness/run/delayed_kill.hpp"

#include <chrono>
#include <utility>

#include "engine/core/rank_context.hpp"

namespace lockstep::run {

DelayedKill::DelayedKill(double after_ms, std::function<void()> end)
    : thread_([this, after_ms, end = std::move(end), &context = RankContext::current()] {
        std::unique_lock lock(mutex_);
        const std::chrono::duration<double, std::milli> time(after_ms);
        if (changes_.wait_for(lock, time, [&] { return is_cancelled_; })) return;
        const RankScope scope(context);
        end();
      }) {}

DelayedKill::~DelayedKill() {
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
  }
  changes_.notify_all();
  thread_.join();
}

void DelayedKill::wait() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace lockstep::run
