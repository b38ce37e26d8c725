// replicate, wait, set_flags.
#include "engine/parallel/replicate.hpp"
#include "harness/run/verbs.hpp"

namespace lockstep::run::verbs {

Value replicate(StepCall& call) {
  parallel::ReplicateOptions options;
  options.mesh = *call.mesh();
  if (call.has("ignored"))
    for (const ModuleAt& found : call.modules("ignored")) options.ignored.push_back(found.module);
  // The usual size of the first bucket is another when none is asked for.
  if (call.given("bucket_cap_mb")) options.bucket_cap_mb = call.number("bucket_cap_mb");
  options.gradient_as_bucket_view = call.boolean("gradient_as_bucket_view");
  options.find_unused_parameters = call.boolean("find_unused_parameters");
  options.broadcast_buffers = call.boolean("broadcast_buffers");
  options.device_id = to_nn(call.value("device_id"));
  for (const ModuleAt& found : call.modules("modules")) {
    options.name = found.path;
    parallel::replicate(found.module, options);
  }
  return Value();
}

Value wait(StepCall& call) {
  const Value target = call.value("for");
  if (const Handle* handle = target.get_if<Handle>())
    handle->work.wait();
  else if (const device::Event* event = target.get_if<device::Event>())
    device::current_stream(call.in.session().device).wait(*event);
  else
    throw Error(str("`wait` is for a handle or an event, not for ", describe(target)));
  return Value();
}

Value set_flags(StepCall& call) {
  const std::vector<ModuleAt> modules = call.modules("modules");
  const bool recurse = call.boolean("recurse");
  const std::optional<bool> sync = call.maybe_boolean("requires_gradient_sync");
  if (!sync) throw Error("set_flags changes nothing", "give one of its flags");
  int changed = 0;
  for (const ModuleAt& found : modules) changed += parallel::set_requires_gradient_sync(found.module, *sync, recurse);
  if (changed == 0)
    throw Error(str("set_flags: nothing that synchronises gradients is applied to `", modules.front().path, "`",
                    recurse ? " or below" : ""),
                "apply replicate first");
  return Value();
}

}  // namespace lockstep::run::verbs
