#include "engine/state/pending_save.hpp"

#include <chrono>
#include <utility>

#include "engine/core/rank_context.hpp"
#include "engine/core/start_thread.hpp"
#include "engine/state/agree.hpp"

namespace lockstep::state {

namespace {

schedule::Actor* actor_of_thread() {
  schedule::Actor* const me = schedule::self();
  return me == nullptr ? nullptr : &me->scheduler().add(RankContext::current().rank(), "save");
}

}  // namespace

PendingSave::PendingSave(std::string operation, std::function<void()> write, std::function<void(PendingSave&)> publish,
                         std::function<void()> discard)
    : operation_(std::move(operation)),
      write_(std::move(write)),
      discard_(std::move(discard)),
      publish_(std::move(publish)),
      actor_(actor_of_thread()),
      thread_(started()) {}

std::thread PendingSave::started() {
  try {
    return start_thread(str(operation_, ": starting its thread"), [this] { run(); });
  } catch (...) {
    if (actor_ != nullptr) actor_->retire();
    if (discard_) discard_();
    throw;
  }
}

PendingSave::~PendingSave() {
  const bool is_left = thread_.joinable();
  cancel_and_join();
  if (is_left && discard_) discard_();
}

void PendingSave::run() {
  if (actor_ != nullptr) actor_->begin();
  write_and_publish();
  if (actor_ != nullptr) actor_->end();
}

void PendingSave::write_and_publish() {
  std::exception_ptr problem;
  try {
    write_();
  } catch (...) {
    problem = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    is_written_ = true;
    write_problem_ = problem;
  }
  changed_.notify_all();
  if (problem || !publish_) return;
  try {
    publish_(*this);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    publish_problem_ = std::current_exception();
  }
}

bool PendingSave::is_cancelled() {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

void PendingSave::pause() {
  if (schedule::Actor* me = schedule::self()) return me->poll();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return is_cancelled_; });
}

void PendingSave::cancel_and_join() {
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
  }
  changed_.notify_all();
  join();
}

void PendingSave::join() {
  if (schedule::Actor* me = schedule::self(); me != nullptr && thread_.joinable())
    me->wait("the thread of a save", [this] { return actor_->has_ended(); });
  if (thread_.joinable()) thread_.join();
}

void PendingSave::wait() {
  if (stage_ == Stage::complete) return;
  if (stage_ == Stage::failed) throw Error(failure_, remedy_);
  try {
    agree(operation_, [this]() -> std::string {
      if (schedule::Actor* me = schedule::self()) me->wait("a save", [this] { return is_written_; });
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_written_; });
      if (write_problem_) std::rethrow_exception(write_problem_);
      return "";
    });
    // All ranks have written, so that the thread of rank 0 ends by itself.
    agree(operation_, [this]() -> std::string {
      join();
      if (publish_problem_) std::rethrow_exception(publish_problem_);
      return "";
    });
    stage_ = Stage::complete;
  } catch (const Error& error) {
    stage_ = Stage::failed;
    failure_ = error.message();
    remedy_ = error.remedy();
    cancel_and_join();
    if (discard_) discard_();
    throw;
  }
}

}  // namespace lockstep::state
