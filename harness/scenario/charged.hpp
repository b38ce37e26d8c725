// The two templates that the value types share (Literal in literal.hpp, run::Value in harness/run/values/value.hpp).
//
//   Charged<std::string> text("abc", num_bytes);     // counts in the budget until the last copy is destroyed
//   text->size();
//
//   class Literal { ... OutOfLine<Data> data_; };    // Literal declares no copy, move or destructor
//   extern template class OutOfLine<Literal::Data>;  // in the header, after the class
//   template class OutOfLine<Literal::Data>;         // in one source
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "harness/scenario/budget.hpp"

namespace lockstep::scenario {

// Immutable content that copies share, so that a copy costs the same however large the content is.
template <class Content>
class Charged {
  struct Shared {
    Shared(Content content_given, Charge charge_given)
        : content(std::move(content_given)), charge(std::move(charge_given)) {}
    Content content;
    Charge charge;
  };

 public:
  static constexpr std::size_t overhead_bytes = sizeof(Shared);  // excludes the memory that the content allocates

  // Charges `bytes` to the budget of this thread. The caller asks the budget for them first (Budget::ask).
  Charged(Content content, std::int64_t bytes)
      : shared_(std::make_shared<const Shared>(std::move(content), Charge(bytes))) {}
  const Content& operator*() const { return shared_->content; }
  const Content* operator->() const { return &shared_->content; }

 private:
  std::shared_ptr<const Shared> shared_;
};

// Holds a Data (a std::variant) whose copy, move and destruction are compiled in one source only: they are expensive to
// instantiate in every source that includes the value type.
template <class Data>
class OutOfLine {
 public:
  OutOfLine() = default;
  template <class T, class = std::enable_if_t<!std::is_same_v<std::remove_cvref_t<T>, OutOfLine>>>
  explicit OutOfLine(T&& value) : data(std::forward<T>(value)) {}
  OutOfLine(const OutOfLine&);
  OutOfLine(OutOfLine&&) noexcept;
  OutOfLine& operator=(const OutOfLine&);
  OutOfLine& operator=(OutOfLine&&) noexcept;
  ~OutOfLine();

  Data data;
};

template <class Data>
OutOfLine<Data>::OutOfLine(const OutOfLine&) = default;
template <class Data>
OutOfLine<Data>::OutOfLine(OutOfLine&&) noexcept = default;
template <class Data>
OutOfLine<Data>& OutOfLine<Data>::operator=(const OutOfLine&) = default;
template <class Data>
OutOfLine<Data>& OutOfLine<Data>::operator=(OutOfLine&&) noexcept = default;
template <class Data>
OutOfLine<Data>::~OutOfLine() = default;

}  // namespace lockstep::scenario
