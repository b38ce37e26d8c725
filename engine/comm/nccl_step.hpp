// The communicators of the stand-in of NCCL, and a group of calls as work on a stream. Internal to engine/comm.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/nccl_mail.hpp"
#include "engine/device/cuda/recording_calls.hpp"

namespace lockstep::comm::nccl {

struct StandInCommunicator {
  StandInCommunicator(const MailId& of, int number, int members, int gpu)
      : id(of), mail(*open_mail(of)), member(number), size(members), device(gpu) {}
  ~StandInCommunicator() { close_mail(&mail); }
  StandInCommunicator(const StandInCommunicator&) = delete;
  StandInCommunicator& operator=(const StandInCommunicator&) = delete;

  Letter& letter_from(int peer) const { return mail.letters[peer][member]; }
  Letter& letter_to(int peer) const { return mail.letters[member][peer]; }
  // A member that aborts takes its letters back.
  bool has_letter_from(int peer) const {
    const Letter& letter = letter_from(peer);
    return letter.posted.load(std::memory_order_acquire) > letter.taken.load() &&
           mail.members[peer].state.load() != MemberState::aborted;
  }
  void fail(const std::string& text) {
    const std::lock_guard lock(mutex);
    if (error.empty()) error = text;
  }

  const MailId id;
  Mail& mail;
  const int member, size, device;
  bool is_complete = false;  // all members have created it
  std::atomic<bool> is_aborted{false};
  std::mutex mutex;
  std::string error;  // of work on streams
};

// One call between group_start() and group_end().
struct StandInCall {
  enum class Kind : std::uint8_t { send, receive, all_reduce, reduce_scatter };
  Kind kind = Kind::send;
  int peer = 0;
  std::size_t bytes = 0;  // of the input of a sum
  device::cuda::DeviceBytes from;
  std::byte* to = nullptr;
  Sum sum;
  bool adds() const { return kind == Kind::all_reduce || kind == Kind::reduce_scatter; }
};

// The calls of a group, as three kinds of work on the stream: the letters to the peers, the letters of the peers, and
// the wait until the own ones are taken. An abort ends each of them.
class StandInStep {
 public:
  StandInStep(device::cuda::RecordingCalls& cuda, std::shared_ptr<StandInCommunicator> communicator,
              StreamHandle stream)
      : cuda_(cuda), of_(std::move(communicator)), stream_(stream) {}
  StandInStep(const StandInStep&) = delete;
  StandInStep& operator=(const StandInStep&) = delete;

  bool is_on(const StandInCommunicator& communicator, StreamHandle stream) const {
    return of_.get() == &communicator && stream_ == stream;
  }
  void add(const StandInCall& call) { calls_.push_back(call); }
  // The work keeps the step alive.
  static void enqueue(const std::shared_ptr<StandInStep>& step);

 private:
  template <class F>
  void for_each_letter(const F& body) const;
  template <class Ready, class Run>
  static void launch(const std::shared_ptr<StandInStep>& step, const Ready& ready, const Run& run);
  bool is_taken() const;
  void post() const;
  const std::byte* input_of(int peer) const;  // null: not yet
  bool fits(int peer, const StandInCall& call) const;
  void receive(const StandInCall& call) const;
  bool has_inputs() const;
  void add_up(const StandInCall& call);
  void finish() const;

  device::cuda::RecordingCalls& cuda_;
  const std::shared_ptr<StandInCommunicator> of_;
  StreamHandle const stream_;
  std::vector<StandInCall> calls_;
  std::vector<std::byte> total_;  // of a sum: its output may be an input that peers still read
};

}  // namespace lockstep::comm::nccl
