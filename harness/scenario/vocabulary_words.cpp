// The words of the language beside verbs and functions: hooks, attributes, variables, element types, built-in models,
// and the words that arguments choose from.
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

const std::vector<HookPointSpec>& hook_points() {
  static const std::vector<HookPointSpec> table = {
      {"before_forward", HookTarget::modules, "before a module's forward, after the APIs' own hooks"},
      {"after_forward", HookTarget::modules, "after a module's forward, before the APIs' own hooks"},
      {"before_backward", HookTarget::modules, "when the gradients of a module's outputs have been computed"},
      {"after_backward", HookTarget::modules, "when the gradients of a module's inputs have been computed"},
      {"before_all_gather", HookTarget::modules, "before the all-gather of a group, on the stream that runs it"},
      {"before_reduce_scatter", HookTarget::modules,
       "before the reduce-scatter of a group's gradients, on the stream that runs it"},
      {"before_all_reduce", HookTarget::modules, "before an all-reduce of gradients, on the stream that runs it"},
      {"after_gradient", HookTarget::parameters, "when a parameter's gradient has been accumulated"},
      {"before_step", HookTarget::optimizer, "before an optimizer's step"},
      {"after_step", HookTarget::optimizer, "after an optimizer's step"},
  };
  return table;
}

const std::vector<std::string>& failing_verdicts() {
  static const std::vector<std::string> names = {"FAIL", "HANG", "CRASH", "INVALID", "UNSUPPORTED"};
  return names;
}

const std::vector<std::string>& evidence_names() {
#define LOCKSTEP_EVIDENCE(member) #member,
#define LOCKSTEP_LOOSEST(member) #member,
  static const std::vector<std::string> names = {
#include "harness/scenario/evidence.def"
  };
#undef LOCKSTEP_EVIDENCE
#undef LOCKSTEP_LOOSEST
  return names;
}

const std::vector<std::string_view>& hook_names() {
  static const std::vector<std::string_view> names = {"module",       "parameter", "inputs",
                                                      "named_inputs", "outputs",   "recomputing"};
  return names;
}

const std::vector<AttributeSpec>& attributes() {
  static const std::vector<AttributeSpec> table = {
      {"tensor", "grad", "the gradient, or none"},
      {"tensor", "dtype", "the element type, such as float32"},
      {"tensor", "device", "the device: 'cpu', 'sim', 'cuda' or 'meta', without its index"},
      {"tensor", "shape", "the sizes of the dims, as a list"},
      {"tensor", "numel", "the number of elements"},
      {"tensor", "bytes", "the size of all elements in bytes"},
      {"tensor", "name", "the name of a parameter below its model"},
      {"tensor", "requires_grad", "whether gradients are accumulated"},
      {"tensor", "pinned", "whether the tensor is in pinned host memory"},
      {"tensor", "storage", "the identity of the storage; equal for tensors that share a storage"},
      {"tensor", "sharded", "whether the tensor is a sharded tensor"},
      {"tensor", "local", "the local shard of a sharded tensor"},
      {"tensor", "mesh", "the mesh of a sharded tensor"},
      {"tensor", "placements", "the placements of a sharded tensor, one per mesh axis"},
      {"mesh", "rank", "this rank's index within the mesh"},
      {"mesh", "size", "the number of ranks"},
      {"mesh", "names", "the names of the axes"},
      {"scaler", "scale", "the factor for losses"},
      {"scaler", "growth_tracker", "the number of updates with finite gradients only since the scale changed"},
      {"observation", "peak_bytes", "the peak of the observed memory, in bytes"},
      {"observation", "seconds", "the duration of the window, in seconds"},
  };
  return table;
}

const std::vector<std::string_view>& variables() {
  static const std::vector<std::string_view> names = {"rank",         "world_size", "device",
                                                      "device_index", "launch",     "all_ranks"};
  return names;
}

const std::vector<std::string_view>& type_names() {
  static const std::vector<std::string_view> names = {"float32", "float64", "float16", "bfloat16",
                                                      "int64",   "int32",   "bool"};
  return names;
}

const std::vector<ModelSpec>& built_in_models() {
  static const std::vector<ModelSpec> table = {
      {"Linear", {"in", "out", "bias?"}, "x @ weight^T + bias; without bias when `bias=false`"},
      {"ReLU", {}, "max(x, 0) of each element"},
      {"GELU", {}, "x / 2 * (1 + erf(x / sqrt(2))) of each element"},
      {"LayerNorm",
       {"dim", "bias?", "eps?"},
       "normalizes the last dim to mean 0 and variance 1, then multiplies by weight and adds bias (unless "
       "`bias=false`)"},
      {"RMSNorm", {"dim", "eps?"}, "divides the last dim by the root of its mean square, then multiplies by weight"},
      {"Embedding", {"num_rows", "dim"}, "the rows of its weight that integers of any shape select"},
      {"Dropout",
       {"p?"},
       "in training, sets elements to 0 with probability p (default 0.5) and multiplies the others by 1 / (1 - p)"},
      {"BatchNorm",
       {"dim"},
       "normalizes each channel to mean 0 and variance 1, then multiplies by weight and adds bias; running statistics "
       "are "
       "buffers"},
      {"Conv2d",
       {"in", "out", "kernel", "stride?", "padding?", "bias?"},
       "2-d convolution of images of shape (batch, in, height, width) with a square kernel, plus bias"},
      {"Sequential", {"..."}, "runs its modules in order; they are named 0, 1, ..."},
      {"Net", {}, "fc1, fc2, fc3: three Linear(2, 2)"},
      {"MyNet", {}, "a: a Linear(2, 2); with an input `kwarg`, applied to x @ kwarg"},
      {"UnitModule", {}, "l1, seq (ReLU, Linear, ReLU), l2, all of width 100"},
      {"CompositeModel", {}, "l1, u1, u2, l2: two UnitModules between two Linear(100, 100)"},
      {"CompositeParamModel", {}, "l, u1, u2 as above, then a product with its own parameter p; it has a buffer too"},
      {"MLP",
       {"dim", "mult?", "bias?", "buffer?"},
       "in_proj from dim to mult * dim (mult defaults to 4) and out_proj back, with a relu after each"},
      {"MLPStack",
       {"dim", "seq_parallel?"},
       "0, 1, 2: three MLPs; the first and the last have mult 3. With seq_parallel also 3: LayerNorm(dim) without "
       "bias"},
      {"MultiForwardModule", {}, "runs inner, a Linear(4, 4), twice, and outer, a Linear(4, 5), on the sum"},
      {"SimpleModel", {}, "net1, relu, net2, net3: widths 5, 8, 4, 12"},
      {"MLPModule", {}, "net1, relu, net2: widths 10, 16, 10; drawn from a fixed seed of its own"},
      {"Transformer",
       {"n_layers?", "vocab_size?", "max_seq_len?", "dim?", "n_heads?", "dropout_p?", "use_attn_mask?", "weight_tying?",
        "checkpoint_activations?"},
       "tok_embeddings, pos_embeddings, dropout, layers, norm, output: from tokens (batch, sequence) to a score per "
       "vocabulary entry (batch, sequence, vocab_size). Defaults: 2 layers, vocabulary of 8, sequences of at most 16, "
       "dim "
       "16, 4 heads, dropout 0.1, causal attention, tied weights. With checkpoint_activations each layer is recomputed "
       "in "
       "backward"},
      {"VisionTransformer",
       {},
       "patch_proj: Conv2d(3, 1024, kernel=14, stride=14). Its method forward_features gives patches of width 1024, "
       "and "
       "forward gives their sum"},
      {"ViT", {}, "vit: a VisionTransformer; projector: a Linear(1024, 256) applied to vit.forward_features"},
  };
  return table;
}

const std::vector<std::string>& families() {
  static const std::vector<std::string> names = {"data_parallel", "tensor_parallel", "user", "start_up", "checkpoint"};
  return names;
}

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> names = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                                 "broadcast",  "send",       "receive",        "gather",
                                                 "scatter",    "barrier"};
  return names;
}

const std::vector<std::string>& memory_purposes() {
  static const std::vector<std::string> names = {"parameter", "gradient",      "gathered", "activation",
                                                 "optimizer", "communication", "other"};
  return names;
}

const std::vector<std::string>& routine_types() {
  static const std::vector<std::string> names = {"any",   "integer", "number",    "boolean", "text", "tensor",
                                                 "model", "modules", "optimizer", "mesh",    "list", "map"};
  return names;
}

const std::vector<std::string>& devices() {
  static const std::vector<std::string> names = {"cpu", "sim", "cuda"};
  return names;
}

}  // namespace lockstep::scenario
