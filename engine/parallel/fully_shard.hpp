// Sharded data parallelism per parameter: every rank keeps a part of each parameter, its gradient and its optimizer
// state; whole parameters exist only around their use.
//
// A call makes one GROUP of all parameters below its modules that no other group, replicate or ignore list owns. Call
// it bottom-up, the root last. Each parameter becomes a sharded tensor, Shard(0) over the mesh (on a 2-d mesh the first
// axis replicates). A group is gathered with one all_gather before its module's forward and backward, and its gradients
// are averaged with one reduce_scatter after its backward (and one all_reduce over a replicate axis). The optimizer
// sees the sharded parameters alone.
//
//   for (const auto& block : blocks) fully_shard({block}, {});
//   fully_shard({model}, {});
//   auto adam = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(model), {.lr = 1e-2})});
//
// All ranks of the mesh run the same forwards and backwards; every error is raised on every rank. engine/parallel's
// page shows the life of a parameter, the states of a group and who waits for whom.
//
// After PyTorch's torch.distributed.fsdp.fully_shard; departures: the division comes after the whole sum, groups left
// gathered by an evaluation are gathered again after the optimizer changed their parts, and ranks that disagree on
// which parameters got a gradient are an error at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/stream.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

struct MixedPrecision {
  std::optional<DType> param;   // gather and compute in this type; unset: the parameter's own
  std::optional<DType> reduce;  // reduce and accumulate in it; unset: the compute type
  std::optional<DType> output;  // floating outputs of the module are cast to it
  bool cast_forward_inputs = true;
};

enum class Offload { none, cpu, cpu_pinned };

// What becomes of a group after its forward: gathered again for backward (yes), kept (no), or kept in parts by groups
// of `ranks` consecutive ranks.
struct ReshardAfterForward {
  enum class Kind { automatic, yes, no, among } kind = Kind::automatic;  // automatic: yes, at the root no
  int ranks = 0;
  static ReshardAfterForward of(bool value) { return {value ? Kind::yes : Kind::no, 0}; }
  static ReshardAfterForward among(int ranks) { return {Kind::among, ranks}; }
};

struct FullyShardOptions {
  std::optional<DeviceMesh> mesh;  // 1-d: shards; 2-d: replicates over the first axis and shards over the second
  ReshardAfterForward reshard_after_forward;
  Offload offload = Offload::none;
  MixedPrecision mixed_precision;
  std::vector<nn::ModulePtr> ignored;      // left out with all below them
  std::vector<Tensor> ignored_parameters;  // left out
  // The dim to shard of a parameter, by its path below the module; 0 unless given.
  std::function<int(const std::string& path, const Tensor& parameter)> shard_dim;
  // Where it computes: parameters are moved there, inputs of the root too. Unset: where the parameters are.
  std::optional<device::Device> device;
  std::string name;  // of the group, for log, events and messages; the module's type unless given
};

// One group of all these modules. Throws Error when one is sharded or replicated already, has no forward, for scalar
// parameters, a mesh of more than two axes, a parameter of another group, a reshard number that does not divide.
void fully_shard(const std::vector<nn::ModulePtr>& modules, const FullyShardOptions& options = {});
bool is_fully_sharded(const nn::ModulePtr& module);

// ---- by hand ----
class UnshardHandle {
 public:
  void wait();  // the current stream goes on after the gather, and the module holds whole parameters; once

 private:
  friend UnshardHandle unshard(const nn::ModulePtr& module, bool async);
  std::weak_ptr<nn::Module> module_;
};
// Gathers the group of this module, not of those below. Before the first forward too. Without `async` it has waited.
UnshardHandle unshard(const nn::ModulePtr& module, bool async = false);
// Puts the sharded parameters of this module's group back and frees the whole ones; nothing when it is sharded.
void reshard(const nn::ModulePtr& module);

// ---- flags: what is unset stays; of the module, and with `recurse` of all below. Gives the number of groups. ----
struct ShardFlags {
  std::optional<bool> requires_gradient_sync;  // sets requires_all_reduce too
  std::optional<bool> requires_all_reduce;     // of a 2-d mesh: else partial sums are kept
  std::optional<bool> is_last_backward;        // whether backward ends with the final waits; of the root
  std::optional<bool> reshard_after_backward;
  std::optional<ReshardAfterForward> reshard_after_forward;
  std::optional<double> reduce_divide_factor;  // instead of the number of ranks
};
int set_flags(const nn::ModulePtr& module, const ShardFlags& flags, bool recurse = true);
// The groups that this one gathers ahead, instead of the implicit one (of backward).
void set_forward_prefetch(const nn::ModulePtr& module, const std::vector<nn::ModulePtr>& next);
void set_backward_prefetch(const nn::ModulePtr& module, const std::vector<nn::ModulePtr>& next);
// Gathers and reshards around that method as around forward.
void register_forward_method(const nn::ModulePtr& module, const std::string& method);
// The gathers of the next forward of this root wait for the event instead of all that the compute stream was given.
void set_post_optim_event(const nn::ModulePtr& root, device::Event event);

// ---- hooks around collectives: run with the stream that does the work as the current one ----
enum class ShardPoint { before_all_gather, before_reduce_scatter, before_all_reduce };
void add_shard_hook(const nn::ModulePtr& module, ShardPoint point, std::function<void()> hook);

}  // namespace lockstep::parallel
