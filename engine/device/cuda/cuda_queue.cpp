#include "engine/device/cuda/cuda_queue.hpp"

#include <chrono>
#include <utility>

#include <sys/prctl.h>

#include "engine/core/error.hpp"
#include "engine/core/start_thread.hpp"
#include "engine/device/cuda/streams.hpp"

namespace lockstep::device::cuda {

namespace {
// How long the end of a rank waits for the work on a stream. Only work that waits for a peer takes longer.
constexpr std::chrono::seconds patience{10};
}  // namespace

CudaQueue::CudaQueue(std::string name, std::shared_ptr<Shared> shared, Activity& activity)
    : name_(std::move(name)),
      shared_(std::move(shared)),
      calls_(shared_->calls),
      activity_(activity),
      stream_(take_stream(shared_->device)) {}

CudaQueue::~CudaQueue() {
  if (returns_stream_) give_stream(calls_, shared_->device, stream_);
}

// ---- new items

template <class F>
void CudaQueue::run_now(const F& enqueue) {
  std::exception_ptr failure;
  try {
    enqueue();
  } catch (...) {
    failure = std::current_exception();
  }
  ++issued_;
  if (failure) {
    const std::lock_guard lock(mutex_);
    fail(issued_, failure);
  }
  enqueued_.store(issued_, std::memory_order_release);  // no thread waits for an item that was never queued
}

bool CudaQueue::run_if_idle(Call call, const void* body, const Pointers& pointers) {
  if (!is_idle()) return false;
  if (error_) std::rethrow_exception(error_);
  run_now([&] { call(body, pointers); });
  return true;
}

void CudaQueue::issue(Body body, Pointers pointers, bool) {
  Item item;
  item.body = std::move(body);
  item.pointers = std::move(pointers);
  push(std::move(item));
}

void CudaQueue::issue_in_halves(const Body& start, Body finish, Pointers pointers, std::span<const Access>) {
  issue(
      [start, finish = std::move(finish)](const Pointers& p) {
        start(p);
        finish(p);
      },
      std::move(pointers), true);
}

void CudaQueue::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void CudaQueue::issue_wait(const std::shared_ptr<Queue>& other, std::uint64_t number) {
  rethrow_failure();
  auto queue = std::dynamic_pointer_cast<CudaQueue>(other);
  if (queue == nullptr) return other->await(number);  // its items run on the host
  if (number == 0) return;
  if (is_idle() && queue->has_enqueued(number)) {
    if (error_) std::rethrow_exception(error_);
    return run_now([&] { wait_for(*queue, number); });
  }
  Item item;
  item.awaited = std::move(queue);
  item.number_awaited = number;
  push(std::move(item));
}

void CudaQueue::mark() {
  std::unique_lock lock(mutex_);
  if (error_ || issued_ == reached_ || (!marks_.empty() && marks_.back()->number >= issued_)) return;
  if (enqueued_ < issued_) {
    if (!items_.empty()) items_.back().marks = true;  // else the worker runs the last item: a wait records the mark
    return;
  }
  try {
    record_mark(issued_, lock);
  } catch (...) {
    fail(issued_, std::current_exception());
  }
}

void CudaQueue::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
    items_.push_back(std::move(item));
    ++issued_;
    wake_.count_awake(activity_);
  }
  wake_worker();
}

// ---- the worker

void CudaQueue::wake_worker() {
  if (worker_.joinable()) return wake_.notify();
  activity_.add();
  try {
    worker_ = start_thread("starting the thread of a stream", [this] { run_worker(); });
  } catch (...) {
    activity_.remove();
    const std::lock_guard lock(mutex_);
    items_.pop_back();
    --issued_;
    throw;
  }
}

void CudaQueue::run_worker() {
  // A transport asks every 10 us or more whether the device has moved the data. By default a sleep takes 50 us longer.
  ::prctl(PR_SET_TIMERSLACK, 1000UL);  // ns
  std::exception_ptr failure;
  try {
    calls_.use_device(shared_->device);
  } catch (...) {
    failure = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  if (failure) fail(enqueued_ + 1, failure);
  while (true) {
    while (!stop_ && items_.empty()) wake_.wait(lock, activity_);
    if (stop_) return;
    run_next(lock);
  }
}

void CudaQueue::run_next(std::unique_lock<std::mutex>& lock) {
  const bool drop = error_ != nullptr;
  std::exception_ptr failure;
  bool marks = false;
  {
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    if (!drop) {
      try {
        if (item.awaited != nullptr) {
          wait_for(*item.awaited, item.number_awaited);
        } else {
          item.body(item.pointers);
        }
      } catch (...) {
        failure = std::current_exception();
      }
    }
    marks = item.marks;
  }  // the body's owned objects are destroyed before its completion becomes visible
  lock.lock();
  const std::uint64_t number = enqueued_.load(std::memory_order_relaxed) + 1;
  if (!failure && marks && !error_) {
    try {
      record_mark(number, lock);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) fail(number, failure);
  enqueued_.store(number, std::memory_order_release);
  progress_.count_awake(activity_);
  progress_.notify();
}

void CudaQueue::fail(std::uint64_t number, std::exception_ptr failure) {
  error_ = std::move(failure);
  failed_at_ = number;
}

// ---- marks

std::shared_ptr<Mark> CudaQueue::record_mark(std::uint64_t number, const std::unique_lock<std::mutex>& lock) {
  while (!marks_.empty() && calls_.event_done(marks_.front()->event)) reached(marks_.front()->number, lock);
  std::shared_ptr<Mark> mark = shared_->take_mark();
  mark->number = number;
  calls_.record_event(mark->event, stream_);
  return marks_.emplace_back(std::move(mark));
}

std::shared_ptr<Mark> CudaQueue::mark_after(std::uint64_t number, const std::unique_lock<std::mutex>& lock) {
  if (reached_ >= number) return nullptr;
  for (const std::shared_ptr<Mark>& mark : marks_)
    if (mark->number >= number) return mark;
  // Read before the event is recorded, because the host may be issuing further items.
  return record_mark(enqueued_.load(std::memory_order_acquire), lock);
}

void CudaQueue::reached(std::uint64_t number, const std::unique_lock<std::mutex>&) {
  if (number > reached_) reached_ = number;
  while (!marks_.empty() && marks_.front()->number <= reached_) marks_.pop_front();
}

// ---- waits

void CudaQueue::await_enqueued(std::uint64_t number, std::unique_lock<std::mutex>& lock) {
  while (enqueued_ < number && !stop_) progress_.wait(lock, activity_);
  if (error_ && failed_at_ <= number) std::rethrow_exception(error_);
  // Only at the end of the rank. The caller must not continue as if the item had run.
  if (enqueued_ < number) throw Error(str("stream ", name_, " ended before it ran the awaited launch"));
}

bool CudaQueue::has_enqueued(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  return enqueued_ >= number && !error_;
}

void CudaQueue::wait_for(CudaQueue& other, std::uint64_t number) {
  std::shared_ptr<Mark> mark;
  {
    std::unique_lock lock(other.mutex_);
    other.await_enqueued(number, lock);
    mark = other.mark_after(number, lock);
  }
  if (mark != nullptr) calls_.wait_event(stream_, mark->event);
}

void CudaQueue::await(std::uint64_t number) {
  std::shared_ptr<Mark> mark;
  {
    std::unique_lock lock(mutex_);
    await_enqueued(number, lock);
    mark = mark_after(number, lock);
  }
  if (mark == nullptr) return;
  calls_.synchronize_event(mark->event);
  const std::unique_lock lock(mutex_);
  reached(mark->number, lock);
}

// ---- the end

void CudaQueue::clear_failure() {
  std::unique_lock lock(mutex_);
  while (enqueued_ < issued_ && !stop_) progress_.wait(lock, activity_);
  if (!error_) return;
  error_ = nullptr;
  lock.unlock();
  calls_.synchronize_stream(stream_);
  lock.lock();
  reached(enqueued_, lock);
}

void CudaQueue::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  wake_.notify();
  progress_.notify();
}

void CudaQueue::join() {
  if (worker_.joinable()) worker_.join();
  // What the stream still does uses memory that the end of the rank releases.
  try {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Mark> mark = mark_after(enqueued_, lock);
    lock.unlock();
    const auto end = std::chrono::steady_clock::now() + patience;
    while (mark != nullptr && !calls_.event_done(mark->event)) {
      if (std::chrono::steady_clock::now() > end) throw Error("the stream is stuck");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  } catch (...) {
    returns_stream_ = false;
    shared_->is_abandoned = true;
  }
}

// Bodies may own blocks, so destroying a body may free one.
void CudaQueue::drop_items() { const std::deque<Item> items = std::exchange(items_, {}); }

}  // namespace lockstep::device::cuda
