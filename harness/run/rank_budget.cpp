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
  count_output(str("record ", name), str("record `", name, "`"), static_cast<std::int64_t>(bytes));
}

void RankBudget::write(const std::string& file, const std::string& shown, std::size_t bytes) {
  const auto blocks = (static_cast<std::int64_t>(bytes) + block_bytes - 1) / block_bytes;
  count_output(str("file ", file), str("file `", shown, "`"), bounded_product(blocks, block_bytes));
}

void RankBudget::count_output(const std::string& key, const std::string& description, std::int64_t bytes) {
  std::int64_t& previous = outputs_[key];
  const std::int64_t others = output_bytes_ - previous;
  if (others + bytes > limits_.output_bytes)
    throw scenario::BudgetError(
        str("the ", description, " of ", scenario::bytes_text(bytes), " goes past the ",
            scenario::bytes_text(limits_.output_bytes), " of output that a rank may write; its other output has ",
            scenario::bytes_text(others)),
        more_output);
  previous = bytes;
  output_bytes_ = others + bytes;
}

std::string RankBudget::out_of_memory() const {
  return str("the machine refuses this process more memory; a rank may use ",
             scenario::bytes_text(limits_.memory_bytes), "; values use ",
             scenario::bytes_text(memory_.counter()->load()), " and tensors ",
             scenario::bytes_text(device::memory_in_use()), " (", more_memory, ")");
}

}  // namespace lockstep::run
