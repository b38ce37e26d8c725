#include "engine/nn/build.hpp"

#include "engine/nn/arguments.hpp"
#include "engine/nn/layers.hpp"
#include "engine/nn/models.hpp"

namespace lockstep::nn {

std::vector<Builder> layer_builders() {
  return {
      {{"Linear",
        {{"in", true, {}}, {"out", true, {}}, {"bias", false, true}},
        "x @ weight^T + bias, weight (out, in)"},
       [](const Arguments& args, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<Linear>(options, args.size("in"), args.size("out"), args.boolean("bias"));
       }},
      {{"ReLU", {}, "max(x, 0)"},
       [](const Arguments&, const BuildOptions&, const std::vector<ModulePtr>&) { return std::make_shared<ReLU>(); }},
      {{"GELU", {}, "x / 2 * (1 + erf(x / sqrt(2)))"},
       [](const Arguments&, const BuildOptions&, const std::vector<ModulePtr>&) { return std::make_shared<Gelu>(); }},
      {{"LayerNorm",
        {{"dim", true, {}}, {"bias", false, true}, {"eps", false, 1e-5}},
        "normalises the last dim to mean 0 and variance 1, times weight, plus bias"},
       [](const Arguments& args, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<LayerNorm>(options, args.size("dim"), args.boolean("bias"), args.number("eps"));
       }},
      {{"RMSNorm",
        {{"dim", true, {}}, {"eps", false, 1e-6}},
        "divides the last dim by its root mean square, times weight"},
       [](const Arguments& args, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<RmsNorm>(options, args.size("dim"), args.number("eps"));
       }},
      {{"Embedding",
        {{"num_rows", true, {}}, {"dim", true, {}}},
        "selects rows of weight (num_rows, dim) by integers of any shape"},
       [](const Arguments& args, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<Embedding>(options, args.size("num_rows"), args.size("dim"));
       }},
      {{"Dropout",
        {{"p", false, 0.5}},
        "in training, drops elements with probability p and multiplies the others by 1 / (1 - p)"},
       [](const Arguments& args, const BuildOptions&, const std::vector<ModulePtr>&) {
         return std::make_shared<Dropout>(args.number("p"));
       }},
      {{"BatchNorm", {{"dim", true, {}}}, "normalises channels to mean 0 and variance 1, times weight, plus bias"},
       [](const Arguments& args, const BuildOptions& options, const std::vector<ModulePtr>&) {
         return created<BatchNorm>(options, args.size("dim"));
       }},
      {{"Conv2d",
        {{"in", true, {}},
         {"out", true, {}},
         {"kernel", true, {}},
         {"stride", false, 1},
         {"padding", false, 0},
         {"bias", false, true}},
        "a convolution with a square kernel, plus bias"},
       [](const Arguments& args, const BuildOptions& options, const std::vector<ModulePtr>&) {
         const Conv2d::Settings settings = {args.size("in"),     args.size("out"),        args.size("kernel"),
                                            args.size("stride"), args.integer("padding"), args.boolean("bias")};
         return created<Conv2d>(options, settings);
       }},
      {{"Sequential", {}, "calls its modules in order, named 0, 1, ...", true},
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
