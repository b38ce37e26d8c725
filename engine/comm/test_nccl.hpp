// For tests: NCCL among the threads of a process, on a stand-in of CUDA. It moves the bytes: what a member sends
// reaches the member that receives it when the streams of both have come to it. Its sums have an order of their own:
// from the last member to the first. Any call can be made to fail.
//
//   NcclStandIn nccl(calls);
//   nccl::replace_calls(&nccl);
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <sched.h>

#include "engine/comm/nccl_calls.hpp"
#include "engine/comm/reduce.hpp"
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
    for (int i = 0; i < 200'000 && num_ids_ < awaited_ids_; ++i) ::sched_yield();
    return id;
  }
  nccl::Handle create(int size, int member, const nccl::UniqueId& id) override {
    note(member, "create", str(size));
    const std::lock_guard lock(mutex_);
    auto made = std::make_unique<Communicator>(std::string(id.bytes), member, size);
    Communicator* const handle = made.get();
    if (!members_[made->id].insert(member).second)
      throw ResourceError(str("create: ", made->id, " has a member ", member), "give each communicator an id");
    open_[handle] = std::move(made);
    return handle;
  }
  bool poll(nccl::Handle handle) override {
    note(of(handle).member, "poll", "");
    const std::lock_guard lock(mutex_);
    return members_[of(handle).id].size() == static_cast<std::size_t>(of(handle).size);  // all have created it
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
      if (call.adds) {
        enqueue_sum(call);
      } else if (call.is_send) {
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
    pending().push_back({.is_send = true,
                         .from = static_cast<const std::byte*>(from),
                         .to = nullptr,
                         .bytes = bytes,
                         .way = {own.id, own.member, peer},
                         .communicator = &own,
                         .stream = stream,
                         .adds = nullptr});
  }
  void receive(void* to, std::size_t bytes, int peer, nccl::Handle handle, nccl::StreamHandle stream) override {
    Communicator& own = of(handle);
    note(own.member, "receive", str(bytes, " from ", peer));
    pending().push_back({.is_send = false,
                         .from = nullptr,
                         .to = static_cast<std::byte*>(to),
                         .bytes = bytes,
                         .way = {own.id, peer, own.member},
                         .communicator = &own,
                         .stream = stream,
                         .adds = nullptr});
  }
  void all_reduce(const void* from, void* to, std::size_t count, const nccl::Sum& sum, nccl::Handle handle,
                  nccl::StreamHandle stream) override {
    add("all_reduce", from, to, count, 0, sum, of(handle), stream);
  }
  void reduce_scatter(const void* from, void* to, std::size_t count, const nccl::Sum& sum, nccl::Handle handle,
                      nccl::StreamHandle stream) override {
    add("reduce_scatter", from, to, count, of(handle).member, sum, of(handle), stream);
  }

 private:
  using Way = std::tuple<std::string, int, int>;  // communicator, from, to
  struct Communicator {
    std::string id;
    int member = 0, size = 1;
    int num_sums = 0;
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
    std::function<void(std::byte* to, const std::vector<std::vector<std::byte>>& inputs)> adds;  // null: it moves bytes
  };
  // The inputs of a sum that its members' streams have reached, by communicator and number.
  struct Inputs {
    std::vector<std::vector<std::byte>> of_members;
    int num_arrived = 0, num_taken = 0;
  };
  // Adds from the last member to the first, one after the other, and rounds each time. A mean divides in the end. The
  // result has the elements from `shard * count`.
  static void add_up(const nccl::Sum& sum, std::size_t shard, std::size_t count, std::byte* to,
                     const std::vector<std::vector<std::byte>>& inputs) {
    const std::size_t bytes = count * size_of(sum.dtype);
    const auto n = static_cast<std::int64_t>(count);
    std::vector<std::byte> total(inputs.back().begin() + static_cast<std::ptrdiff_t>(shard * bytes),
                                 inputs.back().begin() + static_cast<std::ptrdiff_t>((shard + 1) * bytes));
    std::byte* const out = total.data();
    const ReduceOp step = sum.op == ReduceOp::mean ? ReduceOp::sum : sum.op;
    for (std::size_t left = inputs.size() - 1; left > 0; --left) {
      const std::vector<const std::byte*> parts = {out, inputs[left - 1].data() + shard * bytes};
      reduce({sum.dtype, step, parts, {&out, 1}, 1, false}, 0, n);
    }
    const std::vector<const std::byte*> parts = {out};
    if (sum.op == ReduceOp::mean)
      reduce({sum.dtype, sum.op, parts, {&out, 1}, static_cast<int>(inputs.size()), false}, 0, n);
    std::memcpy(to, out, bytes);
  }
  void add(const std::string& name, const void* from, void* to, std::size_t count, int shard, const nccl::Sum& sum,
           Communicator& own, nccl::StreamHandle stream) {
    note(own.member, name, str(count));
    const std::size_t shards = name == "all_reduce" ? 1 : static_cast<std::size_t>(own.size);
    pending().push_back({.is_send = false,
                         .from = static_cast<const std::byte*>(from),
                         .to = static_cast<std::byte*>(to),
                         .bytes = count * shards * size_of(sum.dtype),
                         .way = {own.id, own.num_sums++, 0},
                         .communicator = &own,
                         .stream = stream,
                         .adds = [=](std::byte* out, const std::vector<std::vector<std::byte>>& inputs) {
                           add_up(sum, static_cast<std::size_t>(shard), count, out, inputs);
                         }});
  }
  void enqueue_sum(const Call& call) {
    const auto size = static_cast<std::size_t>(call.communicator->size);
    cuda_.launch(call.stream, [this, call, size] {
      Inputs& inputs = sums_[call.way];
      inputs.of_members.resize(size);
      inputs.of_members[static_cast<std::size_t>(call.communicator->member)].assign(call.from, call.from + call.bytes);
      ++inputs.num_arrived;
    });
    cuda_.launch_when(
        call.stream,
        [this, call] {
          return call.communicator->is_aborted || sums_[call.way].num_arrived == call.communicator->size;
        },
        [this, call] {
          if (call.communicator->is_aborted) return;
          Inputs& inputs = sums_[call.way];
          call.adds(call.to, inputs.of_members);
          if (++inputs.num_taken == call.communicator->size) sums_.erase(call.way);
        });
  }
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
  std::map<std::string, std::set<int>> members_;  // that have created it, by id
  std::map<Communicator*, std::unique_ptr<Communicator>> open_;
  std::vector<std::unique_ptr<Communicator>> ended_;
  std::map<int, std::vector<std::string>> logs_;
  std::map<std::pair<std::string, int>, int> failing_;
  std::map<Way, std::deque<std::vector<std::byte>>> mail_;  // used by work on streams alone
  std::map<Way, Inputs> sums_;                              // likewise
};

}  // namespace lockstep::comm::testing_nccl
