#include "engine/nn/structure.hpp"

#include "engine/core/error.hpp"

namespace lockstep::nn {

namespace {
[[noreturn]] void wrong_kind(const char* wanted, const std::string& found) {
  throw Error(str("expected a ", wanted, ", got a ", found), str("pass a ", wanted));
}
}  // namespace

Structure::Structure(const Structure&) = default;
Structure::Structure(Structure&&) noexcept = default;
Structure& Structure::operator=(const Structure&) = default;
Structure& Structure::operator=(Structure&&) noexcept = default;
Structure::~Structure() = default;

Structure Structure::list(List items) { return Structure(Data(std::make_shared<const List>(std::move(items)))); }
Structure Structure::map(Map items) { return Structure(Data(std::make_shared<const Map>(std::move(items)))); }

std::string Structure::kind() const {
  static constexpr const char* names[] = {"none", "boolean", "integer", "number", "text",
                                          "type", "tensor",  "list",    "map",    "object"};
  return names[data_.index()];
}

const Tensor& Structure::tensor() const {
  if (!is_tensor()) wrong_kind("tensor", kind());
  return std::get<Tensor>(data_);
}
const Structure::List& Structure::items() const {
  if (!is_list()) wrong_kind("list", kind());
  return *std::get<std::shared_ptr<const List>>(data_);
}
const Structure::Map& Structure::entries() const {
  if (!is_map()) wrong_kind("map", kind());
  return *std::get<std::shared_ptr<const Map>>(data_);
}

Structure map_tensors(const Structure& structure, const std::function<Tensor(const Tensor&)>& replace) {
  if (structure.is_tensor()) {
    Tensor replaced = replace(structure.tensor());
    return replaced.same_as(structure.tensor()) ? structure : Structure(std::move(replaced));
  }
  // A new list or map is created only if an item changes.
  if (structure.is_list()) {
    Structure::List items;
    bool changed = false;
    for (const Structure& item : structure.items()) {
      items.push_back(map_tensors(item, replace));
      const Structure& made = items.back();
      if (item.is_tensor())
        changed = changed || !made.tensor().same_as(item.tensor());
      else if (item.is_list())
        changed = changed || &made.items() != &item.items();
      else if (item.is_map())
        changed = changed || &made.entries() != &item.entries();
    }
    return changed ? Structure::list(std::move(items)) : structure;
  }
  if (structure.is_map()) {
    Structure::List items;
    for (const auto& [name, item] : structure.entries()) items.push_back(item);
    const Structure before = Structure::list(std::move(items));
    const Structure after = map_tensors(before, replace);
    if (&before.items() == &after.items()) return structure;
    Structure::Map entries = structure.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) entries[i].second = after.items()[i];
    return Structure::map(std::move(entries));
  }
  return structure;
}

std::vector<Tensor> tensors_of(const Structure& structure) {
  std::vector<Tensor> found;
  map_tensors(structure, [&found](const Tensor& tensor) {
    found.push_back(tensor);
    return tensor;
  });
  return found;
}

Structure with_tensors(const Structure& structure, const std::vector<Tensor>& tensors) {
  std::size_t next = 0;
  Structure result = map_tensors(structure, [&](const Tensor&) {
    LOCKSTEP_CHECK(next < tensors.size(), "a structure of more than ", tensors.size(), " tensors");
    return tensors[next++];
  });
  LOCKSTEP_CHECK(next == tensors.size(), next, " tensors in the structure, ", tensors.size(), " given");
  return result;
}

}  // namespace lockstep::nn
