// A rank's communicator: its groups, log, phase and transport counters; a service of its context. Internal to
// engine/comm. Its functions run on the rank's own thread; what workers of streams need is in RankState (protocol.hpp).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::comm {

// What all groups of one list of members share: the shared structure and this rank's count of collectives.
struct Meeting {
  GroupControl* control = nullptr;
  std::uint64_t sequence = 0;
  std::uint64_t rounds = 0;                         // ended
  std::map<std::pair<int, int>, Meeting> channels;  // point to point, by ranks within the group
};

struct GroupState {
  Meeting* meeting = nullptr;
};

class Communicator {
 public:
  explicit Communicator(RankContext& context);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  static Communicator& current() { return RankContext::current().service<Communicator>(); }

  ProcessGroup& group(const std::vector<int>& members, const std::string& axis);
  Meeting& channel(ProcessGroup& group, int from, int to);
  WorldControl& world() const { return *state_->world; }
  const std::shared_ptr<RankState>& state() const { return state_; }
  const RankContext& context() const { return *context_; }
  // A stream with a worker may wait for peers beside the rank's own thread.
  void count_waiter(const device::Stream& stream);

  Phase phase = Phase::other;
  std::string meeting_place;
  std::vector<LogEntry> log;

 private:
  RankContext* context_;
  std::shared_ptr<RankState> state_;
  std::map<std::vector<int>, Meeting> meetings_;
  std::map<std::pair<std::vector<int>, std::string>, std::unique_ptr<ProcessGroup>> groups_;
  std::set<int> waiters_;
};

// A collective to be issued: everything that is fixed at that moment.
struct Plan {
  Operation operation = Operation::barrier;
  ProcessGroup* group = nullptr;
  Meeting* meeting = nullptr;  // the group's, or a channel's
  int me = 0;                  // within the meeting
  int root = 0;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t count = 0;  // elements of one part
  const Tensor* input = nullptr;
  const Tensor* output = nullptr;  // may be the input
};

struct Engine {
  static Work issue(const Plan& plan, const Call& call);
  static void issue_on_host(const Plan& plan, const Call& call);
  static std::vector<std::string> exchange(ProcessGroup& group, const std::string& mine, const std::string& purpose);
  static Meeting& meeting_of(ProcessGroup& group) { return *group.state_->meeting; }
};

}  // namespace lockstep::comm
