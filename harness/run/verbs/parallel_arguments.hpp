// The arguments of the verbs that apply a parallel API, read from a step into plain structs. The verbs translate them
// to options of engine/parallel, the dry run to choices of the planner: the arguments are read once, their meaning
// twice.
//
//   const FullyShardArguments arguments = fully_shard_arguments(call);
//
// Each function throws Error for an argument of the wrong type or form, and for a path that matches nothing.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/layout/placement.hpp"
#include "harness/run/values/paths.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run {

// `reshard_after_forward`: whether to reshard, or the number of ranks that keep the parameters sharded among them.
using ReshardArgument = std::variant<bool, int>;

struct MixedPrecisionArgument {
  std::optional<DType> param, reduce, output;
  bool cast_forward_inputs = true;
};

enum class OffloadArgument { none, cpu, cpu_pinned };

// `shard_dim`: one dim for all parameters, or a map from glob patterns of paths below the module to dims.
class ShardDimArgument {
 public:
  explicit ShardDimArgument(const Value& value);
  // The dim that is stated for the parameter. Empty if the map has no pattern that matches its path.
  std::optional<int> stated_for(const std::string& path);
  // Throws Error if a pattern has matched no path so far.
  void check_all_matched() const;

 private:
  struct Entry {
    std::string pattern;
    int dim = 0;
    bool has_matched = false;
  };
  std::optional<int> for_all_;
  std::vector<Entry> by_pattern_;
};

struct ReplicateArguments {
  std::vector<ModuleMatch> modules, ignored;
  MeshPtr mesh;
  std::optional<double> bucket_cap_mb;  // empty unless the step gives it: the first bucket's default differs
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;
  bool broadcast_buffers = false;
  Value device_id;
};
ReplicateArguments replicate_arguments(const StepCall& call);

struct FullyShardArguments {
  std::vector<std::vector<ModuleMatch>> groups;  // the modules of each group to make
  MeshPtr mesh;
  std::optional<ReshardArgument> reshard_after_forward;
  OffloadArgument offload = OffloadArgument::none;
  MixedPrecisionArgument mixed_precision;
  std::vector<ModuleMatch> ignored_modules;
  std::vector<TensorMatch> ignored_parameters;
  ShardDimArgument shard_dim;
};
FullyShardArguments fully_shard_arguments(const StepCall& call);

enum class FlatStrategyArgument { full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_grad_op };
enum class PrefetchArgument { before, after, none };

struct FlatPrecisionArgument {
  std::optional<DType> param, reduce, buffer;
  bool cast_forward_inputs = false;
  bool cast_root_forward_inputs = true;
  bool keep_low_precision_gradients = false;
};

struct FlatShardArguments {
  std::vector<ModuleMatch> modules;
  MeshPtr mesh;
  FlatStrategyArgument strategy = FlatStrategyArgument::full_shard;
  std::vector<std::string> unit_types;
  bool offload = false;
  FlatPrecisionArgument mixed_precision;
  bool original_parameters = true;
  bool sync_module_states = false;
  std::vector<ModuleMatch> ignored_modules;
  std::vector<TensorMatch> ignored_parameters;
  PrefetchArgument backward_prefetch = PrefetchArgument::before;
  bool forward_prefetch = false;
};
FlatShardArguments flat_shard_arguments(const StepCall& call);

struct FlagArguments {
  std::vector<ModuleMatch> modules;
  bool recurse = true;
  std::optional<bool> requires_gradient_sync, requires_all_reduce, is_last_backward, reshard_after_backward;
  std::optional<ReshardArgument> reshard_after_forward;
  std::optional<double> reduce_divide_factor;
};
FlagArguments flag_arguments(const StepCall& call);

struct PrefetchArguments {
  ModuleMatch module;
  std::optional<std::vector<ModuleMatch>> forward, backward;
};
PrefetchArguments prefetch_arguments(const StepCall& call);

// ---- tensor_parallel ----
enum class StyleKind { colwise, rowwise, sequence_parallel, prepare_input, prepare_output };

// A placement that a plain tensor is taken to have, and the one that it shall get, if any. A negative dim counts from
// the last.
struct ConversionArgument {
  layout::Placement given;
  std::optional<layout::Placement> wanted;
};

// A style as a scenario writes it. Fields that the kind does not use keep their defaults.
struct StyleArgument {
  StyleKind kind = StyleKind::colwise;
  std::optional<layout::Placement> input, output;                 // colwise, rowwise; empty: the default of the kind
  int dim = 1;                                                    // sequence_parallel
  std::vector<std::optional<ConversionArgument>> conversions;     // prepare_*: per positional input, per output
  std::vector<std::pair<std::string, ConversionArgument>> named;  // prepare_input: of inputs given by name
  std::optional<bool> keep_sharded;                               // empty: the default of the kind
};
// A style from the map that colwise(...) and the other functions of styles return. Throws Error for any other value.
StyleArgument style_argument(const Value& value);

struct StyledModule {
  std::string path;  // below the model
  nn::ModulePtr module;
  StyleArgument style;
};
struct TensorParallelArguments {
  ModuleMatch model;
  MeshPtr mesh;
  std::vector<StyledModule> modules;  // in the order of the plan, those of one pattern in registration order
};
TensorParallelArguments tensor_parallel_arguments(const StepCall& call);

// ---- extend_gather ----
// The map `site` that `send` and `build` of an extension receive.
struct GatherSiteFields {
  std::string name;  // of the parameter
  MeshPtr mesh;
  Dims shape;  // of the full parameter
  int dim = 0;
  Dims part_shape;  // of a local shard, with its padding
  DType dtype = DType::float32;
};
Value gather_site_value(const GatherSiteFields& site);

// The tensors and the metadata that `send` returns: a tensor, a list of tensors, or a map of `tensors` and `metadata`.
struct SentTensors {
  std::vector<Tensor> tensors;
  Value metadata;
};
SentTensors sent_tensors(const Value& returned);

}  // namespace lockstep::run
