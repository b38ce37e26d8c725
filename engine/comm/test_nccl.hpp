// For tests: the stand-in of NCCL, with a log of its calls. Any call can be made to fail.
//
//   RecordingNccl nccl(calls);             // over a stand-in of CUDA
//   nccl::replace_calls(&nccl);
//   nccl.fail("send", 1, 2);               // the second one of member 1 from now throws ResourceError
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <sched.h>

#include "engine/comm/nccl_stand_in.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm::testing_nccl {

class RecordingNccl final : public nccl::Calls {
 public:
  explicit RecordingNccl(device::cuda::RecordingCalls& cuda) : library_(cuda) {}

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
    return members_.size();
  }

  // ---- Calls
  nccl::UniqueId unique_id() override {
    const nccl::UniqueId id = library_.unique_id();
    ++num_ids_;
    for (int i = 0; i < 200'000 && num_ids_ < awaited_ids_; ++i) ::sched_yield();
    return id;
  }
  nccl::Handle create(int size, int member, const nccl::UniqueId& id) override {
    note(member, "create", str(size));
    nccl::Handle const made = library_.create(size, member, id);
    const std::lock_guard lock(mutex_);
    members_[made] = member;
    return made;
  }
  bool poll(nccl::Handle handle) override {
    note(member_of(handle), "poll", "");
    return library_.poll(handle);
  }
  void abort(nccl::Handle handle) noexcept override {
    note_end(handle, "abort");
    library_.abort(handle);
  }
  void destroy(nccl::Handle handle) noexcept override {
    note_end(handle, "destroy");
    library_.destroy(handle);
  }
  void group_start() override { library_.group_start(); }
  void group_end() override { library_.group_end(); }
  void send(const void* from, std::size_t bytes, int peer, nccl::Handle handle, nccl::StreamHandle stream) override {
    note(member_of(handle), "send", str(bytes, " to ", peer));
    library_.send(from, bytes, peer, handle, stream);
  }
  void receive(void* to, std::size_t bytes, int peer, nccl::Handle handle, nccl::StreamHandle stream) override {
    note(member_of(handle), "receive", str(bytes, " from ", peer));
    library_.receive(to, bytes, peer, handle, stream);
  }
  void all_reduce(const void* from, void* to, std::size_t count, const nccl::Sum& sum, nccl::Handle handle,
                  nccl::StreamHandle stream) override {
    note(member_of(handle), "all_reduce", str(count));
    library_.all_reduce(from, to, count, sum, handle, stream);
  }
  void reduce_scatter(const void* from, void* to, std::size_t count, const nccl::Sum& sum, nccl::Handle handle,
                      nccl::StreamHandle stream) override {
    note(member_of(handle), "reduce_scatter", str(count));
    library_.reduce_scatter(from, to, count, sum, handle, stream);
  }

 private:
  int member_of(nccl::Handle handle) {
    const std::lock_guard lock(mutex_);
    return members_.at(handle);
  }
  void note(int member, const std::string& call, const std::string& operands) {
    const std::lock_guard lock(mutex_);
    if (call != "poll") logs_[member].push_back(operands.empty() ? call : str(call, " ", operands));
    const auto found = failing_.find({call, member});
    if (found == failing_.end() || --found->second > 0) return;
    failing_.erase(found);
    throw ResourceError(str(call, " of member ", member, ": refused by the test"), "do not ask it to");
  }
  void note_end(nccl::Handle handle, const std::string& call) noexcept {
    const std::lock_guard lock(mutex_);
    logs_[members_.at(handle)].push_back(call);
    members_.erase(handle);
  }

  nccl::StandIn library_;
  std::mutex mutex_;
  std::atomic<int> num_ids_{0}, awaited_ids_{0};
  std::map<nccl::Handle, int> members_;  // of open communicators
  std::map<int, std::vector<std::string>> logs_;
  std::map<std::pair<std::string, int>, int> failing_;
};

}  // namespace lockstep::comm::testing_nccl
