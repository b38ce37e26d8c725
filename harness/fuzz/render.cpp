#include "harness/fuzz/render.hpp"

#include <algorithm>
#include <map>

#include "engine/core/error.hpp"
#include "harness/fuzz/render_internal.hpp"

namespace lockstep::fuzz {

namespace {

const std::map<std::string, Json>& definitions() {
  static const Json dim = {{"dim", "required"}};
  const auto two = [](const char* first, const char* second) {
    return Json{{first, "Linear(dim, dim)"}, {second, "Linear(dim, dim)"}};
  };
  const Json inner = {{"inner", "Linear(dim, dim)"}};
  static const std::map<std::string, Json> all{
      {"Residual", {{"arguments", dim}, {"children", inner}, {"forward", "x + inner(x)"}}},
      {"Twice", {{"arguments", dim}, {"children", inner}, {"forward", "inner(relu(inner(x)))"}}},
      {"Scaled",
       {{"arguments", dim},
        {"children", inner},
        {"parameters", {{"scale", "1 + rand(dim)"}}},
        {"forward", "inner(x) * scale"}}},
      {"Spare", {{"arguments", dim}, {"children", two("inner", "unused")}, {"forward", "inner(x)"}}},
      {"Fan", {{"arguments", dim}, {"children", two("left", "right")}, {"forward", "left(x) * right(x) + x"}}},
      {"Image",
       {{"arguments", {{"channels", "required"}, {"dim", "required"}}},
        {"children",
         {{"conv", "Conv2d(2, channels, 2)"}, {"norm", "BatchNorm(channels)"}, {"head", "Linear(4 * channels, dim)"}}},
        {"forward", "head(flatten(relu(norm(conv(x))), 1))"}}},
      {"Tied", {{"arguments", dim}, {"children", two("first", "second")}, {"forward", "second(relu(first(x)))"}}},
  };
  return all;
}

Json definition_of(const Written& model) {
  const std::string linear = str("Linear(", model.dim, ", ", model.dim, ")");
  Json definition = {{"children", {{"inner", linear}}}};
  if (model.has_parameter) definition["parameters"] = {{"scale", str("1 + rand(", model.dim, ")")}};
  Json statements;
  for (const auto& [name, text] : model.statements) statements[name] = text;
  definition["methods"] = {{"forward(x)", statements}};
  return definition;
}

Json paths(const std::string& model, const std::vector<std::string>& below) {
  Json list = Json::array();
  for (const std::string& path : below) list.push_back(path_of(model, path));
  return list.size() == 1 ? list[0] : list;
}

// The first rank keeps its values.
void render_other_values(const std::string& model, Json& steps) {
  steps.push_back({{"for_each", {{"name", "p"}, {"in", str("parameters(", model, ")")}}},
                   {"steps", {{{"assign", {{"to", "p"}, {"value", "detach(p) * (rank + 1)"}}}}}}});
}

void render_models(const Program& program, Json& steps) {
  render_mesh(program.parallel, steps);
  steps.push_back({{"seed", program.value_seed}});
  steps.push_back({{"model", program.model.build}, {"as", "test"}});
  if (!program.ties_late) render_ties(program, "test", steps);
  for (const std::string& child : program.frozen)
    steps.push_back({{"set_requires_grad", {{"parameters", str("test.", child, ".**")}, {"to", false}}}});
  steps.push_back({{"copy", "test"}, {"as", "alone"}});
  if (program.beside_replicated) steps.push_back({{"copy", "test"}, {"as", "replicated"}});
  if (program.parallel.starts_apart) render_other_values("test", steps);
}

// "fully_shard: test.0", or with arguments.
Json call(const std::string& verb, const std::string& first, const Json& modules, const Json& arguments) {
  if (arguments.empty()) return {{verb, modules}};
  Json all = {{first, modules}};
  all.update(arguments);
  return {{verb, all}};
}

void render_groups(const Parallel& parallel, Json& steps) {
  for (const Group& group : parallel.groups) {
    Json arguments = Json::object();
    if (group.modules.size() > 1) arguments["together"] = true;
    if (parallel.names == "[dp, tp]") arguments["mesh"] = "world.dp";
    if (parallel.names == "[replicate, shard]") arguments["mesh"] = "world";
    if (!group.reshard.empty()) arguments["reshard_after_forward"] = Json::parse(group.reshard);
    if (!parallel.offload.empty()) arguments["offload"] = parallel.offload;
    if (group.other_dim) arguments["shard_dim"] = Json{{"weight", 1}};
    Json precision = Json::object();
    if (!parallel.param.empty()) precision["param"] = parallel.param;
    if (!parallel.param.empty() && group.modules[0].empty()) precision["output"] = "float32";
    if (!parallel.reduce.empty()) precision["reduce"] = parallel.reduce;
    if (!precision.empty()) arguments["mixed_precision"] = precision;
    steps.push_back(call("fully_shard", "modules", paths("test", group.modules), arguments));
  }
}

void render_replicate(const Program& program, const Parallel& parallel, const std::string& model,
                      const std::vector<std::string>& modules, bool has_options, Json& steps) {
  Json arguments = Json::object();
  if (parallel.names == "[dp, tp]") arguments["mesh"] = "world.dp";
  if (parallel.names == "[replicate, shard]") arguments["mesh"] = "world";
  if (has_options && !parallel.bucket_cap.empty()) arguments["bucket_cap_mb"] = parallel.bucket_cap;
  if (has_options && parallel.bucket_view) arguments["gradient_as_bucket_view"] = true;
  if (program.model.has_unused) arguments["find_unused_parameters"] = true;
  steps.push_back(call("replicate", "modules", paths(model, modules), arguments));
}

void render_flat(const Parallel& parallel, Json& steps) {
  Json arguments = Json::object();
  if (!parallel.names.empty()) arguments["mesh"] = "world";
  if (!parallel.unit_types.empty()) arguments["unit_types"] = parallel.unit_types;
  if (!parallel.strategy.empty()) arguments["strategy"] = parallel.strategy;
  if (!parallel.use_orig_params) arguments["use_orig_params"] = false;
  if (!parallel.backward_prefetch.empty()) arguments["backward_prefetch"] = parallel.backward_prefetch;
  if (parallel.forward_prefetch) arguments["forward_prefetch"] = true;
  if (parallel.starts_apart) arguments["sync_module_states"] = true;
  if (!parallel.offload.empty()) arguments["offload"] = parallel.offload;
  steps.push_back(call("flat_shard", "modules", "test", arguments));
}

}  // namespace

std::string path_of(const std::string& model, const std::string& path) {
  return path.empty() ? model : model + "." + path;
}

std::vector<std::string> models_of(const Program& program) {
  std::vector<std::string> models{"test", "alone"};
  if (program.beside_replicated) models.emplace_back("replicated");
  return models;
}

void render_mesh(const Parallel& parallel, Json& steps) {
  if (parallel.names.empty()) return;
  Json names = Json::array();
  std::string name;
  for (char c : parallel.names + ",")
    if (c == ',' || c == ']') {
      if (!name.empty()) names.push_back(name);
      name.clear();
    } else if (c != '[' && c != ' ') {
      name += c;
    }
  steps.push_back({{"mesh", {{"shape", parallel.shape}, {"names", names}}}, {"as", "world"}});
}

void render_ties(const Program& program, const std::string& model, Json& steps) {
  for (const auto& [slot, source] : program.model.ties)
    steps.push_back({{"set_parameter", {{"parameter", path_of(model, slot)}, {"to", path_of(model, source)}}}});
}

void render_test_parallel(const Program& program, const Parallel& parallel, Json& steps) {
  if (parallel.api == Api::tensor_parallel && !program.model.styles.empty()) {
    Json plan = Json::object();
    for (const auto& [path, style] : program.model.styles) plan[path] = style;
    const char* mesh = parallel.only_tensor_parallel ? "world" : "world.tp";
    steps.push_back({{"tensor_parallel", {{"model", "test"}, {"mesh", mesh}, {"plan", plan}}}});
  }
  for (const auto& [module, form] : program.checkpoints) {
    Json arguments = Json::object();
    if (form != "composable") arguments["form"] = form;
    if (!program.saved.empty()) arguments["save"] = program.saved;
    steps.push_back(call("activation_checkpoint", "modules", "test." + module, arguments));
  }
  render_groups(parallel, steps);
  if (parallel.root_is_replicated) render_replicate(program, parallel, "test", {""}, true, steps);
  if (!parallel.replicated.empty()) render_replicate(program, parallel, "test", parallel.replicated, true, steps);
  if (parallel.api == Api::flat_shard) render_flat(parallel, steps);
  for (const Prefetch& one : parallel.prefetches)
    steps.push_back(
        {{"prefetch",
          {{"module", "test." + one.module}, {one.in_backward ? "backward" : "forward", "test." + one.ahead}}}});
}

void render_optimizer(const Program& program, const std::string& model, bool for_peer, Json& steps) {
  const Optimizer& optimizer = program.optimizer;
  Json arguments = {{"type", optimizer.type}};
  if (optimizer.own_group.empty()) {
    arguments["model"] = model;
  } else {
    const std::string rest =
        str("[p for p in parameters(", model, ") if not starts_with(p.name, '", optimizer.own_group, ".')]");
    arguments["groups"] = {{{"parameters", str("parameters(", model, ".", optimizer.own_group, ")")},
                            {"lr", "0.005"},
                            {"weight_decay", "0.2"}},
                           {{"parameters", rest}}};
  }
  arguments["lr"] = optimizer.lr;
  if (!optimizer.momentum.empty()) arguments["momentum"] = optimizer.momentum;
  if (!optimizer.weight_decay.empty()) arguments["weight_decay"] = optimizer.weight_decay;
  if (!optimizer.betas.empty()) arguments["betas"] = optimizer.betas;
  if (optimizer.type != "SGD" && (for_peer || !promises_bits(program))) arguments["eps"] = "0.01";
  if (optimizer.fused) arguments["fused"] = true;
  steps.push_back({{"optimizer", arguments}, {"as", model + "_optimizer"}});
}

std::string name_of(const Program& program) {
  return str("seed_", program.seed, "_program_", program.index, program.suffix);
}

bool promises_bits(const Program& program) {
  const Parallel& parallel = program.parallel;
  if (parallel.api == Api::tensor_parallel || program.ties_late) return false;
  for (const Step& step : program.steps) {
    if (!step.max_norm.empty()) return false;
    for (const Microbatch& microbatch : step.microbatches)
      if (!microbatch.all_reduces) return false;
  }
  return true;
}

Json scenario_of(const Program& program, bool for_peer) {
  Json document;
  document["scenario"] = "fuzz/" + name_of(program);
  document["summary"] =
      str("Program ", program.index, " of seed ", program.seed, ": the ranks train as one rank alone.");
  document["ranks"] = {{"world_size", program.world_size}, {"launch", program.launch}};
  if (program.device != "cpu") document["device"] = {program.device};
  const std::string unplanned = unplanned_reason(program);
  if (!unplanned.empty()) document["plan"] = {{"unplanned", unplanned}};
  if (!program.model.definitions.empty() || !program.model.written.empty() || program.stale) {
    Json models;
    for (const std::string& name : program.model.definitions) models[name] = definitions().at(name);
    for (const Written& model : program.model.written) models[model.name] = definition_of(model);
    if (program.stale) models[program.stale->name] = definition_of(*program.stale);
    document["models"] = models;
  }
  Json steps = Json::array();
  render_models(program, steps);
  if (program.beside_replicated) render_replicate(program, program.parallel, "replicated", {""}, false, steps);
  render_test_parallel(program, program.parallel, steps);
  for (const std::string& model : models_of(program))
    if (program.ties_late) render_ties(program, model, steps);
  for (const std::string& model : models_of(program)) render_optimizer(program, model, for_peer, steps);
  render_steps(program, for_peer, steps);
  document["steps"] = steps;
  return document;
}

Rendered render(const Program& program, bool for_peer) {
  const Json document = scenario_of(program, for_peer);
  return {yaml_text(document), document.dump()};
}

}  // namespace lockstep::fuzz
