// What goes in and out of a module: tensors and numbers, nested in lists and maps.
//
//   Value inputs = Value::list({x, Value::map({{"mask", m}})});
//   map_tensors(inputs, [](const Tensor& t) { return raw::to_device(t, d); });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/tensor/tensor.hpp"

namespace lockstep::nn {

class Value {
 public:
  using List = std::vector<Value>;
  using Map = std::vector<std::pair<std::string, Value>>;  // in order
  struct None {
    friend bool operator==(None, None) { return true; }
  };

  Value() = default;
  Value(bool value) : data_(value) {}
  Value(std::int64_t value) : data_(value) {}
  Value(int value) : data_(std::int64_t{value}) {}
  Value(double value) : data_(value) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(DType value) : data_(value) {}
  Value(Tensor value) : data_(std::move(value)) {}
  // Out of line: they are instantiations of a variant, dear to compile in every source.
  Value(const Value&);
  Value(Value&&) noexcept;
  Value& operator=(const Value&);
  Value& operator=(Value&&) noexcept;
  ~Value();

  static Value list(List items);
  static Value map(Map items);
  // Anything else that a caller threads through a module, kept opaque (it is neither moved nor cast).
  static Value opaque(std::shared_ptr<const void> object) { return Value(Data(std::move(object))); }

  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_tensor() const { return std::holds_alternative<Tensor>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
  bool is_map() const { return std::holds_alternative<std::shared_ptr<const Map>>(data_); }
  bool is_opaque() const { return std::holds_alternative<std::shared_ptr<const void>>(data_); }
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  const Tensor& tensor() const;  // throws Error when it is something else, saying what
  const List& items() const;
  const Map& entries() const;
  const std::shared_ptr<const void>& object() const { return std::get<std::shared_ptr<const void>>(data_); }
  std::string kind() const;  // "tensor", "list", ... for messages

 private:
  using Data = std::variant<None, bool, std::int64_t, double, std::string, DType, Tensor, std::shared_ptr<const List>,
                            std::shared_ptr<const Map>, std::shared_ptr<const void>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

// The same structure with every tensor replaced; shares what did not change.
Value map_tensors(const Value& value, const std::function<Tensor(const Tensor&)>& replace);
// All tensors in it, in order.
std::vector<Tensor> tensors_of(const Value& value);
// The structure with its tensors replaced, in order, by `tensors`.
Value with_tensors(const Value& value, const std::vector<Tensor>& tensors);

}  // namespace lockstep::nn
