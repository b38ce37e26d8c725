// A training program as the grammar derives it: a model, the parallel APIs on it, an optimizer and the steps of the
// training. render.hpp writes it as a scenario. Every value is valid by construction: the grammar knows which features
// go together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::fuzz {

// A module with parameters, by its path below the model. A module inside another comes before it.
struct Unit {
  std::string path;
  std::string type;            // as unit_types of flat_shard names it
  bool may_be_group = true;    // false: one of its parameters is shared with another module
  bool may_recompute = false;  // an activation checkpoint may wrap it
  bool is_used = true;         // false: forward never calls it
  bool runs_again = false;     // one forward of its parent calls it several times
  int rows = 0, columns = 0;   // of its own weight, if it is a Linear
};

// A model whose forward the grammar writes: names and expressions of the input x, the last one without a name.
struct Written {
  std::string name;
  int dim = 0;                 // of its input, its output and its child `inner`, a Linear
  bool has_parameter = false;  // `scale`
  std::vector<std::pair<std::string, std::string>> statements;
};

struct Model {
  std::string build;                     // "Sequential(Linear(4, 5), ReLU())"
  std::vector<std::string> definitions;  // models that the scenario defines (render.cpp has their text)
  std::vector<Written> written;
  std::vector<Unit> units;
  std::vector<std::string> blocks;                          // children with parameters, by path
  std::vector<std::pair<std::string, std::string>> ties;    // parameter, the parameter that it becomes
  std::vector<std::pair<std::string, std::string>> styles;  // path, style: what tensor parallelism does to it
  std::string input;                                        // one microbatch, as an expression of `rows`
  bool draws = false;                                       // its forward draws random numbers
  bool has_unused = false;                                  // a parameter that gets no gradient
  bool has_buffers = false;                                 // the running statistics of a BatchNorm
  bool output_may_change = false;                           // in place: backward needs it nowhere
  bool ends_in_linear = false;                              // whose gradients are infinite if that of the output is
  bool has_rounding = false;  // gradients that are zero but for rounding, which Adam makes steps as large as others
};

enum class Api { fully_shard, replicate, flat_shard, tensor_parallel };

// One call of fully_shard.
struct Group {
  std::vector<std::string> modules;  // "" is the model itself
  std::string reshard;               // the argument reshard_after_forward; empty: not given
  bool other_dim = false;            // shards dim 1 of its Linear's weight
};

struct Prefetch {
  std::string module, ahead;
  bool in_backward = false;
};

struct Parallel {
  bool is_narrow() const { return !param.empty() || !reduce.empty(); }          // computes or reduces in 16 bits
  bool has_names() const { return api != Api::flat_shard || use_orig_params; }  // optimizers see every parameter

  Api api = Api::fully_shard;
  std::string shape;          // of the mesh, "[2, 2]"; empty: no mesh is made
  std::string names;          // of its axes, "[replicate, shard]"
  int data_ranks = 1;         // ranks with inputs of their own
  int neighbours = 0;         // ranks whose gradients are summed first; 0: all at once
  bool starts_apart = false;  // each rank has other values, until the API takes those of rank 0
  bool only_tensor_parallel = false;
  // fully_shard
  std::vector<Group> groups;
  bool root_is_replicated = false;
  std::string offload;        // empty: none
  std::string param, reduce;  // element types of mixed precision; empty: not given
  std::vector<Prefetch> prefetches;
  // replicate
  std::vector<std::string> replicated;  // modules
  std::string bucket_cap;
  bool bucket_view = false;
  // flat_shard
  std::string strategy;
  std::vector<std::string> unit_types;
  bool use_orig_params = true;
  std::string backward_prefetch;
  bool forward_prefetch = false;
};

struct Optimizer {
  std::string type = "SGD";
  std::string lr = "0.01", momentum, weight_decay, betas, eps;
  bool fused = false;
  std::string own_group;  // a child of the model whose parameters have options of their own; empty: none
};

// A step of the model under test that must not change the results of its training.
struct Interruption {
  enum Kind {
    none,
    lost_forward,    // its loss is dropped at once
    kept_forward,    // its loss is kept, and has no backward
    failed_forward,  // within a module
    failed_backward
  };
  Kind kind = none;
  std::string module;        // that fails
  bool fails_after = false;  // its forward or backward; otherwise before it
};

struct Microbatch {
  bool sync = true;
  bool reshards = true;            // after backward
  bool last_backward = true;       // is_last_backward
  bool all_reduces = true;         // requires_all_reduce
  std::string resharded_between;   // a module that is resharded between forward and backward; empty: none
  bool gives_gradient = false;     // backward begins at the output
  bool evaluates_between = false;  // the model runs without a graph between forward and backward
  Interruption before;
};

// Before one of the steps, the state of the model under test and of its optimizer moves into a new model under another
// parallel API.
struct Move {
  std::size_t before_step = 1;
  Parallel parallel;
  bool through_disk = false;  // as a checkpoint; otherwise as full state dicts
  bool is_deferred = false;   // the new model is built on the meta device
};

// Values that are changed in place, in the same way in every model.
struct Change {
  enum Kind { scaled, divided, shifted, lowered, decayed, zeroed, copied };
  Kind kind = scaled;
  std::string child;     // whose values change; empty: all
  bool in_hook = false;  // of the optimizer: before its step for gradients, after it for parameters
  bool in_full = false;  // the full parameters of flat_shard, which are written back
};

// A save, a change of every parameter, and a load.
enum class Restore { none, full_state, host_state, keyed_by_position, checkpoint, async_checkpoint };

enum class Clear { to_none, to_zeros, not_at_all };

struct Step {
  std::vector<Microbatch> microbatches{Microbatch{}};
  bool is_nested = false;  // both forwards come first, then the backward of the second, then that of the first
  int rows = 2;
  bool evaluates = false;       // the model runs without a graph before the step
  bool evaluates_late = false;  // and between the backward and the update
  std::string frozen, thawed;   // children of the model, before the step; empty: none
  std::string frozen_late;      // a child that is frozen between the forward and the backward; empty: none
  std::string unsharded;        // a module that `unshard` gathers before the step; empty: none
  bool unshards_async = false;
  std::string max_norm, norm;                       // of clipping; empty: none
  std::string lr;                                   // set_lr before the step; empty: none
  Clear clear = Clear::to_none;                     // after the step
  std::vector<Change> of_gradients, of_parameters;  // before the step, after the step
  bool overflows = false;                           // the loss of one rank is infinite, and the scaler skips the step
  bool gathers_losses = false;                      // by a collective of the scenario
  bool waits_for_event = false;                     // set_post_optim_event
  Restore restore = Restore::none;
};

// A hook of a module of the model under test that trains another model.
struct SideModel {
  std::string module;
  std::string event;  // before_backward
  std::string verb;   // the API that distributes the other model
};

enum class Loss { squares, mean, entropy, distance, changed };

struct Program {
  std::uint64_t seed = 0, index = 0;
  int world_size = 2;
  std::string launch = "thread", device = "cpu";
  std::string suffix;  // of its name
  Model model;
  Parallel parallel;
  std::vector<std::pair<std::string, std::string>> checkpoints;  // module, form
  std::vector<std::string> saved;                                // operations that the checkpoints keep
  std::vector<std::string> frozen;                               // children of the model, from the beginning
  bool ties_late = false;                                        // after the APIs have distributed the model
  std::optional<SideModel> side;
  std::optional<Move> move;
  Optimizer optimizer;
  bool may_be_replicated = false;  // a replicated copy has the values of the model under test
  bool beside_replicated = false;  // one trains along
  Loss loss = Loss::squares;
  bool is_scaled = false;  // the losses of the model under test, by a scaler
  bool averages = false;   // an exponential average of the parameters is kept
  bool has_input_gradients = false;
  bool starts_with_state = false;  // init_optimizer_state
  std::optional<Written> stale;    // a model whose backward fails, after the training
  int value_seed = 1;
  std::vector<Step> steps;
};

}  // namespace lockstep::fuzz
