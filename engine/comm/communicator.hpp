// A rank's communicator: its groups, log, phase and transport counters. It is a service of the rank's context and
// internal to engine/comm. Its functions run on the rank's own thread; RankState (protocol.hpp) holds the state that
// workers of streams use.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/attribution.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/core/rank_context.hpp"

namespace lockstep::comm {

// This rank's endpoint of a member list or of a point-to-point channel: the shared control structure, and how many
// collectives and rounds this rank has issued there. All process groups of one member list share it.
struct Endpoint {
  GroupControl* control = nullptr;
  std::uint64_t sequence = 0;  // of the next collective
  std::uint64_t rounds = 0;    // ended
  unsigned used_roles = 0;     // bit i: a collective or a preparation on the accelerator's stream of Role i
  // Asynchronous calls on the host that have not ended. They go on also if the program drops their Work.
  std::vector<std::shared_ptr<IssuedCollective>> on_host;
  std::map<std::pair<int, int>, Endpoint> channels;  // point-to-point, by (sender, receiver) within the group
};

struct GroupState {
  Endpoint* endpoint = nullptr;
};

class Communicator {
 public:
  explicit Communicator(RankContext& context);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  static Communicator& current() { return RankContext::current().service<Communicator>(); }

  // The group of these world ranks. Throws Error when a rank is invalid or repeated, or this rank is not a member.
  ProcessGroup& group(const std::vector<int>& members, const std::string& axis);
  // The channel from one rank of the group to another.
  Endpoint& channel(ProcessGroup& group, int from, int to);
  WorldControl& world() const { return *state_->world; }
  const std::shared_ptr<RankState>& state() const { return state_; }
  const RankContext& context() const { return *context_; }
  // Counts the stream's worker, if it has one, among the threads that may wait for peers.
  void count_waiter(const device::Stream& stream);

  Phase phase = Phase::other;
  SumOrder sum_order = SumOrder::fixed;
  AttributionPtr attribution;  // null: the default one
  std::string call_site_name;
  std::vector<LogEntry> log;

  // The statements (statements.hpp) since the last collective that compared those of the group.
  struct Statements {
    std::uint64_t digest = 0;  // 0: none
    std::vector<std::function<std::string()>> texts;
  };
  Statements& statements(const ProcessGroup& group) { return statements_[&group]; }
  Statements take_statements(const ProcessGroup& group);

 private:
  void open_world(RankContext& context);
  RankContext* context_;
  std::shared_ptr<RankState> state_;
  std::map<std::vector<int>, Endpoint> endpoints_;
  std::map<std::pair<std::vector<int>, std::string>, std::unique_ptr<ProcessGroup>> groups_;
  std::map<const ProcessGroup*, Statements> statements_;
  std::set<int> waiters_;  // ids of counted streams
};

// A collective to be issued, after its arguments have been checked.
struct CollectiveRequest {
  Operation operation = Operation::barrier;
  ProcessGroup* group = nullptr;
  Endpoint* endpoint = nullptr;  // of the group, or of a channel
  int me = 0;                    // this rank's index at the endpoint
  int root = 0;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t count = 0;  // elements of one shard
  const Tensor* input = nullptr;
  const Tensor* output = nullptr;  // may be the input
};

// Issues collectives (issue.cpp).
struct CollectiveIssuer {
  // On a stream. Waits for the collective on the current stream unless the call is asynchronous.
  static Work issue(const CollectiveRequest& request, const Call& call);
  // On the host, without tensors; blocks unless the call is asynchronous and its slot is free.
  static Work issue_on_host(const CollectiveRequest& request, const Call& call);
  static std::vector<std::string> exchange(ProcessGroup& group, const std::string& mine, const std::string& purpose);
  static void prepare(ProcessGroup& group, device::Device device, std::span<const device::Role> roles);
  static Endpoint& endpoint_of(ProcessGroup& group) { return *group.state_->endpoint; }
};

}  // namespace lockstep::comm
