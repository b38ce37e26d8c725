#include "harness/run/values/value.hpp"

#include <algorithm>
#include <type_traits>

#include "engine/core/checked.hpp"
#include "engine/mesh/sharded.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/scenario/characters.hpp"
#include "harness/scenario/vocabulary.hpp"

template class lockstep::scenario::OutOfLine<lockstep::run::Value::Data>;

namespace lockstep::run {

namespace {

template <class T>
std::int64_t bytes_of(std::size_t count) {
  return static_cast<std::int64_t>(bounded_product(count, sizeof(T)));
}

}  // namespace

// The depth and size of a list or map under construction. check() runs before the value exists, so no value exceeds a
// limit.
class Value::TreeSize {
 public:
  int depth = 1;
  std::int64_t bytes = 0;

  void add(const Value& value) {
    depth = std::max(depth, 1 + value.depth());
    bytes = scenario::saturating_add(bytes, value.tree_bytes());
  }
  // `own`: the bytes that the new value allocates. `bytes` is bounded too: records, copies and comparisons of the value
  // visit the whole tree.
  void check(const char* kind, std::size_t size, std::int64_t own) const {
    if (size > scenario::limits::list_items)
      throw Error(str(kind, " of ", size, " items: at most ", scenario::limits::list_items, " are allowed"));
    if (depth > scenario::limits::value_depth)
      throw Error(str(kind, " that nests ", depth, " deep: at most ", scenario::limits::value_depth, " are allowed"));
    const scenario::Budget* budget = scenario::Budget::current();
    if (!budget) return;
    budget->need(own, [&] { return str(kind, " of ", size, " items"); });
    if (bytes > budget->limits().memory_bytes)
      throw scenario::BudgetError(str(kind, " of ", size, " items that nests ", depth, " deep needs ",
                                      scenario::bytes_text(bytes), " written out, where ", budget->limits().of,
                                      " may use ", scenario::bytes_text(budget->limits().memory_bytes)),
                                  "shared items count each time they occur");
  }
};

Value::Value(std::string value) {
  const auto bytes = static_cast<std::int64_t>(Charged<std::string>::overhead_bytes + value.capacity());
  scenario::Budget::ask(bytes, [&] { return str("a text of ", value.size(), " characters"); });
  data_.data = Charged<std::string>({std::move(value), 0, bytes}, bytes);
}

Value Value::list(List items) {
  TreeSize tree;
  tree.bytes = bytes_of<Value>(items.size());
  const auto own = static_cast<std::int64_t>(Charged<List>::overhead_bytes) + bytes_of<Value>(items.capacity());
  for (const Value& item : items) tree.add(item);
  tree.check("a list", items.size(), own);
  return Value(Data(Charged<List>({std::move(items), tree.depth, tree.bytes}, own)));
}

Value Value::map(Map entries) {
  TreeSize tree;
  auto own = static_cast<std::int64_t>(Charged<Map>::overhead_bytes) + bytes_of<Map::value_type>(entries.capacity());
  for (const auto& [key, value] : entries) {
    own += static_cast<std::int64_t>(key.text.size());
    tree.add(value);
  }
  tree.bytes = scenario::saturating_add(tree.bytes, own);
  tree.check("a map", entries.size(), own);
  return Value(Data(Charged<Map>({std::move(entries), tree.depth, tree.bytes}, own)));
}

const std::string* Value::text_or_null() const {
  const auto* text = std::get_if<Charged<std::string>>(&data_.data);
  return text ? &(*text)->content : nullptr;
}

int Value::depth() const {
  if (const auto* list = std::get_if<Charged<List>>(&data_.data)) return (*list)->depth;
  if (const auto* map = std::get_if<Charged<Map>>(&data_.data)) return (*map)->depth;
  const Handle* handle = std::get_if<Handle>(&data_.data);
  return handle && handle->result ? handle->result->depth() : 0;
}

std::int64_t Value::tree_bytes() const {
  if (const auto* text = std::get_if<Charged<std::string>>(&data_.data)) return (*text)->tree_bytes;
  if (const auto* list = std::get_if<Charged<List>>(&data_.data)) return (*list)->tree_bytes;
  if (const auto* map = std::get_if<Charged<Map>>(&data_.data)) return (*map)->tree_bytes;
  const Handle* handle = std::get_if<Handle>(&data_.data);
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

void Value::wrong_kind(std::string_view subject, std::string_view wanted) const {
  throw Error(str(subject, " must be ", wanted, ", not ", describe(*this)));
}

const Value& Value::result_or_this() const {
  const Handle* handle = get_if<Handle>();
  return handle && handle->result ? *handle->result : *this;
}

bool Value::as_bool(std::string_view subject) const {
  if (const bool* value = get_if<bool>()) return *value;
  wrong_kind(subject, "a boolean");
}

std::int64_t Value::as_int(std::string_view subject) const {
  if (const std::int64_t* value = get_if<std::int64_t>()) return *value;
  wrong_kind(subject, "an integer");
}

double Value::as_number(std::string_view subject) const {
  if (const double* value = get_if<double>()) return *value;
  if (const std::int64_t* value = get_if<std::int64_t>()) return static_cast<double>(*value);
  wrong_kind(subject, "a number");
}

Number number_of(const Value& value, std::string_view subject) {
  if (const std::int64_t* integer = value.get_if<std::int64_t>()) return *integer;
  return value.as_number(subject);
}

const std::string& Value::as_text(std::string_view subject) const {
  if (const std::string* value = get_if<std::string>()) return *value;
  wrong_kind(subject, "a text");
}

const List& Value::as_list(std::string_view subject) const {
  if (const auto* value = std::get_if<Charged<List>>(&result_or_this().data_.data)) return (*value)->content;
  wrong_kind(subject, "a list");
}

const Map& Value::as_map(std::string_view subject) const {
  if (const auto* value = std::get_if<Charged<Map>>(&result_or_this().data_.data)) return (*value)->content;
  wrong_kind(subject, "a map");
}

DType Value::as_dtype(std::string_view subject) const {
  if (const DType* value = get_if<DType>()) return *value;
  wrong_kind(subject, "a type such as float32");
}

const Tensor& Value::as_tensor(std::string_view subject) const {
  if (const Tensor* value = result_or_this().get_if<Tensor>()) return *value;
  wrong_kind(subject, "a tensor");
}

const nn::ModulePtr& Value::as_module(std::string_view subject) const {
  if (const nn::ModulePtr* value = get_if<nn::ModulePtr>()) return *value;
  wrong_kind(subject, "a module");
}

const OptimizerPtr& Value::as_optimizer(std::string_view subject) const {
  if (const OptimizerPtr* value = get_if<OptimizerPtr>()) return *value;
  wrong_kind(subject, "an optimizer");
}

const ScalerPtr& Value::as_scaler(std::string_view subject) const {
  if (const ScalerPtr* value = get_if<ScalerPtr>()) return *value;
  wrong_kind(subject, "a gradient scaler");
}

const MeshPtr& Value::as_mesh(std::string_view subject) const {
  if (const MeshPtr* value = get_if<MeshPtr>()) return *value;
  wrong_kind(subject, "a mesh");
}

const std::shared_ptr<const Observation>& Value::as_observation(std::string_view subject) const {
  if (const auto* value = get_if<std::shared_ptr<const Observation>>()) return *value;
  wrong_kind(subject, "an observation");
}

const Value* Value::find(const Key& key) const {
  for (const auto& [name, value] : as_map("the map"))
    if (name == key) return &value;
  // The keys of maps in the file are texts.
  return key.integer ? find(Key(key.text)) : nullptr;
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
      const std::int64_t length = scenario::num_characters(text);
      return length <= 60 ? str("'", text, "'") : str("'", scenario::characters(text, 0, 57), "...'");
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

void set_entry(Map& map, Key key, Value value) {
  for (auto& [own, old] : map)
    if (own == key) {
      old = std::move(value);
      return;
    }
  map.emplace_back(std::move(key), std::move(value));
}

}  // namespace lockstep::run
