// Values from and to literals, texts and the values of modules.
#include <algorithm>
#include <set>
#include <string_view>

#include "engine/core/checked.hpp"
#include "harness/run/values/value.hpp"

namespace lockstep::run {

Value from_literal(const scenario::Literal& literal) {
  using Kind = scenario::Literal::Kind;
  switch (literal.kind()) {
    case Kind::none:
      return Value();
    case Kind::boolean:
      return Value(literal.as_bool());
    case Kind::integer:
      return Value(literal.as_int());
    case Kind::number:
      return Value(literal.as_double());
    case Kind::text:
      return Value(literal.as_text());
    case Kind::list: {
      List items;
      for (const scenario::Literal& item : literal.as_list()) items.push_back(from_literal(item));
      return Value::list(std::move(items));
    }
    case Kind::map: {
      Map entries;
      for (const auto& [key, item] : literal.as_map()) entries.emplace_back(key, from_literal(item));
      return Value::map(std::move(entries));
    }
  }
  return Value();
}

namespace {

template <class T>
scenario::Literal nested(const std::vector<T>& values, const Dims& sizes, int dim, std::size_t& next) {
  if (dim == sizes.size()) {
    const T value = values[next++];
    return scenario::Literal(value);
  }
  scenario::LiteralList items;
  for (std::int64_t i = 0; i < sizes[dim]; ++i) items.push_back(nested(values, sizes, dim + 1, next));
  return scenario::Literal(std::move(items));
}

scenario::Literal tensor_literal(const Tensor& tensor, std::int64_t limit) {
  if (tensor.num_elements() > limit)
    throw Error(str("a tensor of ", tensor.num_elements(), " elements: at most ", limit, " numbers can be written out"),
                "write a digest, or a slice");
  scenario::Budget::ask(static_cast<std::int64_t>(bounded_bytes(tensor.num_elements(), 2 * sizeof(double))),
                        [&] { return str("writing out a tensor of ", tensor.num_elements(), " elements"); });
  std::size_t next = 0;
  if (is_floating(tensor.dtype())) return nested(to_doubles(tensor), tensor.sizes(), 0, next);
  const std::vector<std::int64_t> integers = to_integers(tensor);
  if (tensor.dtype() != DType::boolean) return nested(integers, tensor.sizes(), 0, next);
  const std::vector<bool> bits(integers.begin(), integers.end());
  return nested(bits, tensor.sizes(), 0, next);
}

// An integer and the text of its digits are two keys of a map, but one key when all keys are texts.
void check_keys_as_texts(const Map& map) {
  std::set<std::string_view> integers;
  for (const auto& [key, item] : map)
    if (key.integer) integers.insert(key.text);
  if (integers.empty()) return;
  for (const auto& [key, item] : map)
    if (!key.integer && integers.contains(key.text))
      throw Error(str("a map with the keys ", key.text, " and '", key.text, "' cannot be written out"),
                  "change one of the two keys");
}

}  // namespace

scenario::Literal to_literal(const Value& value, std::int64_t limit) {
  using scenario::Literal;
  switch (value.kind()) {
    case Value::Kind::none:
      return Literal();
    case Value::Kind::boolean:
      return Literal(*value.get_if<bool>());
    case Value::Kind::integer:
      return Literal(*value.get_if<std::int64_t>());
    case Value::Kind::number:
      return Literal(*value.get_if<double>());
    case Value::Kind::text:
      return Literal(*value.get_if<std::string>());
    case Value::Kind::dtype:
      return Literal(std::string(name_of(*value.get_if<DType>())));
    case Value::Kind::tensor:
      return tensor_literal(*value.get_if<Tensor>(), limit);
    case Value::Kind::list: {
      scenario::LiteralList items;
      for (const Value& item : value.as_list("list")) items.push_back(to_literal(item, limit));
      return Literal(std::move(items));
    }
    case Value::Kind::map: {
      const Map& map = value.as_map("map");
      check_keys_as_texts(map);
      scenario::LiteralMap entries;
      for (const auto& [key, item] : map) entries.emplace_back(key.text, to_literal(item, limit));
      return Literal(std::move(entries));
    }
    case Value::Kind::handle:
      if (const Handle* handle = value.get_if<Handle>(); handle->result) return to_literal(*handle->result, limit);
      [[fallthrough]];
    default:
      throw Error(str(name_of(value.kind()), " cannot be written out"), "take a value of it");
  }
}

std::string to_text(const Value& value) {
  if (value.is_tensor()) throw Error(str(describe(value), " has no text"), "take item() of it");
  return to_literal(value, 0).text();
}

nn::Structure to_nn(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none:
      return nn::Structure();
    case Value::Kind::boolean:
      return nn::Structure(*value.get_if<bool>());
    case Value::Kind::integer:
      return nn::Structure(*value.get_if<std::int64_t>());
    case Value::Kind::number:
      return nn::Structure(*value.get_if<double>());
    case Value::Kind::text:
      return nn::Structure(*value.get_if<std::string>());
    case Value::Kind::dtype:
      return nn::Structure(*value.get_if<DType>());
    case Value::Kind::tensor:
      return nn::Structure(*value.get_if<Tensor>());
    case Value::Kind::list: {
      nn::Structure::List items;
      for (const Value& item : value.as_list("list")) items.push_back(to_nn(item));
      return nn::Structure::list(std::move(items));
    }
    case Value::Kind::map: {
      const Map& map = value.as_map("map");
      const bool plain = std::none_of(map.begin(), map.end(), [](const auto& entry) { return entry.first.integer; });
      if (!plain) break;
      nn::Structure::Map entries;
      for (const auto& [key, item] : map) entries.emplace_back(key.text, to_nn(item));
      return nn::Structure::map(std::move(entries));
    }
    default:
      break;
  }
  return nn::Structure::opaque(std::make_shared<const Value>(value));
}

Value from_nn(const nn::Structure& value) {
  if (value.is_none()) return Value();
  if (const bool* item = value.get_if<bool>()) return Value(*item);
  if (const std::int64_t* item = value.get_if<std::int64_t>()) return Value(*item);
  if (const double* item = value.get_if<double>()) return Value(*item);
  if (const std::string* item = value.get_if<std::string>()) return Value(*item);
  if (const DType* item = value.get_if<DType>()) return Value(*item);
  if (value.is_tensor()) return Value(value.tensor());
  if (value.is_list()) {
    List items;
    for (const nn::Structure& item : value.items()) items.push_back(from_nn(item));
    return Value::list(std::move(items));
  }
  if (value.is_map()) {
    Map entries;
    for (const auto& [key, item] : value.entries()) entries.emplace_back(key, from_nn(item));
    return Value::map(std::move(entries));
  }
  // All opaque values in a scenario were made by to_nn.
  return *static_cast<const Value*>(value.object().get());
}

}  // namespace lockstep::run
