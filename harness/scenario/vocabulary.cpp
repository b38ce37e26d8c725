#include "harness/scenario/vocabulary.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "engine/core/error.hpp"

namespace lockstep::scenario {

namespace {

struct VerbRow {
  Verb id;
  std::string_view name;
  Group group;
  Block block;
  std::string_view signature;
  std::string_view doc;
};
constexpr VerbRow verb_rows[] = {
#define LOCKSTEP_VERB(id, name, group, block, signature, doc) \
  {Verb::id, name, Group::group, Block::block, signature, doc},
#include "harness/scenario/verbs.def"
#undef LOCKSTEP_VERB
};

struct FunctionRow {
  Function id;
  std::string_view name;
  FunctionKind kind;
  std::string_view signature;
  std::string_view doc;
};
constexpr FunctionRow function_rows[] = {
#define LOCKSTEP_FUNCTION(id, name, kind, signature, doc) {Function::id, name, FunctionKind::kind, signature, doc},
#include "harness/scenario/functions.def"
#undef LOCKSTEP_FUNCTION
};

// A row more or less is meant: then say so here, and give the interpreter its case.
static_assert(std::size(verb_rows) == 68, "verbs.def has changed: teach harness/run the verb, then change this count");
static_assert(std::size(function_rows) == 74,
              "functions.def has changed: teach harness/run the function, then change this count");

template <class Rows>
constexpr bool names_are_unique(const Rows& rows) {
  for (std::size_t i = 0; i < std::size(rows); ++i) {
    if (rows[i].doc.empty()) return false;
    for (std::size_t j = i + 1; j < std::size(rows); ++j) {
      if (rows[i].name == rows[j].name) return false;
    }
  }
  return true;
}
static_assert(names_are_unique(verb_rows) && names_are_unique(function_rows), "a name twice, or one without a line");

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Splits at commas outside brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      if (!trim(text.substr(start, i - start)).empty()) parts.push_back(trim(text.substr(start, i - start)));
      start = i + 1;
    } else if (text[i] == '[' || text[i] == '{') {
      ++depth;
    } else if (text[i] == ']' || text[i] == '}') {
      --depth;
    }
  }
  return parts;
}

struct TypeName {
  std::string_view name;
  ArgType type;
};
constexpr TypeName type_table[] = {
    {"any", ArgType::any},
    {"int", ArgType::integer},
    {"num", ArgType::number},
    {"bool", ArgType::boolean},
    {"list", ArgType::list},
    {"map", ArgType::map},
    {"tensor", ArgType::tensor},
    {"tensors", ArgType::tensors},
    {"mesh", ArgType::mesh},
    {"optimizer", ArgType::optimizer},
    {"observation", ArgType::observation},
    {"dtype", ArgType::dtype},
    {"module", ArgType::module},
    {"counts", ArgType::counts},
    {"path", ArgType::path},
    {"paths", ArgType::paths},
    {"word", ArgType::word},
    {"words", ArgType::words},
    {"text", ArgType::text},
    {"choice", ArgType::choice},
    {"name", ArgType::name},
    {"names", ArgType::names},
};

ArgumentSpec parse_argument(std::string_view text) {
  ArgumentSpec spec;
  if (text.front() == '*') {
    spec.alone = true;
    text.remove_prefix(1);
  }
  const std::size_t colon = text.find(':');
  LOCKSTEP_CHECK(colon != std::string_view::npos, "argument without type: ", text);
  std::string_view name = trim(text.substr(0, colon));
  std::string_view type = trim(text.substr(colon + 1));
  const std::size_t equals = type.find('=');
  if (equals != std::string_view::npos) {
    spec.default_text = std::string(trim(type.substr(equals + 1)));
    type = trim(type.substr(0, equals));
  }
  if (name.back() == '?') {
    spec.optional = true;
    name.remove_suffix(1);
  }
  spec.name = std::string(name);
  if (type.find('|') != std::string_view::npos) {
    spec.type = ArgType::choice;
    for (std::size_t start = 0; start <= type.size();) {
      const std::size_t end = std::min(type.find('|', start), type.size());
      spec.choices.emplace_back(type.substr(start, end - start));
      start = end + 1;
    }
    return spec;
  }
  if (type.starts_with("num ") || type.starts_with("int ")) {
    spec.range = parse_range(trim(type.substr(4)));
    type = type.substr(0, 3);
  }
  for (const TypeName& entry : type_table) {
    if (entry.name == type) {
      spec.type = entry.type;
      return spec;
    }
  }
  throw InternalError("unknown argument type in the vocabulary: " + std::string(type));
}

VerbSpec parse_verb(const VerbRow& row) {
  VerbSpec spec{row.id, row.name, row.group, row.block, row.signature, row.doc, {}, false, 0, {}};
  std::string_view text = row.signature;
  const std::size_t arrow = text.find("->");
  if (arrow != std::string_view::npos) {
    spec.result = std::string(trim(text.substr(arrow + 2)));
    text = trim(text.substr(0, arrow));
  }
  if (text == "name: any, ...") {
    spec.free_names = true;
    return spec;
  }
  if (text.front() == '[') {
    const std::size_t end = text.find(']');
    spec.num_in_order = static_cast<int>(split(text.substr(1, end - 1)).size());
    text = trim(text.substr(end + 1));
  }
  for (std::string_view part : split(text)) spec.arguments.push_back(parse_argument(part));
  return spec;
}

FunctionSpec parse_function(const FunctionRow& row) {
  FunctionSpec spec{row.id, row.name, row.kind, row.signature, row.doc, 0, 0, {}, {}};
  for (std::string_view part : split(row.signature)) {
    if (part.back() == '=') {
      spec.keywords.emplace_back(part.substr(0, part.size() - 1));
    } else if (part.ends_with("...")) {
      ++spec.min_positional;
      spec.max_positional = -1;
      spec.names.emplace_back();
    } else {
      const bool optional = part.back() == '?';
      if (optional) part.remove_suffix(1);
      if (!optional) ++spec.min_positional;
      if (spec.max_positional >= 0) ++spec.max_positional;
      spec.names.emplace_back(part);
      spec.keywords.emplace_back(part);
    }
  }
  return spec;
}

}  // namespace

std::string_view title_of(Group group) {
  static constexpr std::array<std::string_view, num_groups> titles = {
      "Set-up", "Models", "Parallel", "Training", "Collectives", "State", "Observation", "Faults", "Control", "Checks"};
  return titles[static_cast<std::size_t>(group)];
}

std::string_view title_of(FunctionKind kind) {
  static constexpr std::array<std::string_view, num_function_kinds> titles = {
      "Plain values", "New tensors", "On tensors", "Sharded tensors", "Of objects"};
  return titles[static_cast<std::size_t>(kind)];
}

bool communicates(Function function) { return function == Function::full_tensor || function == Function::redistribute; }

std::string_view name_of(ArgType type) {
  for (const TypeName& entry : type_table) {
    if (entry.type == type) return entry.name;
  }
  return "?";
}

bool is_literal(ArgType type) { return type >= ArgType::path; }
bool takes_list(ArgType type) { return type == ArgType::paths || type == ArgType::words || type == ArgType::names; }

const ArgumentSpec* VerbSpec::alone() const {
  for (const ArgumentSpec& argument : arguments) {
    if (argument.alone) return &argument;
  }
  return nullptr;
}

std::optional<std::size_t> VerbSpec::index_of(std::string_view argument) const {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name == argument) return i;
  }
  return std::nullopt;
}

const std::vector<VerbSpec>& verbs() {
  static const std::vector<VerbSpec> table = [] {
    std::vector<VerbSpec> specs;
    for (const VerbRow& row : verb_rows) specs.push_back(parse_verb(row));
    return specs;
  }();
  return table;
}

const VerbSpec& spec_of(Verb verb) { return verbs()[static_cast<std::size_t>(verb)]; }
std::string_view name_of(Verb verb) { return verb_rows[static_cast<std::size_t>(verb)].name; }

const VerbSpec* find_verb(std::string_view name) {
  for (const VerbSpec& spec : verbs()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

const std::vector<FunctionSpec>& functions() {
  static const std::vector<FunctionSpec> table = [] {
    std::vector<FunctionSpec> specs;
    for (const FunctionRow& row : function_rows) specs.push_back(parse_function(row));
    return specs;
  }();
  return table;
}

const FunctionSpec& spec_of(Function function) {
  LOCKSTEP_CHECK(function != Function::none, "no function");
  return functions()[static_cast<std::size_t>(function) - 1];
}
std::string_view name_of(Function function) {
  return function == Function::none ? std::string_view("?") : spec_of(function).name;
}

const FunctionSpec* find_function(std::string_view name) {
  for (const FunctionSpec& spec : functions()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

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

const std::vector<KeySpec>& scenario_keys() {
  static const std::vector<KeySpec> table = {
      {"scenario", true, "the path of the file below `scenarios/`, without `.yaml`"},
      {"summary", true, "one line: what the scenario shows"},
      {"mirrors", false, "`{document, test, number}` of the test that it mirrors; the number may be left out"},
      {"see", false, "links, as a list"},
      {"ranks", true,
       "`{world_size: [2, 8], launch: process}`: the sizes to run at; `launch` is process (the default), thread, or a "
       "list of both"},
      {"device", false,
       "where it can run, `[cpu, sim, cuda]` unless given. `--device` picks one; otherwise it is cpu, or the first of "
       "the list that the build has"},
      {"parameters", false,
       "constants by name, such as `{seed: 42}`; `--set seed=7` replaces one by a value of the same kind"},
      {"matrix", false,
       "`{name: [value, ...]}`, or `{name: {label: {entry: value}}}`, of which expressions use `name.entry` and "
       "`name.label`. Every combination is a case; the first name varies slowest"},
      {"skip", false, "a list of `{when: condition, reason: text}`: the cases that are not run"},
      {"expect_failure", false,
       "a list of the same form: the cases that must fail (XFAIL; one that passes is XPASS). With `line` and "
       "`message`, a "
       "failure elsewhere, or one that says something else, is still a FAIL"},
      {"timeout", false, "seconds a case may take, 60 unless given; `--timeout` overrides it"},
      {"limits", false,
       "`{memory_mb: 2048, output_mb: 64}`: MiB that each rank may use for tensors and values together, and MiB that "
       "it "
       "may record and write to files. A step that asks for more fails. Unless given, memory is 2048, or the ranks' "
       "share of half the machine's memory where that is less. `--memory-mb` and `--output-mb` override them"},
      {"tags", false, "words that `--tag` selects by"},
      {"bits", false,
       "`required`: every `expect_equal` of float32 values asks for the same bits; `{reported: reason}`: they are "
       "reported only, and why"},
      {"plan", false, "`{unplanned: reason}` where the collectives cannot be worked out beforehand, and why"},
      {"models", false, "models of the file's own"},
      {"steps", false, "what every rank does, in order; every file has either `steps` or `stages`"},
      {"stages", false,
       "`[{name, world_size, steps}]`: each stage is run by ranks launched afresh; nothing but the files in the case's "
       "folder outlives a stage"},
  };
  return table;
}

const std::vector<KeySpec>& routine_keys() {
  static const std::vector<KeySpec> table = {
      {"routine", true, "the name of the file, without `.yaml`"},
      {"summary", true, "one line: what it does"},
      {"parameters", false, "what it is given: `name: type`, or `name: {type: ..., default: ...}`"},
      {"gives", false, "names of its own that the caller may take over with `as`"},
      {"models", false, "models of its own"},
      {"steps", true, "what it does"},
  };
  return table;
}

const std::vector<KeySpec>& model_keys() {
  static const std::vector<KeySpec> table = {
      {"arguments", false, "`{dim: required, mult: 4}`: what it is built with"},
      {"children", false, "modules by name, built in this order"},
      {"parameters", false, "tensors by name, drawn in this order after the children"},
      {"buffers", false, "tensors by name, drawn in this order after the parameters"},
      {"forward", false, "the output as an expression of one input, `x`"},
      {"methods", false,
       "`name(input, option=default): expression`, or in place of the expression a map of names and expressions whose "
       "last is `return`"},
  };
  return table;
}

const std::vector<KeySpec>& modifier_keys() {
  static const std::vector<KeySpec> table = {
      {"as", false, "names what the verb gives; with `use`, a map `{its name: my name}`"},
      {"when", false, "a condition; where it does not hold, this rank leaves the step out"},
      {"raises", false,
       "the step must fail, on every rank that runs it, with a message that contains this text (`*` stands for "
       "anything); or `{message, when, within_ms}`. The case goes on"},
      {"steps", false, "the block of `observe`, `hook`, `repeat`, `for_each` and `if`"},
      {"else", false, "what `if` runs instead"},
      {"among", false, "the branches of `choose`: a map from value to steps"},
      {"with", false, "the arguments of the routine that `use` runs"},
      {"place", false,
       "a name: the step's own collectives agree with those of other steps of this name. Without it all ranks issue a "
       "collective at one line"},
      {"note", false, "a remark that `explain` and failures show"},
  };
  return table;
}

std::vector<std::string> names_of(const std::vector<KeySpec>& keys) {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const KeySpec& key : keys) names.emplace_back(key.name);
  return names;
}

const std::vector<std::string>& step_modifiers() {
  static const std::vector<std::string> names = names_of(modifier_keys());
  return names;
}

const std::vector<std::string>& devices() {
  static const std::vector<std::string> names = {"cpu", "sim", "cuda"};
  return names;
}

}  // namespace lockstep::scenario
