#include "harness/run/rank_budget.hpp"

#include "engine/core/checked.hpp"
#include "engine/core/text.hpp"
#include "engine/device/memory_limit.hpp"

namespace lockstep::run {

namespace {

constexpr const char* more_memory = "raise it with `limits: {memory_mb: ...}` in the scenario, or --memory-mb";
constexpr const char* more_output = "raise it with `limits: {output_mb: ...}` in the scenario, or --output-mb";
constexpr std::int64_t block_bytes = 4096;

}  // namespace

RankBudget::RankBudget(const RankLimits& limits)
    : limits_(limits),
      memory_({.memory_bytes = limits.memory_bytes,
               .of = "a rank",
               .remedy = more_memory,
               .beside = &device::memory_in_use}),
      scope_(memory_) {
  device::limit_memory({.bytes = limits.memory_bytes, .beside = memory_.counter(), .remedy = more_memory});
}

void RankBudget::record(const std::string& name, std::size_t bytes) {
  take(str("record ", name), str("record `", name, "`"), static_cast<std::int64_t>(bytes));
}

void RankBudget::write(const std::string& file, const std::string& shown, std::size_t bytes) {
  const auto blocks = (static_cast<std::int64_t>(bytes) + block_bytes - 1) / block_bytes;
  take(str("file ", file), str("file `", shown, "`"), bounded_product(blocks, block_bytes));
}

void RankBudget::take(const std::string& key, const std::string& what, std::int64_t bytes) {
  std::int64_t& own = outputs_[key];
  const std::int64_t others = output_bytes_ - own;
  if (others + bytes > limits_.output_bytes)
    throw scenario::BudgetError(str("the ", what, " of ", scenario::bytes_text(bytes), " goes past the ",
                                    scenario::bytes_text(limits_.output_bytes), " of output that a rank may leave; ",
                                    scenario::bytes_text(others), " are there beside it"),
                                more_output);
  own = bytes;
  output_bytes_ = others + bytes;
}

std::string RankBudget::out_of_memory() const {
  return str("the machine gives this process no more memory; a rank may use ",
             scenario::bytes_text(limits_.memory_bytes), ", of which values have ",
             scenario::bytes_text(memory_.counter()->load()), " and tensors ",
             scenario::bytes_text(device::memory_in_use()), " (", more_memory, ")");
}

}  // namespace lockstep::run
