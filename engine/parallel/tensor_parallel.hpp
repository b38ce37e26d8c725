// Tensor parallelism: each rank of a mesh axis holds and computes a part of a module, in the way that the style of the
// module states. The modules keep their names, their parameters become sharded tensors in the same slots.
//
//   DeviceMesh world({2, 2}, {"dp", "tp"});
//   tensor_parallel(model, world.slice({"tp"}), {{"in_proj", model->child("in_proj"), Colwise{}},
//                                                {"out_proj", model->child("out_proj"), Rowwise{}}});
//   fully_shard({model}, {.mesh = world.slice({"dp"})});      // other APIs come after it
//
// All ranks of the mesh call it together with the same plan. The ranks compare the parameters that the plan distributes
// and take the values of the first rank: one all-gather and one broadcast of shapes, and one broadcast of values per
// device (family start_up). Parameters on meta have no values to send. Modules without a style keep plain parameters.
//
// A parameter in several slots of the model stays one parameter if all of them are distributed alike; anything else is
// an error. Copies of the modules are refused. README.md lists the styles and their collectives. After PyTorch's
// torch.distributed.tensor.parallel.parallelize_module.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"
#include "engine/parallel/tensor_parallel_styles.hpp"

namespace lockstep::parallel {

inline constexpr std::string_view tensor_parallel_name = "tensor_parallel";

struct PlannedModule {
  std::string path;  // below the model; "" for the model itself
  nn::ModulePtr module;
  Style style;
};

// `name`: of the model, for log and messages; empty: its type. Changes nothing if it throws before the ranks compare
// their parameters. Throws Error for a mesh of several axes, a module that is planned twice or styled already, a style
// that does not support the module, a module that replicate or fully_shard manages, and a parameter that is sharded
// already, has a gradient, or would be untied. Throws Error also for attention heads that the mesh would divide.
void tensor_parallel(const nn::ModulePtr& model, const DeviceMesh& mesh, const std::vector<PlannedModule>& plan,
                     const std::string& name = {});

}  // namespace lockstep::parallel
