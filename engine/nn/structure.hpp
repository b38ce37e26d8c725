// The inputs and outputs of modules: a tensor, a plain value, or lists and maps of these.
//
// A Structure is immutable and cheap to copy: lists and maps are shared.
//
//   Structure inputs = Structure::list({x, Structure::map({{"mask", m}})});
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

class Structure {
 public:
  using List = std::vector<Structure>;
  using Map = std::vector<std::pair<std::string, Structure>>;  // keeps its order
  struct None {
    friend bool operator==(None, None) { return true; }
  };

  Structure() = default;
  Structure(bool value) : data_(value) {}
  Structure(std::int64_t value) : data_(value) {}
  Structure(int value) : data_(std::int64_t{value}) {}
  Structure(double value) : data_(value) {}
  Structure(const char* value) : data_(std::string(value)) {}
  Structure(std::string value) : data_(std::move(value)) {}
  Structure(DType value) : data_(value) {}
  Structure(Tensor value) : data_(std::move(value)) {}
  // Defined out of line, because the special members of the variant are expensive to compile in every source.
  Structure(const Structure&);
  Structure(Structure&&) noexcept;
  Structure& operator=(const Structure&);
  Structure& operator=(Structure&&) noexcept;
  ~Structure();

  static Structure list(List items);
  static Structure map(Map items);
  // Any other object that a caller passes through a module. It is neither moved between devices nor cast.
  static Structure opaque(std::shared_ptr<const void> object) { return Structure(Data(std::move(object))); }

  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_tensor() const { return std::holds_alternative<Tensor>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
  bool is_map() const { return std::holds_alternative<std::shared_ptr<const Map>>(data_); }
  bool is_opaque() const { return std::holds_alternative<std::shared_ptr<const void>>(data_); }
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  // Each throws Error, with the actual kind, if this is not a tensor (list, map).
  const Tensor& tensor() const;
  const List& items() const;
  const Map& entries() const;
  const std::shared_ptr<const void>& object() const { return std::get<std::shared_ptr<const void>>(data_); }
  std::string kind() const;  // "tensor", "list", ... for messages

 private:
  using Data = std::variant<None, bool, std::int64_t, double, std::string, DType, Tensor, std::shared_ptr<const List>,
                            std::shared_ptr<const Map>, std::shared_ptr<const void>>;
  explicit Structure(Data data) : data_(std::move(data)) {}
  Data data_;
};

// Returns the structure with every tensor replaced. Unchanged lists and maps are shared.
Structure map_tensors(const Structure& structure, const std::function<Tensor(const Tensor&)>& replace);
// All tensors of the structure, in order.
std::vector<Tensor> tensors_of(const Structure& structure);
// Returns the structure with its tensors replaced by `tensors`, in order. The numbers of tensors are equal.
Structure with_tensors(const Structure& structure, const std::vector<Tensor>& tensors);

}  // namespace lockstep::nn
