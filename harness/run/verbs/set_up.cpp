// seed, mesh, let, drop, read, write.
#include <filesystem>

#include "engine/autograd/autograd.hpp"
#include "engine/core/checked.hpp"
#include "engine/tensor/ops_network.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/verbs/folders.hpp"

namespace lockstep::run {

Folders folders_of(const StepCall& call) {
  const CaseSpec& spec = call.in.spec();
  Folders folders{spec.case_folder, {}};
  const bool is_own = !spec.scenario->path.empty() && spec.scenario->call == spec.scenario->path;
  if (is_own) folders.scenarios.push_back(std::filesystem::absolute(spec.scenario->path).parent_path().string());
  if (spec.library) folders.scenarios.push_back(spec.library->root());
  return folders;
}

namespace verbs {

Value seed(StepCall& call) {
  const std::int64_t value = call.integer("value");
  call.in.context().generator().seed(static_cast<std::uint64_t>(value));
  return Value();
}

Value exact_products(StepCall& call) {
  raw::set_float32_products_exact(call.boolean("on"));
  return Value();
}

// Opens the groups on the device of the case, so that no collective of the steps waits for it.
Value prepared(const StepCall& call, std::shared_ptr<const DeviceMesh> mesh) {
  mesh->prepare(call.in.session().device);
  return Value(std::move(mesh));
}

Value mesh(StepCall& call) {
  std::vector<int> sizes;
  for (const Value& size : call.list("shape"))
    sizes.push_back(checked_int(size.as_int("a size of a mesh"), "mesh: a size"));
  std::vector<int> ranks;
  if (call.has("ranks"))
    for (const Value& rank : call.list("ranks"))
      ranks.push_back(checked_int(rank.as_int("a rank of a mesh"), "mesh: a rank"));
  const std::vector<std::string> names = call.words("names");
  for (const std::string& name : names)
    if (name == "rank" || name == "size" || name == "names")
      throw Error(str("mesh: the axis name `", name, "` is taken by another attribute of a mesh"),
                  "give the axis another name");
  if (call.has("ranks")) return prepared(call, std::make_shared<const DeviceMesh>(sizes, names, ranks));
  std::int64_t product = 1;
  for (int size : sizes) product = checked_multiply(product, size, "mesh");
  if (product != call.in.session().world_size)
    throw Error(str("a mesh of ", product, " ranks in a world of ", call.in.session().world_size),
                "let the sizes multiply to world_size, or list `ranks`");
  return prepared(call, std::make_shared<const DeviceMesh>(sizes, names));
}

Value let(StepCall& call) {
  const NoGrad no_grad;
  bind_each(call.step.entries, call.scope);
  return Value();
}

Value drop(StepCall& call) {
  for (const std::string& name : call.words("names"))
    if (call.scope.frame->names.erase(name) == 0) throw UnboundName(str("drop: `", name, "` has no value here"));
  return Value();
}

Value read(StepCall& call) { return read_file(call.text("file"), folders_of(call), call.in.session().device); }

Value write(StepCall& call) {
  write_file(call.text("file"), call.value("value"), folders_of(call), &call.live().budget());
  return Value();
}

}  // namespace verbs

}  // namespace lockstep::run
