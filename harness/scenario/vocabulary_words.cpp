// The words of the language beside verbs and functions: hooks, attributes, variables, element types, built-in models,
// and the words that arguments choose from.
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

const std::vector<HookPointSpec>& hook_points() {
  static const std::vector<HookPointSpec> table = {
      {"before_forward", HookTarget::modules, "before a module's forward, after what the APIs do there"},
      {"after_forward", HookTarget::modules, "after a module's forward, before what the APIs do there"},
      {"before_backward", HookTarget::modules, "when the gradients of a module's outputs are there"},
      {"after_backward", HookTarget::modules, "when the gradients of a module's inputs are there"},
      {"before_all_gather", HookTarget::modules, "before a group's gather, in the stream that does it"},
      {"before_reduce_scatter", HookTarget::modules,
       "before a group's gradients are reduced, in the stream that does it"},
      {"before_all_reduce", HookTarget::modules, "before an all-reduce of gradients, in the stream that does it"},
      {"after_gradient", HookTarget::parameters, "when a parameter's gradient has been accumulated"},
      {"before_step", HookTarget::optimizer, "before an optimizer's step"},
      {"after_step", HookTarget::optimizer, "after an optimizer's step"},
  };
  return table;
}

const std::vector<std::string_view>& hook_names() {
  static const std::vector<std::string_view> names = {"module",       "parameter", "inputs",
                                                      "named_inputs", "outputs",   "recomputing"};
  return names;
}

const std::vector<AttributeSpec>& attributes() {
  static const std::vector<AttributeSpec> table = {
      {"tensor", "grad", "the gradient, none when absent"},
      {"tensor", "dtype", "the element type, such as float32"},
      {"tensor", "device", "'cpu', 'sim', 'cuda' or 'meta', without index"},
      {"tensor", "shape", "a list of sizes"},
      {"tensor", "numel", "number of elements"},
      {"tensor", "bytes", "size of its elements in bytes"},
      {"tensor", "name", "a parameter's name below its model"},
      {"tensor", "requires_grad", "whether gradients are accumulated"},
      {"tensor", "pinned", "whether it lies in pinned host memory"},
      {"tensor", "storage", "the identity of its storage; equal for tensors that share it"},
      {"tensor", "sharded", "whether it is a sharded tensor"},
      {"tensor", "local", "this rank's shard of a sharded tensor"},
      {"tensor", "mesh", "the mesh of a sharded tensor"},
      {"tensor", "placements", "the placements of a sharded tensor, one an axis"},
      {"mesh", "rank", "this rank's index within the mesh"},
      {"mesh", "size", "number of ranks"},
      {"mesh", "names", "the names of its axes"},
      {"scaler", "scale", "what a loss is multiplied by"},
      {"scaler", "growth_tracker", "updates without anything infinite since the scale changed"},
      {"observation", "peak_bytes", "the peak of the memory observed, in bytes"},
      {"observation", "seconds", "how long the window was open"},
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
       "the last dim to mean 0 and variance 1, times weight, plus bias unless `bias=false`"},
      {"RMSNorm", {"dim", "eps?"}, "the last dim over the root of its mean square, times weight"},
      {"Embedding", {"num_rows", "dim"}, "rows of its weight by integers of any shape"},
      {"Dropout", {"p?"}, "while training, drops elements with probability p (0.5); the others grow by 1 / (1 - p)"},
      {"BatchNorm",
       {"dim"},
       "channels to mean 0 and variance 1, times weight, plus bias; with running figures as buffers"},
      {"Conv2d",
       {"in", "out", "kernel", "stride?", "padding?", "bias?"},
       "square windows of images (batch, in, height, width) times weight, plus bias"},
      {"Sequential", {"..."}, "its modules one after the other, named 0, 1, ..."},
      {"Net", {}, "fc1, fc2, fc3: three Linear(2, 2)"},
      {"MyNet", {}, "a: a Linear(2, 2); x @ kwarg first when an input `kwarg` is given"},
      {"UnitModule", {}, "l1, seq (ReLU, Linear, ReLU), l2, all of width 100"},
      {"CompositeModel", {}, "l1, u1, u2, l2: two UnitModules between two Linear(100, 100)"},
      {"CompositeParamModel", {}, "l, u1, u2 as above, then a product with its own parameter p; and a buffer"},
      {"MLP",
       {"dim", "mult?", "bias?", "buffer?"},
       "in_proj to mult * dim (4 times) and out_proj back, a relu after each"},
      {"MLPStack", {"dim"}, "0, 1, 2: three MLPs, the first and last 3 times as wide inside"},
      {"MultiForwardModule", {}, "inner: Linear(4, 4) twice, then outer: Linear(4, 5) of the sum"},
      {"SimpleModel", {}, "net1, relu, net2, net3: from 5 over 8 and 4 to 12"},
      {"MLPModule", {}, "net1, relu, net2: from 10 over 16 to 10, drawn from a seed of its own"},
      {"Transformer",
       {"n_layers?", "vocab_size?", "max_seq_len?", "dim?", "n_heads?", "dropout_p?", "use_attn_mask?", "weight_tying?",
        "checkpoint_activations?"},
       "tok_embeddings, pos_embeddings, dropout, layers, norm, output: tokens (batch, sequence) to scores of each "
       "word; "
       "2 layers, 8 words, 16 places, dim 16, 4 heads, dropout 0.1, causal and tied unless given otherwise; with "
       "checkpoint_activations each layer is recomputed in backward"},
      {"VisionTransformer",
       {},
       "patch_proj: Conv2d(3, 1024, kernel=14, stride=14); its method forward_features gives patches of 1024, forward "
       "their sum"},
      {"ViT", {}, "vit: VisionTransformer, projector: Linear(1024, 256) of vit.forward_features"},
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
