// extend_gather: two methods of a model define the tensors that an all-gather of sharded parameters sends.
#include <algorithm>

#include "engine/parallel/gather_extension.hpp"
#include "harness/run/verbs/parallel_arguments.hpp"

namespace lockstep::run::verbs {

namespace {

Value site_value(const parallel::GatherSite& site) {
  return gather_site_value({.name = site.parameter,
                            .mesh = std::make_shared<const DeviceMesh>(site.mesh),
                            .shape = site.sizes,
                            .dim = site.dim,
                            .part_shape = site.shard_sizes,
                            .dtype = site.type});
}

void require_method(const nn::ModulePtr& module, const std::string& name) {
  const std::vector<std::string> methods = module->methods();
  if (std::find(methods.begin(), methods.end(), name) == methods.end())
    throw Error(str("extend_gather: ", module->type(), " has no method `", name, "`"),
                "give a model with send(part, site) and build(gathered, metadata, site)");
}

}  // namespace

Value extend_gather(StepCall& call) {
  const nn::ModulePtr through = call.value("through").as_module("through");
  for (const char* name : {"send", "build"}) require_method(through, name);
  parallel::GatherExtension extension;
  extension.send = [through](const Tensor& shard, const parallel::GatherSite& site) {
    const SentTensors sent = sent_tensors(call_module(through, "send", {Value(shard), site_value(site)}, {}));
    return parallel::GatherInputs{sent.tensors, to_nn(sent.metadata)};
  };
  extension.build = [through](const std::vector<Tensor>& gathered, const nn::Structure& metadata,
                              const parallel::GatherSite& site) {
    List tensors;
    for (const Tensor& tensor : gathered) tensors.push_back(Value(tensor));
    const std::vector<Value> inputs = {Value::list(std::move(tensors)), from_nn(metadata), site_value(site)};
    return call_module(through, "build", inputs, {}).as_tensor("the result of `build`");
  };
  for (const TensorMatch& found : call.parameters("parameters")) {
    if (!found.owner || found.buffer) throw Error(str("`", found.path, "` is not a parameter of a module"));
    parallel::extend_gather(found.owner, found.slot, extension);
  }
  return Value();
}

}  // namespace lockstep::run::verbs
