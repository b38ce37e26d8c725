// Process groups, and the collectives between the ranks of a case.
//
// Control plane: before data moves, all members compare the operation, its sequence number, sizes and types. Deadlines
// and the abort flag end every wait. Data plane: bytes move directly between the ranks' arenas. A collective runs and
// completes on a stream. Reductions have one fixed order, a pairwise tree over the rank within the group; a mean
// divides once at the end; 16-bit types are summed in float32 and rounded once. Threads, processes and every split of a
// buffer therefore give the same bits.
//
// All members of a group issue the same collectives of the group in the same order. Every error is thrown on every
// member.
//
//   ProcessGroup& world = world_group();
//   Work work = all_reduce(world, gradient, ReduceOp::mean, {.family = Family::data_parallel, .async = true});
//   ...
//   work.wait();                                  // the current stream waits; the host does not
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
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
// The purpose of a collective. Uncounted collectives appear neither in the log nor in transport_bytes().
enum class Family : std::uint8_t { data_parallel, tensor_parallel, user, start_up, checkpoint, uncounted };
enum class Phase : std::uint8_t { forward, backward, optimizer, other };
std::string_view name_of(Operation operation);
std::string_view name_of(ReduceOp op);
std::string_view name_of(Family family);
std::string_view name_of(Phase phase);
// Throws Error for an unknown name.
ReduceOp reduce_op_from_name(std::string_view name);

// A collective failed because a peer ended, failed or died, or because the case was aborted. The error is a
// consequence; its cause is reported elsewhere.
class PeerEndedError : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

struct GroupState;

// An ordered list of ranks that issue collectives together. The rank's communicator owns it; references stay valid
// until the rank ends.
class ProcessGroup {
 public:
  int rank() const { return rank_; }  // of this rank within the group
  int size() const { return static_cast<int>(members_.size()); }
  const std::vector<int>& members() const { return members_; }  // world ranks, in group order
  const std::string& axis() const { return axis_; }             // the mesh axis of the group; "" if none
  std::uint64_t sequence() const;                               // collectives issued so far on this member list

 private:
  friend class Communicator;
  friend struct CollectiveIssuer;
  ProcessGroup() = default;
  int rank_ = 0;
  std::vector<int> members_;
  std::string axis_;
  std::unique_ptr<GroupState> state_;

 public:
  ~ProcessGroup();
};

// The group of all ranks.
ProcessGroup& world_group();
// The group of these world ranks, in this order; the same list and axis give the same group. Needs no communication,
// since members share the group's state in memory. Throws Error when a rank is not in the world or repeated, and when
// this rank is not a member.
ProcessGroup& group_of(const std::vector<int>& world_ranks, const std::string& axis = "");

// A collective in progress. The wait functions throw CollectiveError when the collective has failed.
class Work {
 public:
  Work() = default;
  bool defined() const { return state_ != nullptr; }
  void wait() const;  // orders later work of the current stream of the tensor's device after the collective
  void wait(device::Stream& stream) const;  // the same for another stream
  void synchronize() const;                 // blocks the host
  device::Event event() const;

 private:
  friend struct CollectiveIssuer;
  struct State;
  std::shared_ptr<State> state_;
};

struct Call {
  Family family = Family::user;
  bool async = false;  // false: the current stream has waited for the collective when the call returns
  // The stream of the collective; it waits for the current stream first. The default depends on the operation: the
  // all_gather, reduce_scatter or all_reduce stream of the tensor's device; copy_out and copy_in for an asynchronous
  // send and receive, and exchange for the other asynchronous ones; compute for all others.
  device::Stream* stream = nullptr;
  // "model.module", for the log and messages. In data_parallel and start_up calls all members must give the same owner.
  std::string owner = {};
  // A digest of the content of the call that must match on all members, and its description, reported on a mismatch.
  std::uint64_t content_digest = 0;
  std::function<std::string()> content_text = {};
  // The dim along which the caller concatenates or splits shards; it must match on all members. If it is not 0, the
  // caller passes tensors in which this dim and dim 0 are swapped.
  int dim = 0;
  bool in_round = false;  // a member may skip this collective by mistake: see end_round()
};

// The collectives. Tensors are contiguous and of any size, 0 included. All members pass the same dtype, kind of device,
// shape, reduction and root. Where one tensor is n times larger than the other (n: size of the group), it is the
// concatenation of one equal shard per member, in group order; input and output may then share memory if the smaller is
// exactly this rank's shard of the larger. Roots and peers are ranks within the group.
//
// All of them throw Error when an argument is invalid (undefined or non-contiguous tensor, sizes, dtypes or devices
// that do not fit, overlapping memory, a rank outside the group). They throw CollectiveError, at the latest in
// Work::wait(), when the members' calls do not match, a member ends or does not arrive by the deadline, the ranks
// deadlock, or the group has failed before.

// tensor = reduction of the tensors of all members, in place. bool: max and min only; integers: no mean.
Work all_reduce(ProcessGroup& group, const Tensor& tensor, ReduceOp op, const Call& call = {});
// output (n * k elements) = the inputs (k elements) of all members, concatenated.
Work all_gather(ProcessGroup& group, const Tensor& output, const Tensor& input, const Call& call = {});
// output (k elements) = this rank's shard of the reduction of all inputs (n * k elements). Types as for all_reduce.
Work reduce_scatter(ProcessGroup& group, const Tensor& output, const Tensor& input, ReduceOp op, const Call& call = {});
// Shard r of the input goes to rank r; shard s of the output comes from rank s. Both have n * k elements and do not
// overlap.
Work all_to_all(ProcessGroup& group, const Tensor& output, const Tensor& input, const Call& call = {});
// tensor = the tensor of rank `from`, in place.
Work broadcast(ProcessGroup& group, const Tensor& tensor, int from, const Call& call = {});
// On rank `to`: output (n * k elements) = the inputs (k elements) of all members. Other ranks pass an undefined output.
Work gather(ProcessGroup& group, const Tensor& output, const Tensor& input, int to, const Call& call = {});
// output (k elements) = this rank's shard of the input (n * k elements) of rank `from`. Other ranks pass an undefined
// input.
Work scatter(ProcessGroup& group, const Tensor& output, const Tensor& input, int from, const Call& call = {});
// Point-to-point: a send matches the receive of the same number on the channel between the two ranks.
Work send(ProcessGroup& group, const Tensor& tensor, int to, const Call& call = {});
Work receive(ProcessGroup& group, const Tensor& tensor, int from, const Call& call = {});
// Blocks the host until all members have arrived. An asynchronous barrier blocks it in the waits of Work instead, or at
// once if too many collectives of the group are in progress. It runs on no stream.
Work barrier(ProcessGroup& group, const Call& call = {});

// Ends a round of collectives. A member may skip a collective by mistake, for example when its backward does not reach
// a parameter. Calls with `in_round` belong to the round that the next end_round() of the group ends. A member that
// waits in such a call fails as soon as another member has ended the round without it, and not only at the deadline.
// With `compare` this function also waits until the other members have ended their rounds, and throws CollectiveError
// if they issued more or fewer collectives; a member that skipped nothing need not compare. Moves no data. All members
// end the same number of rounds. `owner` is for messages.
void end_round(ProcessGroup& group, bool compare, const std::string& owner = "");

// ---- the order of sums ----
// fixed: the pairwise tree over the rank within the group, on every transport; the default.
// library: for sums, means and products of numbers the order of the transport's library (ncclAllReduce,
// ncclReduceScatter). It depends on the machine, and so do the bits. A mean may be divided before the sum, and 16-bit
// types may be rounded after each addition. All members still get the same bits. Maxima and minima stay those of fixed,
// which pass on a NaN.
enum class SumOrder : std::uint8_t { fixed, library };
std::string_view name_of(SumOrder order);
// The order of the sums that this rank issues from now on. All ranks of the world call it together: for `library` it
// compares their devices. Throws UnsupportedError, on all ranks alike, for `library` where no library adds: on devices
// of the host, in a build without NCCL, where ranks share a GPU, and between hosts. A mismatch of the orders fails the
// sum.
void set_sum_order(SumOrder order, device::Device device);
SumOrder sum_order();

// The streams that most collectives between all members use unless a call names another. `exchange` is left out: few
// programs broadcast, gather, scatter or exchange asynchronously.
inline constexpr std::array streams_of_collectives = {device::Role::compute, device::Role::all_gather,
                                                      device::Role::reduce_scatter, device::Role::all_reduce};
// Opens what the collectives of the group need on these streams of the device: with NCCL a communicator per stream, so
// that no first collective waits for one. Transports that open nothing, and streams on which the group has had a
// collective, need no preparation; the call then does nothing. Blocks on the host. It is no collective: it appears
// neither in the log nor in transport_bytes(), and orders no streams. All members call it alike, in the same order
// with their collectives of the group. Throws CollectiveError like these.
void prepare(ProcessGroup& group, device::Device device, std::span<const device::Role> roles = streams_of_collectives);

// Exchanges small byte strings on the host: every member receives the strings of all members, in group order. Blocks;
// uncounted. Used for comparisons between ranks, never for training data. All members give the same purpose. Throws
// CollectiveError like the collectives.
std::vector<std::string> exchange(ProcessGroup& group, const std::string& mine, const std::string& purpose = "");

// ---- attributes of recorded collectives ----
// The phase of the current rank. Backward, optimizer steps and module calls set it.
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

// The name of the current call site. Collectives of the families user, tensor_parallel and checkpoint match only if all
// members issue them at the same call site. A call site is a source line, or, if the name is not empty, all lines that
// set this name. Empty by default.
const std::string& call_site_name();
void set_call_site_name(const std::string& name);

struct LogEntry {
  std::uint64_t sequence = 0;  // within the group
  Operation operation = Operation::barrier;
  Family family = Family::user;
  Phase phase = Phase::other;
  DType dtype = DType::float32;
  std::string axis;
  int group_size = 0;
  std::uint64_t group_id = 0;
  const ProcessGroup* group = nullptr;
  std::int64_t bytes = 0;  // of the larger of this rank's input and output
  std::string owner;
  int scenario_line = 0;
};
// The collectives that the current rank has issued, in order, without uncounted ones. An observation window starts at
// the current log().size().
const std::vector<LogEntry>& log();
// Bytes that the transport has moved for this rank, counted independently of the log; each counted collective adds its
// LogEntry::bytes.
std::int64_t transport_bytes();

// ---- deadlines, aborts ----
// Sets the deadline of this rank's waits; 10 s by default. A wait counts from the moment when all members have begun.
// Throws Error unless `seconds` is positive.
void set_deadline(double seconds);
double deadline();  // of this rank, in seconds
// The current rank begins its program: its launch time does not count against any deadline. The first collective
// implies this call. Until all members of a group have begun, no deadline ends a wait for them.
void announce_begin();
// The current rank has finished its steps, or failed for this reason. Peers that wait for it fail at once, and not only
// at their deadline.
void announce_end(bool failed, const std::string& why);

}  // namespace lockstep::comm
