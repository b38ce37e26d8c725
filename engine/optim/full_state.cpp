#include "engine/optim/full_state.hpp"

#include <cstdio>
#include <sstream>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::optim {

namespace {

using StateDict = Optimizer::StateDict;

// The parameters of an optimizer by name.
std::map<std::string, Tensor> parameters_of(Optimizer& optimizer) {
  std::map<std::string, Tensor> parameters;
  for (const Group& group : optimizer.groups())
    for (const ParameterRef& parameter : group.parameters) parameters[parameter.name] = parameter.get();
  return parameters;
}

// This rank's shard of a full tensor, a view.
Tensor local_shard(const Tensor& full, const layout::ShardedLayout& layout) {
  Tensor shard = local_shard_of(full, layout);
  if (!defect_armed(Defect::optimizer_state_of_first_part)) [[likely]]
    return shard;
  const Dims sizes = shard.sizes();
  shard = full;
  for (int dim = 0; dim < sizes.size(); ++dim) shard = slice(shard, dim, 0, sizes[dim]);
  return shard;
}

// The state tensor for a parameter, on its device: this rank's shard if the parameter is sharded.
Tensor shard_for(const Tensor& parameter, const Tensor& full) {
  const device::PurposeScope purpose(device::Purpose::optimizer);
  const Tensor moved = raw::to_device(full, parameter.device());
  if (!parameter.is_sharded()) return moved;
  const LayoutPtr& layout = parameter.layout();
  return make_sharded(raw::clone(local_shard(moved, *layout)), layout);
}

// ---- rank 0's state dict as text without the values of tensors: one line per word ----
std::string to_lines(const StateDict& dict) {
  std::string text;
  const auto line = [&text](const auto& value) { text += str(value, "\n"); };
  const auto number = [&line](double value) {
    char exact[64];
    std::snprintf(exact, sizeof exact, "%a", value);
    line(exact);
  };
  line(dict.groups.size());
  for (const auto& [names, options] : dict.groups) {
    line(names.size());
    for (const std::string& name : names) line(name);
    for (const double value :
         {options.lr, options.momentum, options.beta1, options.beta2, options.eps, options.weight_decay})
      number(value);
    line(options.fused ? 1 : 0);
  }
  line(dict.state.size());
  for (const auto& [name, tensors] : dict.state) {
    line(name);
    line(tensors.size());
    for (const auto& [key, tensor] : tensors) {
      line(key);
      line(name_of(tensor.dtype()));
      line(tensor.num_dims());
      for (const std::int64_t size : global_sizes(tensor)) line(size);
    }
  }
  return text;
}

class Lines {
 public:
  explicit Lines(const std::string& text) : in_(text) {}
  std::string word() {
    std::string line;
    LOCKSTEP_CHECK(std::getline(in_, line), "the text of rank 0's optimizer state ends early");
    return line;
  }
  std::int64_t count() { return std::stoll(word()); }
  double number() { return std::strtod(word().c_str(), nullptr); }

 private:
  std::istringstream in_;
};

// Rank 0's state dict on every rank. The values of each tensor are broadcast.
StateDict broadcast_from_rank_0(const StateDict& mine) {
  comm::ProcessGroup& world = comm::world_group();
  Lines lines(comm::exchange(world, world.rank() == 0 ? to_lines(mine) : "", "optimizer state").front());
  StateDict dict;
  dict.groups.resize(static_cast<std::size_t>(lines.count()));
  for (auto& [names, options] : dict.groups) {
    names.resize(static_cast<std::size_t>(lines.count()));
    for (std::string& name : names) name = lines.word();
    for (double* value :
         {&options.lr, &options.momentum, &options.beta1, &options.beta2, &options.eps, &options.weight_decay})
      *value = lines.number();
    options.fused = lines.count() != 0;
  }
  dict.state.resize(static_cast<std::size_t>(lines.count()));
  for (std::size_t i = 0; i < dict.state.size(); ++i) {
    auto& [name, tensors] = dict.state[i];
    name = lines.word();
    for (std::int64_t left = lines.count(); left > 0; --left) {
      const std::string key = lines.word();
      const DType dtype = dtype_from_name(lines.word());
      Dims sizes;
      for (std::int64_t dims = lines.count(); dims > 0; --dims) sizes.push_back(lines.count());
      const Tensor value = empty(sizes, dtype, device::Device{});
      if (world.rank() == 0) raw::copy_(value, mine.state[i].second.at(key));
      comm::Call call;
      call.family = comm::Family::checkpoint;
      call.owner = str(name, "/", key);
      comm::broadcast(world, value, 0, call);
      tensors[key] = value;
    }
  }
  return dict;
}

}  // namespace

StateDict shard_state_dict(Optimizer& optimizer, const StateDict& full, bool from_rank_0) {
  const NoGrad no_grad;
  const std::map<std::string, Tensor> parameters = parameters_of(optimizer);
  StateDict dict = from_rank_0 ? broadcast_from_rank_0(full) : full;
  for (auto& [name, tensors] : dict.state) {
    const auto at = parameters.find(name);
    if (at == parameters.end()) continue;
    for (auto& [key, tensor] : tensors) {
      if (tensor.num_dims() == 0 || tensor.is_sharded()) continue;
      if (tensor.sizes() != global_sizes(at->second))
        throw Error(str("load_state_dict into ", optimizer.type(), ": `", name, "/", key, "` has full sizes ",
                        to_text(tensor.sizes()), ", its parameter ", to_text(global_sizes(at->second))),
                    "give the full state dict of an optimizer of the same model");
      tensor = shard_for(at->second, tensor);
    }
  }
  return dict;
}

}  // namespace lockstep::optim
