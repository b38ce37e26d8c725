// For tests: NCCL among the threads of a process, on a stand-in of CUDA. It moves the bytes: what a member sends
// reaches the member that receives it when the streams of both have come to it. Any call can be made to fail.
//
//   NcclStandIn nccl(calls);
//   nccl::replace_calls(&nccl);
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <unistd.h>

#include "engine/comm/nccl_calls.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/cuda/recording_calls.hpp"

namespace lockstep::comm::testing_nccl {

class NcclStandIn final : public nccl::Calls {
 public:
  explicit NcclStandIn(device::cuda::RecordingCalls& cuda) : cuda_(cuda) {}

  // ---- for tests
  // The n-th call of this name from now by this member fails.
  void fail(const std::string& call, int member, int nth) {
    const std::lock_guard lock(mutex_);
    failing_[{call, member}] = nth;
  }
  // The calls of a member, in order: "send 16 to 1".
  std::vector<std::string> log(int member) {
    const std::lock_guard lock(mutex_);
    return logs_[member];
  }
  int count(const std::string& call) {
    const std::lock_guard lock(mutex_);
    int found = 0;
    for (const auto& [member, lines] : logs_)
      found += static_cast<int>(
          std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.starts_with(call); }));
    return found;
  }
  // No id is returned before this number has been asked for: several communicators are then opened at once.
  void await_ids(int number) { awaited_ids_ = number; }
  std::size_t num_open() {
    const std::lock_guard lock(mutex_);
    return open_.size();
  }

  // ---- Calls
  nccl::UniqueId unique_id() override {
    nccl::UniqueId id{};
    const std::string text = str("communicator ", ++num_ids_);
    text.copy(id.bytes, sizeof id.bytes - 1);
    for (int i = 0; i < 2000 && num_ids_ < awaited_ids_; ++i) ::usleep(1000);
    return id;
  }
  nccl::Handle create(int size, int member, const nccl::UniqueId& id) override {
    note(member, "create", str(size));
    const std::lock_guard lock(mutex_);
    auto made = std::make_unique<Communicator>(std::string(id.bytes), member, size);
    Communicator* const handle = made.get();
    ++num_members_[made->id];
    open_[handle] = std::move(made);
    return handle;
  }
  bool poll(nccl::Handle handle) override {
    note(of(handle).member, "poll", "");
    const std::lock_guard lock(mutex_);
    return num_members_[of(handle).id] == of(handle).size;  // all members have created it
  }
  void abort(nccl::Handle handle) noexcept override {
    note_end(handle, "abort");
    of(handle).is_aborted = true;  // its kernels end; the stream goes on
  }
  void destroy(nccl::Handle handle) noexcept override { note_end(handle, "destroy"); }
  void group_start() override { pending().clear(); }
  void group_end() override {
    // Sends first, because a stream that receives does nothing else meanwhile; NCCL does both at once.
    std::stable_sort(pending().begin(), pending().end(),
                     [](const Call& a, const Call& b) { return a.is_send > b.is_send; });
    for (const Call& call : pending()) {
      if (call.is_send) {
        cuda_.launch(call.stream, [this, call] { mail_[call.way].emplace_back(call.from, call.from + call.bytes); });
      } else {
        cuda_.launch_when(
            call.stream, [this, call] { return call.communicator->is_aborted || !mail_[call.way].empty(); },
            [this, call] {
              if (call.communicator->is_aborted) return;
              const std::vector<std::byte>& letter = mail_[call.way].front();
              std::memcpy(call.to, letter.data(), std::min(call.bytes, letter.size()));
              mail_[call.way].pop_front();
            });
      }
    }
    pending().clear();
  }
  void send(const void* from, std::size_t bytes, int peer, nccl::Handle handle, nccl::StreamHandle stream) override {
    Communicator& own = of(handle);
    note(own.member, "send", str(bytes, " to ", peer));
    Call call{true, static_cast<const std::byte*>(from), nullptr, bytes, {own.id, own.member, peer}, &own, stream};
    pending().push_back(std::move(call));
  }
  void receive(void* to, std::size_t bytes, int peer, nccl::Handle handle, nccl::StreamHandle stream) override {
    Communicator& own = of(handle);
    note(own.member, "receive", str(bytes, " from ", peer));
    Call call{false, nullptr, static_cast<std::byte*>(to), bytes, {own.id, peer, own.member}, &own, stream};
    pending().push_back(std::move(call));
  }

 private:
  using Way = std::tuple<std::string, int, int>;  // communicator, from, to
  struct Communicator {
    std::string id;
    int member = 0, size = 1;
    std::atomic<bool> is_aborted{false};
    Communicator(std::string name, int number, int of) : id(std::move(name)), member(number), size(of) {}
  };
  struct Call {
    bool is_send;
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
    Way way;
    Communicator* communicator;
    nccl::StreamHandle stream;
  };
  static std::vector<Call>& pending() {
    thread_local std::vector<Call> calls;
    return calls;
  }
  static Communicator& of(nccl::Handle handle) { return *static_cast<Communicator*>(handle); }
  void note(int member, const std::string& call, const std::string& operands) {
    const std::lock_guard lock(mutex_);
    if (call != "poll") logs_[member].push_back(operands.empty() ? call : str(call, " ", operands));
    const auto found = failing_.find({call, member});
    if (found == failing_.end() || --found->second > 0) return;
    failing_.erase(found);
    throw ResourceError(str(call, " of member ", member, ": refused by the test"), "do not ask it to");
  }
  // Work on streams may still name the communicator, so it stays.
  void note_end(nccl::Handle handle, const std::string& call) noexcept {
    const std::lock_guard lock(mutex_);
    logs_[of(handle).member].push_back(call);
    const auto found = open_.find(static_cast<Communicator*>(handle));
    ended_.push_back(std::move(found->second));
    open_.erase(found);
  }

  device::cuda::RecordingCalls& cuda_;
  std::mutex mutex_;
  std::atomic<int> num_ids_{0}, awaited_ids_{0};
  std::map<std::string, int> num_members_;  // that have created it, by id
  std::map<Communicator*, std::unique_ptr<Communicator>> open_;
  std::vector<std::unique_ptr<Communicator>> ended_;
  std::map<int, std::vector<std::string>> logs_;
  std::map<std::pair<std::string, int>, int> failing_;
  std::map<Way, std::deque<std::vector<std::byte>>> mail_;  // used by work on streams alone
};

}  // namespace lockstep::comm::testing_nccl
