#include "harness/run/values/value.hpp"

#include <algorithm>
#include <type_traits>

#include "engine/core/checked.hpp"
#include "engine/mesh/sharded.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

namespace {

template <class T>
std::int64_t bytes_of(std::size_t count) {
  return static_cast<std::int64_t>(bounded_product(count, sizeof(T)));
}

}  // namespace

// Checked before anything is held, so that a value past a bound never comes to be.
struct Value::Sum {
  int depth = 1;
  std::int64_t bytes = 0;

  void add(const Value& value) {
    depth = std::max(depth, 1 + value.depth());
    bytes = scenario::saturating_add(bytes, value.tree_bytes());
  }
  // `own` bytes are held anew; the tree is written out by whatever records, copies or compares the value.
  void check(const char* what, std::size_t size, std::int64_t own) const {
    if (size > scenario::limits::list_items)
      throw Error(str(what, " of ", size, " items: at most ", scenario::limits::list_items, " are allowed"));
    if (depth > scenario::limits::value_depth)
      throw Error(str(what, " that nests ", depth, " deep: at most ", scenario::limits::value_depth, " are allowed"));
    const scenario::Budget* budget = scenario::Budget::current();
    if (!budget) return;
    budget->need(own, [&] { return str(what, " of ", size, " items"); });
    if (bytes > budget->limits().memory_bytes)
      throw scenario::BudgetError(str(what, " of ", size, " items that nests ", depth, " deep needs ",
                                      scenario::bytes_text(bytes), " written out, where ", budget->limits().of,
                                      " may use ", scenario::bytes_text(budget->limits().memory_bytes)),
                                  "shared items count each time they stand in it");
  }
};

Value::Value(std::string value) {
  const auto bytes = static_cast<std::int64_t>(sizeof(Held<std::string>) + value.capacity());
  scenario::Budget::ask(bytes, [&] { return str("a text of ", value.size(), " characters"); });
  data_ = std::make_shared<const Held<std::string>>(std::move(value), 0, bytes, scenario::Charge(bytes));
}

Value Value::list(List items) {
  Sum sum;
  sum.bytes = bytes_of<Value>(items.size());
  const auto own = static_cast<std::int64_t>(sizeof(Held<List>)) + bytes_of<Value>(items.capacity());
  for (const Value& item : items) sum.add(item);
  sum.check("a list", items.size(), own);
  return Value(Data(std::make_shared<const Held<List>>(std::move(items), sum.depth, sum.bytes, scenario::Charge(own))));
}

Value Value::map(Map entries) {
  Sum sum;
  auto own = static_cast<std::int64_t>(sizeof(Held<Map>)) + bytes_of<Map::value_type>(entries.capacity());
  for (const auto& [key, value] : entries) {
    own += static_cast<std::int64_t>(key.text.size());
    sum.add(value);
  }
  sum.bytes = scenario::saturating_add(sum.bytes, own);
  sum.check("a map", entries.size(), own);
  return Value(
      Data(std::make_shared<const Held<Map>>(std::move(entries), sum.depth, sum.bytes, scenario::Charge(own))));
}

const std::string* Value::text_or_null() const {
  const auto* held = std::get_if<HeldPtr<std::string>>(&data_);
  return held ? &(*held)->content : nullptr;
}

int Value::depth() const {
  if (const auto* list = std::get_if<HeldPtr<List>>(&data_)) return (*list)->depth;
  if (const auto* map = std::get_if<HeldPtr<Map>>(&data_)) return (*map)->depth;
  const Handle* handle = std::get_if<Handle>(&data_);
  return handle && handle->result ? handle->result->depth() : 0;
}

std::int64_t Value::tree_bytes() const {
  if (const auto* text = std::get_if<HeldPtr<std::string>>(&data_)) return (*text)->tree_bytes;
  if (const auto* list = std::get_if<HeldPtr<List>>(&data_)) return (*list)->tree_bytes;
  if (const auto* map = std::get_if<HeldPtr<Map>>(&data_)) return (*map)->tree_bytes;
  const Handle* handle = std::get_if<Handle>(&data_);
  return handle && handle->result ? handle->result->tree_bytes() : 0;
}

Value Value::texts(const std::vector<std::string>& items) {
  List list;
  list.reserve(items.size());
  for (const std::string& item : items) list.push_back(Value(item));
  return Value::list(std::move(list));
}

std::string_view name_of(Value::Kind kind) {
  static constexpr std::string_view names[] = {
      "none",     "a boolean", "an integer",     "a number", "a text",       "a list",
      "a map",    "a type",    "a tensor",       "a module", "an optimizer", "a mesh",
      "an event", "a handle",  "an observation", "a method", "an identity",  "a gradient scaler"};
  return names[static_cast<int>(kind)];
}

void Value::wrong_kind(std::string_view what, std::string_view wanted) const {
  throw Error(str(what, " must be ", wanted, ", not ", describe(*this)));
}

const Value& Value::settled() const {
  const Handle* handle = get_if<Handle>();
  return handle && handle->result ? *handle->result : *this;
}

bool Value::as_bool(std::string_view what) const {
  if (const bool* value = get_if<bool>()) return *value;
  wrong_kind(what, "a boolean");
}

std::int64_t Value::as_int(std::string_view what) const {
  if (const std::int64_t* value = get_if<std::int64_t>()) return *value;
  wrong_kind(what, "an integer");
}

double Value::as_number(std::string_view what) const {
  if (const double* value = get_if<double>()) return *value;
  if (const std::int64_t* value = get_if<std::int64_t>()) return static_cast<double>(*value);
  wrong_kind(what, "a number");
}

const std::string& Value::as_text(std::string_view what) const {
  if (const std::string* value = get_if<std::string>()) return *value;
  wrong_kind(what, "a text");
}

const List& Value::as_list(std::string_view what) const {
  if (const auto* value = std::get_if<HeldPtr<List>>(&settled().data_)) return (*value)->content;
  wrong_kind(what, "a list");
}

const Map& Value::as_map(std::string_view what) const {
  if (const auto* value = std::get_if<HeldPtr<Map>>(&settled().data_)) return (*value)->content;
  wrong_kind(what, "a map");
}

DType Value::as_dtype(std::string_view what) const {
  if (const DType* value = get_if<DType>()) return *value;
  wrong_kind(what, "a type such as float32");
}

const Tensor& Value::as_tensor(std::string_view what) const {
  if (const Tensor* value = settled().get_if<Tensor>()) return *value;
  wrong_kind(what, "a tensor");
}

const nn::ModulePtr& Value::as_module(std::string_view what) const {
  if (const nn::ModulePtr* value = get_if<nn::ModulePtr>()) return *value;
  wrong_kind(what, "a module");
}

const OptimizerPtr& Value::as_optimizer(std::string_view what) const {
  if (const OptimizerPtr* value = get_if<OptimizerPtr>()) return *value;
  wrong_kind(what, "an optimizer");
}

const ScalerPtr& Value::as_scaler(std::string_view what) const {
  if (const ScalerPtr* value = get_if<ScalerPtr>()) return *value;
  wrong_kind(what, "a gradient scaler");
}

const MeshPtr& Value::as_mesh(std::string_view what) const {
  if (const MeshPtr* value = get_if<MeshPtr>()) return *value;
  wrong_kind(what, "a mesh");
}

const std::shared_ptr<const Observation>& Value::as_observation(std::string_view what) const {
  if (const auto* value = get_if<std::shared_ptr<const Observation>>()) return *value;
  wrong_kind(what, "an observation");
}

const Value* Value::find(const Key& key) const {
  for (const auto& [name, value] : as_map("what is looked into"))
    if (name == key) return &value;
  return nullptr;
}

std::string describe(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none:
      return "none";
    case Value::Kind::boolean:
    case Value::Kind::integer:
    case Value::Kind::number:
      return to_text(value);
    case Value::Kind::text: {
      const std::string& text = *value.get_if<std::string>();
      return text.size() <= 60 ? str("'", text, "'") : str("'", text.substr(0, 57), "...'");
    }
    case Value::Kind::list: {
      const List& list = value.as_list("list");
      const bool plain = list.size() <= 8 && std::all_of(list.begin(), list.end(), [](const Value& item) {
                           return item.kind() <= Value::Kind::text;
                         });
      return plain ? to_text(value) : str("a list of ", list.size());
    }
    case Value::Kind::map:
      return str("a map of ", value.as_map("map").size());
    case Value::Kind::dtype:
      return std::string(name_of(*value.get_if<DType>()));
    case Value::Kind::tensor:
      return str("a tensor ", describe_sharded(*value.get_if<Tensor>()));
    case Value::Kind::module:
      return str("a module ", (*value.get_if<nn::ModulePtr>())->type());
    default:
      return std::string(name_of(value.kind()));
  }
}

namespace {

bool equal_maps(const Map& a, const Map& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a) {
    const auto other = std::find_if(b.begin(), b.end(), [&key = key](const auto& entry) { return entry.first == key; });
    if (other == b.end() || !equal(value, other->second)) return false;
  }
  return true;
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  if (a.is_tensor() || b.is_tensor()) {
    if (a.is_none() || b.is_none()) return false;
    throw Error(str("a tensor can be compared with none only, not ", describe(a), " with ", describe(b)),
                "use expect_equal, or item() for one element");
  }
  if (a.is_number() && b.is_number()) {
    if (a.kind() == b.kind())
      return a.is(Kind::integer) ? *a.get_if<std::int64_t>() == *b.get_if<std::int64_t>()
                                 : *a.get_if<double>() == *b.get_if<double>();
    const double number = *(a.is(Kind::number) ? a : b).get_if<double>();
    const std::int64_t integer = *(a.is(Kind::integer) ? a : b).get_if<std::int64_t>();
    // Exact also where a double cannot tell neighbouring integers apart.
    return number >= -9223372036854775808.0 && number < 9223372036854775808.0 &&
           static_cast<std::int64_t>(number) == integer &&
           static_cast<double>(static_cast<std::int64_t>(number)) == number;
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::none:
      return true;
    case Kind::boolean:
      return *a.get_if<bool>() == *b.get_if<bool>();
    case Kind::text:
      return *a.get_if<std::string>() == *b.get_if<std::string>();
    case Kind::dtype:
      return *a.get_if<DType>() == *b.get_if<DType>();
    case Kind::list: {
      const List& x = a.as_list("list");
      const List& y = b.as_list("list");
      return x.size() == y.size() &&
             std::equal(x.begin(), x.end(), y.begin(), [](const Value& p, const Value& q) { return equal(p, q); });
    }
    case Kind::map:
      return equal_maps(a.as_map("map"), b.as_map("map"));
    case Kind::module:
      return *a.get_if<nn::ModulePtr>() == *b.get_if<nn::ModulePtr>();
    case Kind::optimizer:
      return *a.get_if<OptimizerPtr>() == *b.get_if<OptimizerPtr>();
    case Kind::scaler:
      return *a.get_if<ScalerPtr>() == *b.get_if<ScalerPtr>();
    case Kind::mesh:
      return **a.get_if<MeshPtr>() == **b.get_if<MeshPtr>();
    case Kind::identity:
      return *a.get_if<Identity>() == *b.get_if<Identity>();
    case Kind::observation:
      return a.as_observation("a") == b.as_observation("b");
    default:
      throw Error(str(describe(a), " cannot be compared"));
  }
}

Map with_entry(const Map& map, const Key& key, Value value) {
  Map result = map;
  for (auto& [name, old] : result)
    if (name == key) {
      old = std::move(value);
      return result;
    }
  result.emplace_back(key, std::move(value));
  return result;
}

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
  const std::vector<double> values = to_doubles(tensor);
  if (is_floating(tensor.dtype())) return nested(values, tensor.sizes(), 0, next);
  std::vector<std::int64_t> integers(values.begin(), values.end());
  if (tensor.dtype() != DType::boolean) return nested(integers, tensor.sizes(), 0, next);
  const std::vector<bool> bits(values.begin(), values.end());
  return nested(bits, tensor.sizes(), 0, next);
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
      scenario::LiteralMap entries;
      for (const auto& [key, item] : value.as_map("map")) entries.emplace_back(key.text, to_literal(item, limit));
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

nn::Value to_nn(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none:
      return nn::Value();
    case Value::Kind::boolean:
      return nn::Value(*value.get_if<bool>());
    case Value::Kind::integer:
      return nn::Value(*value.get_if<std::int64_t>());
    case Value::Kind::number:
      return nn::Value(*value.get_if<double>());
    case Value::Kind::text:
      return nn::Value(*value.get_if<std::string>());
    case Value::Kind::dtype:
      return nn::Value(*value.get_if<DType>());
    case Value::Kind::tensor:
      return nn::Value(*value.get_if<Tensor>());
    case Value::Kind::list: {
      nn::Value::List items;
      for (const Value& item : value.as_list("list")) items.push_back(to_nn(item));
      return nn::Value::list(std::move(items));
    }
    case Value::Kind::map: {
      const Map& map = value.as_map("map");
      const bool plain = std::none_of(map.begin(), map.end(), [](const auto& entry) { return entry.first.integer; });
      if (!plain) break;
      nn::Value::Map entries;
      for (const auto& [key, item] : map) entries.emplace_back(key.text, to_nn(item));
      return nn::Value::map(std::move(entries));
    }
    default:
      break;
  }
  return nn::Value::opaque(std::make_shared<const Value>(value));
}

Value from_nn(const nn::Value& value) {
  if (value.is_none()) return Value();
  if (const bool* item = value.get_if<bool>()) return Value(*item);
  if (const std::int64_t* item = value.get_if<std::int64_t>()) return Value(*item);
  if (const double* item = value.get_if<double>()) return Value(*item);
  if (const std::string* item = value.get_if<std::string>()) return Value(*item);
  if (const DType* item = value.get_if<DType>()) return Value(*item);
  if (value.is_tensor()) return Value(value.tensor());
  if (value.is_list()) {
    List items;
    for (const nn::Value& item : value.items()) items.push_back(from_nn(item));
    return Value::list(std::move(items));
  }
  if (value.is_map()) {
    Map entries;
    for (const auto& [key, item] : value.entries()) entries.emplace_back(key, from_nn(item));
    return Value::map(std::move(entries));
  }
  // Only to_nn makes opaque values that reach a scenario.
  return *static_cast<const Value*>(value.object().get());
}

}  // namespace lockstep::run
