#include "engine/nn/build.hpp"

#include "engine/nn/arguments.hpp"
#include "engine/nn/layers.hpp"
#include "engine/nn/models.hpp"

namespace lockstep::nn {

std::vector<Builder> layer_builders() {
  return {
      {{"Linear",
        {{"in", true, {}}, {"out", true, {}}, {"bias", false, true}},
        false,
        "x @ weight^T + bias, weight (out, in)"},
       [](const Arguments& at, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<Linear>(options, at.size("in"), at.size("out"), at.boolean("bias"));
       }},
      {{"ReLU", {}, false, "max(x, 0)"},
       [](const Arguments&, const BuildOptions&, const std::vector<ModulePtr>&) { return std::make_shared<ReLU>(); }},
      {{"GELU", {}, false, "x / 2 * (1 + erf(x / sqrt(2)))"},
       [](const Arguments&, const BuildOptions&, const std::vector<ModulePtr>&) { return std::make_shared<Gelu>(); }},
      {{"LayerNorm",
        {{"dim", true, {}}, {"bias", false, true}, {"eps", false, 1e-5}},
        false,
        "the last dim to mean 0 and variance 1, times weight, plus bias"},
       [](const Arguments& at, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<LayerNorm>(options, at.size("dim"), at.boolean("bias"), at.number("eps"));
       }},
      {{"RMSNorm",
        {{"dim", true, {}}, {"eps", false, 1e-6}},
        false,
        "the last dim over the root of its mean square, times weight"},
       [](const Arguments& at, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<RmsNorm>(options, at.size("dim"), at.number("eps"));
       }},
      {{"Embedding",
        {{"num_rows", true, {}}, {"dim", true, {}}},
        false,
        "rows of weight (num_rows, dim) by integers of any shape"},
       [](const Arguments& at, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<Embedding>(options, at.size("num_rows"), at.size("dim"));
       }},
      {{"Dropout",
        {{"p", false, 0.5}},
        false,
        "while training, drops elements and lets the others grow by 1 / (1 - p)"},
       [](const Arguments& at, const BuildOptions&, const std::vector<ModulePtr>&) {
         return std::make_shared<Dropout>(at.number("p"));
       }},
      {{"BatchNorm", {{"dim", true, {}}}, false, "channels to mean 0 and variance 1, times weight, plus bias"},
       [](const Arguments& at, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<BatchNorm>(options, at.size("dim"));
       }},
      {{"Conv2d",
        {{"in", true, {}},
         {"out", true, {}},
         {"kernel", true, {}},
         {"stride", false, 1},
         {"padding", false, 0},
         {"bias", false, true}},
        false,
        "square windows of an image times weight, plus bias"},
       [](const Arguments& at, const BuildOptions& options, const std::vector<ModulePtr>&) {
         const Conv2d::Settings settings = {at.size("in"),     at.size("out"),        at.size("kernel"),
                                            at.size("stride"), at.integer("padding"), at.boolean("bias")};
         return created<Conv2d>(options, settings);
       }},
      {{"Sequential", {}, true, "its modules one after the other, named 0, 1, ..."},
       [](const Arguments&, const BuildOptions&, const std::vector<ModulePtr>& modules) {
         return std::make_shared<Sequential>(modules);
       }},
  };
}

namespace {

// Shared by all ranks; it does not change after its creation.
const std::vector<Builder>& table() {
  static const std::vector<Builder> all = [] {
    std::vector<Builder> joined = layer_builders();
    for (Builder& builder : model_builders()) joined.push_back(std::move(builder));
    for (Builder& builder : transformer_builders()) joined.push_back(std::move(builder));
    return joined;
  }();
  return all;
}

const Builder* find(std::string_view name) {
  for (const Builder& builder : table())
    if (builder.info.name == name) return &builder;
  return nullptr;
}

}  // namespace

const std::vector<BuilderInfo>& builders() {
  static const std::vector<BuilderInfo> infos = [] {
    std::vector<BuilderInfo> all;
    for (const Builder& builder : table()) all.push_back(builder.info);
    return all;
  }();
  return infos;
}

bool has_builder(std::string_view name) { return find(name) != nullptr; }

ModulePtr build(std::string_view name, const Inputs& arguments, const BuildOptions& options,
                const std::vector<ModulePtr>& modules) {
  const Builder* builder = find(name);
  if (!builder) {
    std::string known;
    for (const Builder& each : table()) known += str(known.empty() ? "" : ", ", each.info.name);
    throw Error(str("build: there is no module `", name, "`"), str("use one of ", known));
  }
  if (!builder->info.variadic && !modules.empty())
    throw Error(str(name, ": ", modules.size(), " modules given, none expected"), "put them into a Sequential");
  ModulePtr made = builder->make(Arguments(name, builder->info.arguments, arguments), options, modules);
  name_parameters(made);
  return made;
}

}  // namespace lockstep::nn
