#include "engine/nn/value.hpp"

#include "engine/core/error.hpp"

namespace lockstep::nn {

namespace {
[[noreturn]] void wrong_kind(const char* wanted, const std::string& found) {
  throw Error(str("a ", wanted, " is needed, not a ", found), str("pass a ", wanted));
}
}  // namespace

Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

Value Value::list(List items) { return Value(Data(std::make_shared<const List>(std::move(items)))); }
Value Value::map(Map items) { return Value(Data(std::make_shared<const Map>(std::move(items)))); }

std::string Value::kind() const {
  static constexpr const char* names[] = {"none", "boolean", "integer", "number", "text",
                                          "type", "tensor",  "list",    "map",    "object"};
  return names[data_.index()];
}

const Tensor& Value::tensor() const {
  if (!is_tensor()) wrong_kind("tensor", kind());
  return std::get<Tensor>(data_);
}
const Value::List& Value::items() const {
  if (!is_list()) wrong_kind("list", kind());
  return *std::get<std::shared_ptr<const List>>(data_);
}
const Value::Map& Value::entries() const {
  if (!is_map()) wrong_kind("map", kind());
  return *std::get<std::shared_ptr<const Map>>(data_);
}

Value map_tensors(const Value& value, const std::function<Tensor(const Tensor&)>& replace) {
  if (value.is_tensor()) {
    Tensor replaced = replace(value.tensor());
    return replaced.same_as(value.tensor()) ? value : Value(std::move(replaced));
  }
  // A list or map is made anew only when something in it changed.
  if (value.is_list()) {
    Value::List items;
    bool changed = false;
    for (const Value& item : value.items()) {
      items.push_back(map_tensors(item, replace));
      const Value& made = items.back();
      if (item.is_tensor())
        changed = changed || !made.tensor().same_as(item.tensor());
      else if (item.is_list())
        changed = changed || &made.items() != &item.items();
      else if (item.is_map())
        changed = changed || &made.entries() != &item.entries();
    }
    return changed ? Value::list(std::move(items)) : value;
  }
  if (value.is_map()) {
    Value::List items;
    for (const auto& [name, item] : value.entries()) items.push_back(item);
    const Value before = Value::list(std::move(items));
    const Value after = map_tensors(before, replace);
    if (&before.items() == &after.items()) return value;
    Value::Map entries = value.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) entries[i].second = after.items()[i];
    return Value::map(std::move(entries));
  }
  return value;
}

std::vector<Tensor> tensors_of(const Value& value) {
  std::vector<Tensor> found;
  map_tensors(value, [&found](const Tensor& tensor) {
    found.push_back(tensor);
    return tensor;
  });
  return found;
}

Value with_tensors(const Value& value, const std::vector<Tensor>& tensors) {
  std::size_t next = 0;
  Value result = map_tensors(value, [&](const Tensor&) {
    LOCKSTEP_CHECK(next < tensors.size(), "a structure of more than ", tensors.size(), " tensors");
    return tensors[next++];
  });
  LOCKSTEP_CHECK(next == tensors.size(), next, " tensors in the structure, ", tensors.size(), " given");
  return result;
}

}  // namespace lockstep::nn
