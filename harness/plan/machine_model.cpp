#include "harness/plan/machine_model.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/core/error.hpp"

namespace lockstep::plan {

namespace {

// The numbers of messages in a row and of bytes that one rank sends, of a collective.
struct Cost {
  double messages = 0.0;
  double bytes = 0.0;
};

// `data`: the bytes of the larger of a rank's input and output.
struct Formula {
  std::string_view operation;
  Cost (*ring)(double n, double log_n, double data);
  Cost (*tree)(double n, double log_n, double data);
};

Cost ring_of_parts(double n, double, double data) { return {n - 1, (n - 1) / n * data}; }
Cost doubling(double n, double log_n, double data) { return {log_n, (n - 1) / n * data}; }
Cost binomial(double, double log_n, double data) { return {log_n, log_n * data}; }
Cost one_message(double, double, double data) { return {1, data}; }

constexpr std::array<Formula, 10> formulas = {{
    {"all_reduce",
     [](double n, double, double data) {
       return Cost{2 * (n - 1), 2 * (n - 1) / n * data};
     },
     [](double, double log_n, double data) {
       return Cost{2 * log_n, 2 * log_n * data};
     }},
    {"all_gather", ring_of_parts, doubling},
    {"reduce_scatter", ring_of_parts, doubling},
    {"all_to_all", ring_of_parts,
     [](double, double log_n, double data) {
       return Cost{log_n, log_n * data / 2};
     }},
    {"broadcast",
     [](double n, double, double data) {
       return Cost{n - 1, data};
     },
     binomial},
    {"gather", ring_of_parts, doubling},
    {"scatter", ring_of_parts, doubling},
    {"send", one_message, one_message},
    {"receive", one_message, one_message},
    {"barrier",
     [](double n, double, double) {
       return Cost{2 * (n - 1), 0};
     },
     [](double, double log_n, double) {
       return Cost{log_n, 0};
     }},
}};

const Formula* find_formula(std::string_view operation) {
  const auto* const at = std::find_if(formulas.begin(), formulas.end(),
                                      [&](const Formula& formula) { return formula.operation == operation; });
  return at == formulas.end() ? nullptr : at;
}

}  // namespace

const MachineLevel& level_of(const Machine& machine, const std::vector<int>& members) {
  LOCKSTEP_CHECK(!members.empty(), "a collective without members");
  const auto [least, largest] = std::minmax_element(members.begin(), members.end());
  if (*least < 0 || *largest >= machine.num_ranks())
    throw Error(str("rank ", *largest, " is not on the machine `", machine.name, "`, which has ", machine.num_ranks(),
                    " ranks"),
                "give its outermost level more ranks, or plan a smaller world");
  const auto holds_all = [low = *least, high = *largest](const MachineLevel& level) {
    return low / level.ranks == high / level.ranks;
  };
  return *std::find_if(machine.levels.begin(), machine.levels.end(), holds_all);
}

double seconds_of(const Machine& machine, std::string_view operation, const std::vector<int>& members,
                  std::int64_t bytes) {
  const Formula* formula = find_formula(operation);
  if (formula == nullptr) throw Error(str("no time is known for the operation `", operation, "`"));
  const MachineLevel& level = level_of(machine, members);
  if (members.size() < 2) return 0.0;
  const auto chosen = level.algorithms.find(operation);
  const bool is_tree = chosen != level.algorithms.end() && chosen->second == Algorithm::tree;
  const auto log_n = static_cast<double>(std::bit_width(members.size() - 1));
  const Cost cost =
      (is_tree ? formula->tree : formula->ring)(static_cast<double>(members.size()), log_n, static_cast<double>(bytes));
  return cost.messages * level.latency_seconds + cost.bytes / level.bytes_per_second;
}

}  // namespace lockstep::plan
