// What evaluating a scenario may use: memory for its values and, before launch, seconds. A thread works on the budget
// of its innermost BudgetScope, or on none. Values that grow ask first (need) and hold a Charge while they live, so
// that an error names the step that asked and not the one that met the end of the machine's memory.
//
//   Budget budget({.memory_bytes = 256 << 20, .seconds = 5});
//   BudgetScope scope(budget);
//   Budget::ask(bytes, [&] { return str("a list of ", n, " items"); });   // throws BudgetError
//   Charge charge(bytes);                                                // given back by its destructor, on any thread
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

// More than the budget was asked for.
class BudgetError : public Error {
 public:
  using Error::Error;
};

// The seconds before launch are over. No Error, so that whoever forgives errors and goes on does not forgive it.
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
    double seconds = 0.0;                      // from the making of the budget on; 0: any
    std::string of = "an evaluation";          // who may use that much, for messages
    std::string remedy{};                      // how to get more memory
    std::int64_t (*beside)() = nullptr;        // bytes in use that no Charge holds; counted too
    std::string_view beside_name = "tensors";  // for messages
  };
  explicit Budget(Limits limits);

  // Throws BudgetError when `bytes` more go past the limit; `text()` says what they are for.
  template <class Text>
  void need(std::int64_t bytes, Text&& text) const {
    if (!has_room(bytes)) refuse(bytes, text());
  }
  bool has_room(std::int64_t bytes) const;
  void check_time() const;  // throws OutOfTime
  const Limits& limits() const { return limits_; }
  const Counter& counter() const { return counter_; }  // of the bytes that charges hold

  // Of this thread; null: none, then nothing is refused.
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

// Makes a budget the current one of this thread for the scope's life.
class BudgetScope {
 public:
  explicit BudgetScope(Budget& budget);
  ~BudgetScope();
  BudgetScope(const BudgetScope&) = delete;
  BudgetScope& operator=(const BudgetScope&) = delete;

 private:
  Budget* previous_;
};

// Bytes of a value that lives, counted in the budget under which it was made.
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

// "2048 MiB", or "17 bytes" below one.
std::string bytes_text(std::int64_t bytes);
// Never past the largest number.
std::int64_t saturating_add(std::int64_t a, std::int64_t b);

}  // namespace lockstep::scenario
