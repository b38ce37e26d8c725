// Process groups and collectives between the ranks of a case.
//
// Control plane: before data moves all members agree on operation, sequence, sizes and types; deadlines and the abort
// flag end every wait. Data plane: bytes move between the ranks' arenas, in place where buffers lie in one; a
// collective runs on a stream and completes there. Sums have one fixed order, a pairwise tree over group rank, a mean
// divides once at the end, so threads and processes, and any split of a buffer, give the same bits; 16-bit types sum in
// float32 and round once.
//
// All members call the same collectives of a group in the same order. Every error is raised on every member.
//
//   ProcessGroup& world = world_group();
//   Work work = all_reduce(world, gradient, ReduceOp::mean, {.family = Family::data_parallel, .async = true});
//   ...
//   work.wait();                                  // the current stream waits, not the host
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.hpp"
#include "engine/device/stream.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::comm {

enum class Operation : std::uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  gather,
  scatter,
  send,
  receive,
  barrier
};
inline constexpr int num_operations = 10;
enum class ReduceOp : std::uint8_t { sum, mean, max, min, product };
enum class Family : std::uint8_t { data_parallel, tensor_parallel, user, start_up, checkpoint, uncounted };
enum class Phase : std::uint8_t { forward, backward, optimizer, other };
std::string_view name_of(Operation operation);
std::string_view name_of(ReduceOp op);
std::string_view name_of(Family family);
std::string_view name_of(Phase phase);
ReduceOp reduce_op_from_name(std::string_view name);

// A collective failed because a peer ended, failed or died, or because the case was aborted: a consequence, the cause
// is told elsewhere.
class PeerEndedError : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

struct GroupState;

// Ranks that make collectives together. Owned by the rank's communicator; references stay good until the rank ends.
class ProcessGroup {
 public:
  int rank() const { return rank_; }  // within the group
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }  // world ranks, in group order
  const std::string& axis() const { return axis_; }             // mesh axis it stands for, "" for none
  std::uint64_t sequence() const;                               // number of collectives issued so far

 private:
  friend class Communicator;
  friend struct Engine;
  ProcessGroup() = default;
  int rank_ = 0;
  std::vector<int> members_;
  std::string axis_;
  std::unique_ptr<GroupState> state_;

 public:
  ~ProcessGroup();
};

ProcessGroup& world_group();
// The group of these world ranks, which must contain this rank; the same list gives the same group. No communication is
// needed to make one: members meet in shared memory. Only members may ask for it.
ProcessGroup& group_of(const std::vector<int>& world_ranks, const std::string& axis = "");

// A collective under way.
class Work {
 public:
  Work() = default;
  bool defined() const { return state_ != nullptr; }
  void wait() const;  // the current stream of the tensor's device goes on after it; on failure throws CollectiveError
  void wait(device::Stream& stream) const;
  void synchronize() const;  // the host waits
  bool done() const;
  device::Event event() const;

 private:
  friend struct Engine;
  struct State;
  std::shared_ptr<State> state_;
};

struct Call {
  Family family = Family::user;
  bool async = false;  // false: the current stream has waited when the call returns
  // Where it runs; by default the all_gather, reduce_scatter or all_reduce stream of the tensor's device, copy_out and
  // copy_in for asynchronous sends and receives, compute for the others. It waits for the current stream first.
  device::Stream* stream = nullptr;
  // model.module, for log and messages; members of data_parallel and start_up calls must name the same one.
  std::string owner = {};
  // Something more that all members must agree on (a digest), and what it stands for, told when they do not.
  std::uint64_t agreement = 0;
  std::function<std::string()> agreement_text = {};
  // The dim that the caller joins or cuts parts along. Where it is not the first, the tensors come with it swapped to
  // the front. Members must agree on it.
  int dim = 0;
  bool in_round = false;  // a member may have nothing to bring: see end_round()
};

// Tensors are contiguous, of any type (all_reduce and reduce_scatter of bool: max and min only), of any size, 0
// included.
Work all_reduce(ProcessGroup& group, const Tensor& tensor, ReduceOp op, const Call& call = {});  // in place
// output (n * size elements) = inputs of all ranks one after the other; all inputs of one size.
Work all_gather(ProcessGroup& group, const Tensor& output, const Tensor& input, const Call& call = {});
Work reduce_scatter(ProcessGroup& group, const Tensor& output, const Tensor& input, ReduceOp op, const Call& call = {});
// Part r of input goes to rank r; output part s comes from rank s; equal parts.
Work all_to_all(ProcessGroup& group, const Tensor& output, const Tensor& input, const Call& call = {});
Work broadcast(ProcessGroup& group, const Tensor& tensor, int from, const Call& call = {});  // in place
Work gather(ProcessGroup& group, const Tensor& output, const Tensor& input, int to,
            const Call& call = {});  // output undefined elsewhere
Work scatter(ProcessGroup& group, const Tensor& output, const Tensor& input, int from, const Call& call = {});
Work send(ProcessGroup& group, const Tensor& tensor, int to, const Call& call = {});
Work receive(ProcessGroup& group, const Tensor& tensor, int from, const Call& call = {});
void barrier(ProcessGroup& group, const Call& call = {});

// Some members may leave a collective out by mistake, as where a backward reaches a parameter on some ranks alone.
// Calls that are `in_round` belong to the round that end_round() ends: whoever waits in one learns that a member has
// ended the round without it, at once instead of at the deadline. With `compare` it waits for the others to end their
// rounds and throws CollectiveError when they issued more or fewer collectives; members that left nothing out need not.
// Moves no data; all members end as many rounds.
void end_round(ProcessGroup& group, bool compare, const std::string& owner = "");

// Uncounted, blocking exchange of small byte strings on the host: every member gets all, in group order. For agreement
// checks and for what checks compare between ranks; never for training data.
// Members must name the same purpose.
std::vector<std::string> exchange(ProcessGroup& group, const std::string& mine, const std::string& purpose = "");

// ---- what collectives are recorded with ----
// The phase of the running rank: set by backward, optimizer step, module calls.
Phase current_phase();
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase previous_;
};

// A name that steps at several places of a program share, so that collectives of one agree with those of another; ""
// (the default): a collective of the families user, tensor_parallel and checkpoint is issued at one line on all ranks.
const std::string& meeting_place();
void set_meeting_place(const std::string& name);

struct LogEntry {
  std::uint64_t sequence = 0;  // within the group
  Operation operation = Operation::barrier;
  Family family = Family::user;
  Phase phase = Phase::other;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::string axis;
  int group_size = 0;
  std::uint64_t group_id = 0;
  std::int64_t bytes = 0;  // the larger of this rank's input and output
  std::string owner;
  int scenario_line = 0;
};
// Every collective that the current rank issued, in order, uncounted ones left out. Position for windows: log().size().
const std::vector<LogEntry>& log();
// Bytes that the transport itself moved for this rank (a second witness beside the log).
std::int64_t transport_bytes();

// ---- deadlines, aborts ----
// Of this rank's waits; 10 s by default. A wait counts from when all members have begun.
void set_deadline(double seconds);
// This rank has come to its program: how long it took to be launched counts against nobody. Its first collective says
// so too.
void announce_begin();
// Ends every wait of every rank of the case with a CollectiveError of this text. First one wins.
void abort_all(const std::string& why);
// This rank has finished its steps (or failed): peers waiting for it learn so at once instead of at their deadline.
void announce_end(bool failed, const std::string& why);

}  // namespace lockstep::comm
