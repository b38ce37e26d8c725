#include "engine/device/stream.hpp"

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/runtime.hpp"

namespace lockstep::device {

namespace {
constexpr std::array<std::string_view, num_roles> role_names = {"compute",        "copy_in",    "all_gather",
                                                                "reduce_scatter", "all_reduce", "copy_out"};
}

std::string_view name_of(Role role) { return role_names[static_cast<std::size_t>(role)]; }

// ---- the queue of a stream that does not run inline

void StreamState::push(Item item, bool may_block) {
  std::unique_lock lock(mutex);
  if (error) std::rethrow_exception(error);
  queue.push_back(std::move(item));
  ++issued;
  if (may_block) wake_worker(issued, lock);
}

void StreamState::wake_worker(std::uint64_t number, std::unique_lock<std::mutex>& lock) {
  if (completed >= number || worker_target >= number) return;
  if (!worker.joinable()) {
    activity.add();
    try {
      worker = std::thread([this] { run_worker(); });
    } catch (const std::system_error& refused) {
      activity.remove();
      throw resource_error("starting the thread of a stream", refused.code().value());
    }
    worker_target = number;
    return;
  }
  worker_target = number;
  if (!running) {
    wake.count_awake(activity);
    lock.unlock();  // otherwise the woken thread would block on it
    wake.notify();
  }
}

bool StreamState::is_idle() const {
  if (completed.load(std::memory_order_acquire) != issued) return false;
  if (error) std::rethrow_exception(error);
  return true;
}

void StreamState::complete_on_host(const std::exception_ptr& failure) {
  ++issued;
  if (failure) {
    std::lock_guard lock(mutex);
    error = failure;
    failed_at = issued;
  }
  completed.store(issued, std::memory_order_release);  // no thread waits for an item that was never queued
}

void StreamState::run_next(std::unique_lock<std::mutex>& lock) {
  running = true;
  const bool drop = error != nullptr;
  std::exception_ptr failure;
  {
    Item item = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    if (!drop) {
      try {
        if (item.awaited) {
          item.awaited->wait_for(item.number_awaited);
        } else {
          item.body(item.pointers);
        }
      } catch (...) {
        failure = std::current_exception();
      }
    }
  }  // the body's owned objects are destroyed before its completion becomes visible
  lock.lock();
  running = false;
  const std::uint64_t number = completed.load(std::memory_order_relaxed) + 1;
  if (failure && !error) {
    error = failure;
    failed_at = number;
  }
  completed.store(number, std::memory_order_release);
  if (number >= next_awaited) {
    next_awaited = no_waiter;  // threads that wait for later items set it again
    progress.count_awake(activity);
    lock.unlock();
    progress.notify();
    lock.lock();
  }
}

void StreamState::run_worker() {
  std::unique_lock lock(mutex);
  while (true) {
    while (!stop && (running || queue.empty() || completed >= worker_target)) wake.wait(lock, activity);
    // Once awake, it also runs the items after worker_target.
    while (!stop && !running && !queue.empty()) run_next(lock);
    if (stop) return;
  }
}

void StreamState::await_completed(std::uint64_t number, std::unique_lock<std::mutex>& lock) {
  bool ran = false;
  while (completed < number && !stop) {
    if (!running && !queue.empty()) {
      run_next(lock);
      ran = true;
    } else {
      next_awaited = std::min(next_awaited, number);
      progress.wait(lock, activity);
    }
  }
  if (!ran || running || queue.empty()) return;
  // Other threads may have waited while this one was running; they continue with the remaining items.
  if (next_awaited != no_waiter) {
    next_awaited = no_waiter;
    progress.count_awake(activity);
    progress.notify();
  }
  if (completed < worker_target) {
    wake.count_awake(activity);
    wake.notify();
  }
}

void StreamState::wait_for(std::uint64_t number) {
  std::unique_lock lock(mutex);
  await_completed(number, lock);
  if (error && failed_at <= number) std::rethrow_exception(error);
  // Only at the end of the rank. The caller must not continue as if the item had run.
  if (completed < number) throw Error(str("stream ", name, " ended before it ran the awaited launch"));
}

bool StreamState::has_completed_or_wake(std::uint64_t number) {
  if (has_completed(number)) return true;
  std::unique_lock lock(mutex);
  wake_worker(number, lock);
  return false;
}

bool StreamState::has_completed(std::uint64_t number) const {
  return completed.load(std::memory_order_acquire) >= number;
}

bool StreamState::has_succeeded(std::uint64_t number) {
  if (!has_completed(number)) return false;
  std::lock_guard lock(mutex);
  return !error;
}

void StreamState::flush_deferred(std::uint64_t up_to) {
  while (!deferred.empty() && deferred.front().number <= up_to) {
    const Deferred next = std::move(deferred.front());
    deferred.pop_front();  // before it runs: it may launch on this stream, or throw
    next.finish(next.pointers);
  }
}

void StreamState::clear_failure() {
  while (!deferred.empty()) {
    try {
      flush_deferred(num_deferred);
    } catch (...) {
      // Already reported. The failed launch is out of the list.
    }
  }
  std::unique_lock lock(mutex);
  await_completed(issued, lock);
  error = nullptr;
  failed_at = 0;
}

// ---- streams

Stream::~Stream() = default;

std::string Stream::name() const { return str(to_text(device_), "/", name_of(role_)); }

Event Stream::record() {
  Event event;
  event.state_ = std::make_shared<Event::State>();
  event.state_->stream = state_;
  event.state_->runs_inline = inline_;
  event.state_->number = inline_ ? state_->num_deferred : state_->issued;
  if (OrderCheck& order = state_->runtime->order(); order.on()) {
    order.learn_from_host(state_->clock);
    event.state_->known = state_->clock.known;
  }
  return event;
}

void Stream::wait(const Event& event) {
  if (!event.defined() || event.state_->stream == state_) return;
  const Event::State& awaited = *event.state_;
  if (OrderCheck& order = state_->runtime->order(); order.on()) order.stream_learns(state_->clock, awaited.known);
  if (awaited.runs_inline) {
    awaited.stream->flush_deferred(awaited.number);
  } else if (inline_) {
    awaited.stream->wait_for(awaited.number);
  } else if (awaited.number > 0 && !awaited.stream->has_succeeded(awaited.number)) {
    StreamState::Item item;
    item.awaited = awaited.stream;
    item.number_awaited = awaited.number;
    state_->push(std::move(item), false);
  }
}

void Stream::synchronize() {
  if (inline_) {
    state_->flush_deferred(state_->num_deferred);
  } else {
    state_->wait_for(state_->issued);
  }
  OrderCheck& order = state_->runtime->order();
  if (order.on()) order.host_learns(state_->clock.known);
}

// ---- events

bool Event::done() const {
  if (!defined()) return true;
  if (!state_->runs_inline) return state_->stream->has_completed_or_wake(state_->number);
  state_->stream->flush_deferred(state_->number);
  return true;
}

void Event::synchronize() const {
  if (!defined()) return;
  if (state_->runs_inline) {
    state_->stream->flush_deferred(state_->number);
  } else {
    state_->stream->wait_for(state_->number);
  }
  Runtime* runtime = state_->stream->runtime;
  if (runtime != nullptr && runtime->order().on()) runtime->order().host_learns(state_->known);
}

// ---- the rank's streams

Stream& stream(Device device, Role role) { return Runtime::current().stream(device, role); }
Stream& current_stream(Device device) { return Runtime::current().current_stream(device); }

StreamScope::StreamScope(Stream& stream)
    : previous_(Runtime::current().exchange_current(stream.device(), &stream)), device_(stream.device()) {}
StreamScope::~StreamScope() { Runtime::current().exchange_current(device_, previous_); }

void synchronize_all() { Runtime::current().synchronize_all(); }
void clear_failures() { Runtime::current().clear_failures(); }

}  // namespace lockstep::device
