// An asynchronous save of one rank: the thread that writes, and its states.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "engine/core/schedule.hpp"

namespace lockstep::state {

class PendingSave {
 public:
  // `write` writes the file of this rank. `publish` (rank 0 only, else empty) returns when the checkpoint is published;
  // it polls is_cancelled(). Both run on a thread of their own, in this order. `discard` removes the temporary folder;
  // it is called on rank 0 if the save fails, by the thread that waits.
  PendingSave(std::string operation, std::function<void()> write, std::function<void(PendingSave&)> publish,
              std::function<void()> discard);
  ~PendingSave();  // cancels the publication if nobody has waited, and joins the thread
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;

  // Waits on all ranks, which call it together. Throws Error on every rank if a rank failed; later calls throw it
  // again.
  void wait();
  bool is_finished() const { return stage_ != Stage::running; }  // whether wait() has returned or thrown
  bool is_cancelled();
  // Waits a short time, or until the save is cancelled.
  void pause();

 private:
  std::thread started();
  enum class Stage { running, complete, failed };
  void run();
  void write_and_publish();
  void join();
  void cancel_and_join();

  const std::string operation_;
  const std::function<void()> write_, discard_;
  const std::function<void(PendingSave&)> publish_;
  Stage stage_ = Stage::running;  // used by the rank's own thread only
  std::string failure_, remedy_;  // of a failed save

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool is_written_ = false;  // the write has ended
  bool is_cancelled_ = false;
  std::exception_ptr write_problem_, publish_problem_;
  schedule::Actor* const actor_;  // the thread as an actor; null without a schedule
  std::thread thread_;
};

}  // namespace lockstep::state
