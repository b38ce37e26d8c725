// The limits of evaluating a scenario: memory for its values and, before launch, seconds. A thread uses the budget of
// its innermost BudgetScope; without a scope nothing is limited. Code that makes a large value asks for room first
// (Budget::ask) and holds a Charge while the value lives. An error therefore names the step that asks for too much, not
// a later step that finds the machine's memory exhausted.
//
//   Budget budget({.memory_bytes = 256 << 20, .seconds = 5});
//   BudgetScope scope(budget);
//   Budget::ask(bytes, [&] { return str("a list of ", n, " items"); });   // throws BudgetError
//   Charge charge(bytes);                                                // its destructor releases the bytes, on any
//   thread
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/error.hpp"

namespace lockstep::scenario {

// A request for more memory than the budget has left.
class BudgetError : public Error {
 public:
  using Error::Error;
};

// The time before launch is used up. It does not derive from Error, so that code that catches Error and continues does
// not catch it.
class OutOfTime : public std::exception {
 public:
  explicit OutOfTime(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

class Budget {
 public:
  using Counter = std::shared_ptr<std::atomic<std::int64_t>>;
  struct Limits {
    std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();
    double seconds = 0.0;                      // from the construction of the budget; 0: unlimited
    std::string of = "an evaluation";          // the user of the budget, for messages
    std::string remedy{};                      // how to get more memory, for messages
    std::int64_t (*beside)() = nullptr;        // further bytes in use that count, such as tensors
    std::string_view beside_name = "tensors";  // the name of these bytes, for messages
  };
  explicit Budget(Limits limits);

  // Throws BudgetError when `bytes` more exceed the limit. `text()` describes the value that needs them.
  template <class Text>
  void need(std::int64_t bytes, Text&& text) const {
    if (!has_room(bytes)) refuse(bytes, text());
  }
  bool has_room(std::int64_t bytes) const;
  void check_time() const;  // throws OutOfTime
  const Limits& limits() const { return limits_; }
  const Counter& counter() const { return counter_; }  // the bytes that charges hold

  // The budget of this thread, or null. ask() and ask_time() check it if there is one.
  static Budget* current();
  template <class Text>
  static void ask(std::int64_t bytes, Text&& text) {
    if (const Budget* budget = current()) budget->need(bytes, std::forward<Text>(text));
  }
  static void ask_time() {
    if (const Budget* budget = current()) budget->check_time();
  }

 private:
  friend class BudgetScope;
  [[noreturn]] void refuse(std::int64_t bytes, const std::string& what) const;
  Limits limits_;
  Counter counter_;
  std::chrono::steady_clock::time_point deadline_;
};

// Makes a budget the current budget of this thread during the lifetime of the scope.
class BudgetScope {
 public:
  explicit BudgetScope(Budget& budget);
  ~BudgetScope();
  BudgetScope(const BudgetScope&) = delete;
  BudgetScope& operator=(const BudgetScope&) = delete;

 private:
  Budget* previous_;
};

// The bytes of a live value. They count in the budget that was current when the charge was made.
class Charge {
 public:
  Charge() = default;
  explicit Charge(std::int64_t bytes);
  ~Charge();
  Charge(Charge&& other) noexcept
      : counter_(std::move(other.counter_)), bytes_(std::exchange(other.bytes_, std::int64_t{0})) {}
  Charge& operator=(Charge&&) = delete;

 private:
  Budget::Counter counter_;
  std::int64_t bytes_ = 0;
};

// "2048 MiB"; "17 bytes" below one MiB.
std::string bytes_text(std::int64_t bytes);
// The sum, at most the largest 64-bit integer.
std::int64_t saturating_add(std::int64_t a, std::int64_t b);

}  // namespace lockstep::scenario
