#include "harness/scenario/budget.hpp"

#include <cstdio>

#include "engine/core/text.hpp"

namespace lockstep::scenario {

namespace {
thread_local Budget* current_budget = nullptr;
}

Budget::Budget(Limits limits) : limits_(std::move(limits)), counter_(std::make_shared<std::atomic<std::int64_t>>(0)) {
  if (limits_.seconds > 0.0)
    deadline_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                       std::chrono::duration<double>(limits_.seconds));
}

Budget* Budget::current() { return current_budget; }

bool Budget::has_room(std::int64_t bytes) const {
  const std::int64_t values = counter_->load(std::memory_order_relaxed);
  const std::int64_t beside = limits_.beside ? limits_.beside() : 0;
  return saturating_add(saturating_add(values, beside), bytes) <= limits_.memory_bytes;
}

void Budget::refuse(std::int64_t bytes, const std::string& what) const {
  const std::int64_t values = counter_->load(std::memory_order_relaxed);
  std::string in_use = bytes_text(values);
  if (limits_.beside) in_use += str(" by values and ", bytes_text(limits_.beside()), " by ", limits_.beside_name);
  throw BudgetError(str(what, " needs ", bytes_text(bytes), "; of the ", bytes_text(limits_.memory_bytes), " that ",
                        limits_.of, " may use, ", in_use, " are in use"),
                    limits_.remedy);
}

void Budget::check_time() const {
  if (limits_.seconds <= 0.0 || std::chrono::steady_clock::now() < deadline_) return;
  throw OutOfTime(str(limits_.of, " may take ", limits_.seconds, " s, and this time is used up"));
}

BudgetScope::BudgetScope(Budget& budget) : previous_(std::exchange(current_budget, &budget)) {}
BudgetScope::~BudgetScope() { current_budget = previous_; }

Charge::Charge(std::int64_t bytes) {
  const Budget* budget = Budget::current();
  if (budget == nullptr) return;
  counter_ = budget->counter();
  bytes_ = bytes;
  counter_->fetch_add(bytes_, std::memory_order_relaxed);
}

Charge::~Charge() {
  if (counter_) counter_->fetch_sub(bytes_, std::memory_order_relaxed);
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::int64_t mebi = 1 << 20;
  if (bytes < mebi) return str(bytes, " bytes");
  if (bytes % mebi == 0) return str(bytes / mebi, " MiB");
  char text[40];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / static_cast<double>(mebi));
  return text;
}

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::numeric_limits<std::int64_t>::max();
  return sum;
}

}  // namespace lockstep::scenario
