// The value of a name while a case runs: plain data, a tensor, or an object that a verb made.
//
//   Value v = Value::list({Value(1), Value(tensor)});
//   v.as_list("sizes")[0].as_int("size");           // throws Error for a value of another kind
//
// Texts, lists and maps are immutable, and copies share them. Modules, optimizers, meshes and handles are references to
// the object. A Value belongs to one rank. Texts, lists and maps count in the rank's budget (scenario/budget.hpp) while
// they live. Lists and maps nest at most limits::value_depth deep, so functions may recurse over them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/device/stream.hpp"
#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"
#include "engine/optim/grad_scaler.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/tensor/number.hpp"
#include "engine/tensor/tensor.hpp"
#include "harness/scenario/charged.hpp"
#include "harness/scenario/literal.hpp"

namespace lockstep::run {

class Value;
struct Observation;  // observation.hpp

// A key of a map: a text or an integer. A text never equals an integer.
struct Key {
  Key(std::string value) : text(std::move(value)) {}
  Key(const char* value) : text(value) {}
  explicit Key(std::int64_t value) : text(std::to_string(value)), integer(true) {}
  std::string text;
  bool integer = false;
  friend bool operator==(const Key&, const Key&) = default;
};

using List = std::vector<Value>;
using Map = std::vector<std::pair<Key, Value>>;  // in insertion order; keys are unique

using OptimizerPtr = std::shared_ptr<optim::Optimizer>;
using ScalerPtr = std::shared_ptr<optim::GradScaler>;
using MeshPtr = std::shared_ptr<const DeviceMesh>;

// An asynchronous call and its result.
struct Handle {
  comm::Work work;
  std::shared_ptr<const Value> result;  // null for in-place calls
  std::function<void()> finish{};       // waits for all collectives of a call with several
  void wait() const {
    if (finish)
      finish();
    else
      work.wait();
  }
};

// A method of a module, to be called.
struct BoundMethod {
  nn::ModulePtr module;
  std::string name;
};

// The identity of a tensor's storage, for comparisons. Does not keep the storage alive.
struct StorageIdentity {
  std::weak_ptr<const void> object;
  friend bool operator==(const StorageIdentity& a, const StorageIdentity& b) {
    return !a.object.owner_before(b.object) && !b.object.owner_before(a.object);
  }
};

// A text, list or map, with the size of the tree that it is written out as: a shared item counts each time it occurs.
template <class Content>
struct WithTreeSize {
  Content content;
  int depth = 0;                // of nested lists and maps, this one included; 0 for a text
  std::int64_t tree_bytes = 0;  // of all values in the tree
};

class Value {
 public:
  enum class Kind {
    none,
    boolean,
    integer,
    number,
    text,
    list,
    map,
    dtype,
    tensor,
    module,
    optimizer,
    mesh,
    event,
    handle,
    observation,
    method,
    identity,
    scaler
  };

  Value() = default;  // none
  explicit Value(bool value) : data_(value) {}
  explicit Value(int value) : data_(std::int64_t{value}) {}
  explicit Value(std::int64_t value) : data_(value) {}
  explicit Value(double value) : data_(value) {}
  explicit Value(std::string value);  // throws BudgetError; so do list() and map()
  explicit Value(std::string_view value) : Value(std::string(value)) {}
  explicit Value(const char* value) : Value(std::string(value)) {}
  explicit Value(DType value) : data_(value) {}
  explicit Value(Tensor value) : data_(std::move(value)) {}
  explicit Value(nn::ModulePtr value) : data_(std::move(value)) {}
  explicit Value(OptimizerPtr value) : data_(std::move(value)) {}
  explicit Value(MeshPtr value) : data_(std::move(value)) {}
  explicit Value(device::Event value) : data_(std::move(value)) {}
  explicit Value(Handle value) : data_(std::move(value)) {}
  explicit Value(std::shared_ptr<const Observation> value) : data_(std::move(value)) {}
  explicit Value(BoundMethod value) : data_(std::move(value)) {}
  explicit Value(StorageIdentity value) : data_(std::move(value)) {}
  explicit Value(ScalerPtr value) : data_(std::move(value)) {}

  static Value list(List items);
  static Value map(Map entries);
  static Value texts(const std::vector<std::string>& items);

  Kind kind() const { return static_cast<Kind>(data_.data.index()); }
  bool is(Kind kind_asked) const { return kind() == kind_asked; }
  bool is_none() const { return is(Kind::none); }
  bool is_number() const { return is(Kind::integer) || is(Kind::number); }
  bool is_tensor() const { return is(Kind::tensor); }

  // Each throws Error ("`subject` must be an integer, not ...") for a value of another kind. as_number accepts integers
  // too. as_tensor, as_list and as_map of a handle return its result.
  bool as_bool(std::string_view subject) const;
  std::int64_t as_int(std::string_view subject) const;
  double as_number(std::string_view subject) const;
  const std::string& as_text(std::string_view subject) const;
  const List& as_list(std::string_view subject) const;
  const Map& as_map(std::string_view subject) const;
  DType as_dtype(std::string_view subject) const;
  const Tensor& as_tensor(std::string_view subject) const;
  const nn::ModulePtr& as_module(std::string_view subject) const;
  const OptimizerPtr& as_optimizer(std::string_view subject) const;
  const ScalerPtr& as_scaler(std::string_view subject) const;
  const MeshPtr& as_mesh(std::string_view subject) const;
  const std::shared_ptr<const Observation>& as_observation(std::string_view subject) const;
  template <class T>
  const T* get_if() const {
    if constexpr (std::is_same_v<T, std::string>)
      return text_or_null();
    else
      return std::get_if<T>(&data_.data);
  }
  // The value of a map's entry. Without the integer as a key, the text of its digits is looked up. Null: no such key.
  const Value* find(const Key& key) const;

 private:
  template <class Content>
  using Charged = scenario::Charged<WithTreeSize<Content>>;
  using Data = std::variant<std::monostate, bool, std::int64_t, double, Charged<std::string>, Charged<List>,
                            Charged<Map>, DType, Tensor, nn::ModulePtr, OptimizerPtr, MeshPtr, device::Event, Handle,
                            std::shared_ptr<const Observation>, BoundMethod, StorageIdentity, ScalerPtr>;
  explicit Value(Data data) : data_(std::move(data)) {}
  const std::string* text_or_null() const;
  int depth() const;
  std::int64_t tree_bytes() const;
  class TreeSize;
  [[noreturn]] void wrong_kind(std::string_view subject, std::string_view wanted) const;
  const Value& result_or_this() const;  // the result of a handle, or the value itself
  scenario::OutOfLine<Data> data_;
};

}  // namespace lockstep::run
extern template class lockstep::scenario::OutOfLine<lockstep::run::Value::Data>;
namespace lockstep::run {

std::string_view name_of(Value::Kind kind);  // "a list", "an integer"
// The value in short, for messages: "3", "'sim'", "a tensor float32 (2, 3) on cpu", "a list of 4".
std::string describe(const Value& value);

// `==` of the language. Numbers are compared by value, lists and maps item by item (maps in any order). Values of
// different kinds are not equal. Throws Error for a tensor with anything except none, and for kinds without equality.
bool equal(const Value& a, const Value& b);

// A number with its kind: an integer beyond 2^53 stays exact. Throws Error ("`subject` must be a number, not ...").
Number number_of(const Value& value, std::string_view subject);

// Adds an entry, or replaces the value of the one with that key.
void set_entry(Map& map, Key key, Value value);

Value from_literal(const scenario::Literal& literal);
// For records, texts and files. Tensors become nested lists of numbers, and keys become texts. Throws Error for
// objects, a tensor of more than `limit` elements, and a map with an integer and the text of its digits as keys.
scenario::Literal to_literal(const Value& value, std::int64_t limit);

// The text in `${}`: abc, true, none, 0.01, [1,2]. Throws Error for tensors and objects.
std::string to_text(const Value& value);

// Inputs and outputs of modules. Objects are opaque to the engine.
nn::Structure to_nn(const Value& value);
Value from_nn(const nn::Structure& value);

}  // namespace lockstep::run
