#include "engine/state/describe.hpp"

#include <nlohmann/json.hpp>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/state/hash.hpp"
#include "engine/state/host_bytes.hpp"

namespace lockstep::state {

namespace {

using Json = nlohmann::json;

// Whether another rank may hold the same values.
bool may_have_replicas(const TreeTensor& entry) {
  if (entry.stretch) return entry.stretch->has_replicas;
  const Tensor& tensor = entry.tensor;
  if (!tensor.is_sharded()) return RankContext::current().world_size() > 1;
  const layout::ShardedLayout& layout = *tensor.layout();
  std::int64_t num_parts = 1;  // ranks outside the mesh may hold the same parts
  for (int axis = 0; axis < layout.mesh.num_axes(); ++axis)
    if (!layout.placements[static_cast<std::size_t>(axis)].is_replicate())
      num_parts = bounded_product(num_parts, layout.mesh.size(axis));
  return num_parts < RankContext::current().world_size();
}

std::uint64_t digest_of(const Tensor& tensor) {
  std::uint64_t digest = 0;
  with_host_bytes(local_tensor(tensor),
                  [&](const std::byte* bytes, std::size_t size) { digest = hash_of(bytes, size); });
  return digest;
}

// Whether both are the same elements in memory, and the same part of a full tensor.
bool are_tied(const TreeTensor& x, const TreeTensor& y) {
  const Tensor &a = x.tensor, &b = y.tensor;
  const LayoutPtr &left = a.layout(), &right = b.layout();
  const bool same_layout = left && right ? *left == *right : left == right;
  return a.storage() == b.storage() && a.offset() == b.offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.dtype() == b.dtype() && same_layout &&
         x.stretch.has_value() == y.stretch.has_value() && full_sizes(x) == full_sizes(y);
}

Json list_of(const Dims& dims) { return std::vector<std::int64_t>(dims.begin(), dims.end()); }
Dims dims_of(const Json& list) { return Dims(list.get<std::vector<std::int64_t>>()); }

}  // namespace

Description describe(const Tree& tree) {
  Description description;
  std::map<const Storage*, std::vector<const TreeTensor*>> by_storage;
  for (const TreeTensor& entry : tree.tensors) {
    const Tensor& tensor = entry.tensor;
    if (tensor.is_meta())
      throw Error(str("`", entry.key, "` is on the meta device and has no values"), "materialize the model first");
    check_not_partial(entry);
    HeldTensor held;
    held.key = entry.key;
    held.dtype = tensor.dtype();
    held.sizes = full_sizes(entry);
    if (!entry.stretch || entry.stretch->speaks)
      for (const HeldPart& part : held_parts(entry))
        for (const HeldBox& one : part.boxes) held.boxes.push_back(one.box);
    auto& same_storage = by_storage[tensor.storage().get()];
    for (const TreeTensor* before : same_storage)
      if (tensor.num_elements() > 0 && are_tied(*before, entry)) held.same_as = before->key;
    if (held.same_as.empty()) same_storage.push_back(&entry);
    if (!held.boxes.empty() && may_have_replicas(entry)) held.digest = digest_of(tensor);
    description.tensors.push_back(std::move(held));
  }
  for (const TreeValue& value : tree.values) description.values[value.key] = value.json;
  return description;
}

std::string text_of(const Description& description) {
  Json tensors = Json::array();
  for (const HeldTensor& held : description.tensors) {
    Json boxes = Json::array();
    for (const Box& box : held.boxes) boxes.push_back({list_of(box.offsets), list_of(box.sizes)});
    tensors.push_back(
        {held.key, name_of(held.dtype), list_of(held.sizes), std::move(boxes), held.digest, held.same_as});
  }
  return Json{{"tensors", std::move(tensors)}, {"values", description.values}}.dump();
}

Description description_from_text(const std::string& text) {
  const Json read = Json::parse(text);
  Description description;
  for (const Json& entry : read.at("tensors")) {
    HeldTensor held;
    held.key = entry[0].get<std::string>();
    held.dtype = dtype_from_name(entry[1].get<std::string>());
    held.sizes = dims_of(entry[2]);
    for (const Json& box : entry[3]) held.boxes.push_back({dims_of(box[0]), dims_of(box[1])});
    held.digest = entry[4].get<std::uint64_t>();
    held.same_as = entry[5].get<std::string>();
    description.tensors.push_back(std::move(held));
  }
  description.values = read.at("values").get<std::map<std::string, std::string>>();
  return description;
}

std::map<std::string, std::string> merge_values(const std::vector<Description>& of_ranks) {
  std::map<std::string, std::string> merged;
  std::map<std::string, std::size_t> first_rank;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const auto& [key, json] : of_ranks[rank].values) {
      const auto [at, is_new] = merged.emplace(key, json);
      if (is_new) first_rank[key] = rank;
      if (at->second != json)
        throw Error(str("`", key, "` is ", at->second, " on rank ", first_rank[key], ", and ", json, " on rank ", rank),
                    "give each rank's value a name of its own");
    }
  return merged;
}

}  // namespace lockstep::state
