#include <array>
#include <string_view>

#include "engine/comm/control.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {
constexpr std::array<std::string_view, num_operations> operation_names = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
    "gather",     "scatter",    "send",           "receive",    "barrier"};
constexpr std::array<std::string_view, 5> op_names = {"sum", "mean", "max", "min", "product"};
constexpr std::array<std::string_view, 6> family_names = {"data_parallel", "tensor_parallel", "user",
                                                          "start_up",      "checkpoint",      "uncounted"};
constexpr std::array<std::string_view, 2> sum_order_names = {"fixed", "library"};
constexpr std::array<std::string_view, 4> phase_names = {"forward", "backward", "optimizer", "other"};
static_assert(static_cast<int>(Operation::barrier) + 1 == num_operations);
static_assert(static_cast<std::size_t>(ReduceOp::product) + 1 == op_names.size());
static_assert(static_cast<std::size_t>(Family::uncounted) + 1 == family_names.size());
static_assert(static_cast<std::size_t>(Phase::other) + 1 == phase_names.size());
static_assert(static_cast<std::size_t>(SumOrder::library) + 1 == sum_order_names.size());
}  // namespace

std::string_view name_of(Operation operation) { return operation_names[static_cast<std::size_t>(operation)]; }
std::string_view name_of_kind(std::uint8_t kind) {
  if (kind == exchange_kind) return "exchange";
  return kind == preparation_kind ? "preparation" : name_of(static_cast<Operation>(kind));
}
std::string_view name_of(ReduceOp op) { return op_names[static_cast<std::size_t>(op)]; }
std::string_view name_of(Family family) { return family_names[static_cast<std::size_t>(family)]; }
std::string_view name_of(Phase phase) { return phase_names[static_cast<std::size_t>(phase)]; }

std::string_view name_of(SumOrder order) { return sum_order_names[static_cast<std::size_t>(order)]; }

ReduceOp reduce_op_from_name(std::string_view name) {
  for (std::size_t i = 0; i < op_names.size(); ++i)
    if (op_names[i] == name) return static_cast<ReduceOp>(i);
  throw Error(str("unknown reduction `", name, "`"), "one of sum, mean, max, min, product");
}

}  // namespace lockstep::comm
