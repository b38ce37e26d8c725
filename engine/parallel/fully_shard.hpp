// Sharded data parallelism: every rank holds one shard of each parameter, its gradient and its optimizer state.
// Unsharded parameters exist only while a module uses them.
//
// One call makes one GROUP of the parameters below its modules, except those that another group, replicate or an
// ignore list owns. Call it bottom-up, the root last. Each parameter becomes a sharded tensor, Shard(0) over the mesh;
// on a 2-d mesh the first axis replicates. A parameter that tensor parallelism has sharded over other axes keeps that
// sharding: its local shard is sharded once more, and it gets a layout on all axes. One all-gather unshards the group
// before forward and before backward of its module. One reduce-scatter averages its gradients after backward, followed
// by one all-reduce over a replicate axis. The optimizer sees sharded parameters only.
//
//   for (const auto& block : blocks) fully_shard({block}, {});
//   fully_shard({model}, {});
//   auto adam = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(model), {.lr = 1e-2})});
//
// All ranks of the mesh run the same forwards and backwards. Every rank raises every error. The README of this folder
// shows the life of a parameter, the states of a group, and which stream waits for which.
//
// After PyTorch's torch.distributed.fsdp.fully_shard. Departures: the mean divides after the complete sum; a group that
// an evaluation left unsharded, or gathered in advance, is gathered anew after the optimizer has changed its shards;
// and ranks that disagree on the parameters that got a gradient raise an error at the end of that backward.
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
  std::optional<DType> param;   // type of the all-gather and the computation; unset: the parameter's own
  std::optional<DType> reduce;  // type of the reduction and of accumulated gradients; unset: the compute type
  std::optional<DType> output;  // floating-point outputs of the module are cast to it; unset: not cast
  bool cast_forward_inputs = true;
};

enum class Offload { none, cpu, cpu_pinned };
enum class BackwardPrefetch { before, after, none };  // of the next group: before or after this one's backward

// Whether a group is resharded after its forward: yes, no, or partly (`among`): then every `ranks` consecutive ranks
// keep all shards among them.
struct ReshardAfterForward {
  enum class Kind { automatic, yes, no, among } kind = Kind::automatic;  // automatic: no for the root, otherwise yes
  int ranks = 0;
  static ReshardAfterForward of(bool value) { return {value ? Kind::yes : Kind::no, 0}; }
  static ReshardAfterForward among(int ranks) { return {Kind::among, ranks}; }
};

struct FullyShardOptions {
  std::optional<DeviceMesh> mesh;  // 1-d: shards; 2-d: replicates over the first axis and shards over the second
  ReshardAfterForward reshard_after_forward;
  Offload offload = Offload::none;
  MixedPrecision mixed_precision;
  std::vector<nn::ModulePtr> ignored;      // left out with all modules below them, wherever their parameters are
  std::vector<Tensor> ignored_parameters;  // left out
  // The dim to shard of a parameter at `path` below the module; negative dims count from the end. Unset: 0.
  std::function<int(const std::string& path, const Tensor& parameter)> shard_dim;
  // Parameters, and the inputs of the root, are moved to this device, where the group computes. Unset: the device of
  // the parameters.
  std::optional<device::Device> device;
  std::string name;  // of the group, for log, events and messages; empty: the types of the modules
};

// Makes one group of all parameters below these modules. Throws Error for a module that is sharded or replicated
// already or has no forward, for a mesh of more than two axes, for a number of ranks to reshard among that does not
// divide the shard axis, and for a parameter that is a scalar, not contiguous, sharded by another group, or has a
// gradient. A parameter that is sharded over other axes is refused as layout::compose() says: these must be inner axes
// of the mesh from which the mesh of the group was sliced. Modules below another one of the list add nothing.
void fully_shard(const std::vector<nn::ModulePtr>& modules, const FullyShardOptions& options = {});
// The paths of the parameters that fully_shard() would shard. Those of several modules begin with the module's number.
std::vector<std::string> parameters_to_shard(const std::vector<nn::ModulePtr>& modules,
                                             const FullyShardOptions& options);
bool is_fully_sharded(const nn::ModulePtr& module);

// The functions below throw Error for a module that fully_shard was not applied to, except register_forward_method().
// Of modules of flat_shard, set_flags() changes requires_gradient_sync and refuses the other flags, and
// add_shard_hook() adds hooks.

// ---- explicit unshard and reshard ----
class UnshardHandle {
 public:
  // Later launches on the current stream run after the all-gather, and the slots of the module hold unsharded
  // parameters. A second call does nothing.
  void wait();

 private:
  friend UnshardHandle unshard(const nn::ModulePtr& module, bool async);
  std::weak_ptr<nn::Module> module_;
};
// Unshards the group of this module, not the groups below it; before the first forward, too. With `async` the caller
// waits on the handle; without it this function has waited.
UnshardHandle unshard(const nn::ModulePtr& module, bool async = false);
// Reshards the group of this module and frees its unsharded parameters. Does nothing when it is sharded.
void reshard(const nn::ModulePtr& module);

// ---- flags of a module, with `recurse` of all modules below it, too ----
struct ShardFlags {                            // unset flags keep their values
  std::optional<bool> requires_gradient_sync;  // sets requires_all_reduce, too
  std::optional<bool> requires_all_reduce;     // on a 2-d mesh; false: partial sums are kept for a later backward
  std::optional<bool> is_last_backward;        // of the root: whether its backward ends with the final waits
  std::optional<bool> reshard_after_backward;
  std::optional<ReshardAfterForward> reshard_after_forward;
  std::optional<double> reduce_divide_factor;  // divides the sum instead of the number of ranks; positive and finite
};
// Returns the number of groups. A call that throws has changed no flag.
int set_flags(const nn::ModulePtr& module, const ShardFlags& flags, bool recurse = true);
// Throws the errors of set_flags() and returns the same number, but changes nothing.
int check_flags(const nn::ModulePtr& module, const ShardFlags& flags, bool recurse = true);
// The modules whose groups this one's forward or backward prefetches. In backward they replace the implicit prefetch.
void set_forward_prefetch(const nn::ModulePtr& module, const std::vector<nn::ModulePtr>& next);
void set_backward_prefetch(const nn::ModulePtr& module, const std::vector<nn::ModulePtr>& next);
// Calls of that method unshard and reshard as calls of forward do. Throws Error when the module has no such method.
void register_forward_method(const nn::ModulePtr& module, const std::string& method);
// The next forward of this root waits for the event instead of all launches on the compute stream so far.
void set_post_optim_event(const nn::ModulePtr& root, device::Event event);

// ---- hooks before collectives; the stream of the collective is the current one ----
enum class ShardPoint { before_all_gather, before_reduce_scatter, before_all_reduce };
// Throws Error when the group has no parameters.
void add_shard_hook(const nn::ModulePtr& module, ShardPoint point, std::function<void()> hook);

}  // namespace lockstep::parallel
