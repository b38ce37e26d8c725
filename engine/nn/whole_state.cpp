#include "engine/nn/whole_state.hpp"

#include <map>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::nn {

namespace {

// What rank 0 has, in its order, told to all: a line "name sizes" each.
std::vector<std::pair<std::string, std::string>> told_by_first(comm::ProcessGroup& world, const StateDict& whole) {
  std::string mine;
  if (world.rank() == 0)
    for (const auto& [name, tensor] : whole) mine += str(name, "\n", to_text(tensor.sizes()), "\n");
  const std::string told = comm::exchange(world, mine, "model state").front();
  std::vector<std::pair<std::string, std::string>> entries;
  for (std::size_t at = 0; at < told.size();) {
    const std::size_t middle = told.find('\n', at), end = told.find('\n', middle + 1);
    entries.emplace_back(told.substr(at, middle - at), told.substr(middle + 1, end - middle - 1));
    at = end + 1;
  }
  return entries;
}

[[noreturn]] void wrong_size(const std::string& name, const std::string& given, const Tensor& place) {
  throw Error(
      str("`", name, "` has sizes ", given, " as a whole, its place in the module ", to_text(global_sizes(place))),
      "give the whole state of the same module");
}

Tensor part(const Tensor& whole, const Tensor& place) {
  if (!place.is_sharded()) return whole;
  return make_sharded(raw::clone(local_part(whole, *place.impl().layout)), place.impl().layout);
}

}  // namespace

StateDict parts_of_whole(const ModulePtr& root, const StateDict& whole, bool from_first) {
  std::map<std::string, Tensor> places;
  for (const auto& [name, tensor] : state_dict(root)) places[name] = tensor;
  std::map<std::string, Tensor> given;
  for (const auto& [name, tensor] : whole) given[name] = tensor;
  StateDict parts;
  if (!from_first) {
    for (const auto& [name, tensor] : whole) {
      const auto place = places.find(name);
      if (place != places.end() && !tensor.is_sharded() && tensor.sizes() != global_sizes(place->second))
        wrong_size(name, to_text(tensor.sizes()), place->second);
      parts.emplace_back(name, place == places.end() || tensor.is_sharded() ? tensor : part(tensor, place->second));
    }
    return parts;
  }
  comm::ProcessGroup& world = comm::world_group();
  for (const auto& [name, sizes] : told_by_first(world, whole)) {
    const auto place = places.find(name);
    if (place == places.end()) {
      parts.emplace_back(name, Tensor());
      continue;
    }
    const Tensor& to = place->second;
    if (sizes != to_text(global_sizes(to))) wrong_size(name, sizes, to);
    Tensor value = empty(global_sizes(to), to.dtype(), to.device());
    if (world.rank() == 0) raw::copy_(value, given[name]);
    comm::Call call;
    call.family = comm::Family::checkpoint;
    call.owner = name;
    comm::broadcast(world, value, 0, call);
    parts.emplace_back(name, part(value, to));
  }
  return parts;
}

}  // namespace lockstep::nn
