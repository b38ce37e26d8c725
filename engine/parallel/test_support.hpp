// For the tests of this folder: runs ranks as threads, builds models, and computes the expected mean gradients.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/core/defects.hpp"
#include "engine/nn/build.hpp"
#include "engine/parallel/replicate.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::parallel::testing {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;

// Runs the body on all ranks. Returns the first failure, "" if there is none.
inline std::string run(int world_size, const std::function<void(int rank)>& body, Kind kind = Kind::threads,
                       double deadline = 10.0) {
  for (const std::string& failure : comm::testing_ranks::run_ranks(world_size, kind, body, deadline))
    if (!failure.empty()) return failure;
  return "";
}

inline nn::ModulePtr built(std::string_view name, std::uint64_t seed, const nn::Inputs& arguments = {}) {
  RankContext::current().generator().seed(seed);
  return nn::build(name, arguments, {});
}

// Two branches. The second argument of forward selects them: "a", "b" or "both".
struct Branches : nn::Module {
  Branches() : Module("Branches") {}
  nn::ModulePtr clone_shell() const override { return std::make_shared<Branches>(); }
  nn::Structure run(std::string_view, const nn::Inputs& inputs) override {
    const Tensor& x = inputs.positional[0].tensor();
    const std::string& which = *inputs.positional[1].get_if<std::string>();
    Tensor sum;
    for (const char* branch : {"a", "b"})
      if (which == branch || which == "both") {
        const Tensor y = child(branch)->call(x).tensor();
        sum = sum.defined() ? ops::add(sum, y) : y;
      }
    return sum;
  }
};
inline nn::ModulePtr branches(std::uint64_t seed) {
  RankContext::current().generator().seed(seed);
  auto module = std::make_shared<Branches>();
  module->add_child("a", nn::build("Linear", {{3, 4}, {}}, {}));
  module->add_child("b", nn::build("Linear", {{3, 4}, {}}, {}));
  nn::name_parameters(module);
  return module;
}
inline Tensor run_branch(const nn::ModulePtr& module, const Tensor& x, const char* which) {
  return ops::sum(module->call(nn::Inputs{{x, which}, {}}).tensor());
}

inline Tensor rows(std::uint64_t seed, const Dims& sizes) {
  RankContext::current().generator().seed(seed);
  return randn(sizes, DType::float32, {});
}

inline Tensor loss_of(const nn::ModulePtr& module, std::uint64_t seed) {
  const Tensor y = module->call(rows(seed, {3, 2})).tensor();
  return ops::sum(ops::mul(y, y));
}

// The mean of the gradients of all ranks, per parameter. The gradients of each rank come from a copy of the module.
// They are summed in a pairwise tree over the ranks, as in the engine, and divided once.
inline std::vector<std::vector<float>> mean_gradients(const nn::ModulePtr& module, int world_size,
                                                      const std::function<Tensor(const nn::ModulePtr&, int)>& loss_of) {
  std::vector<std::vector<std::vector<float>>> of_rank;  // [rank][parameter][element]
  for (int rank = 0; rank < world_size; ++rank) {
    const nn::ModulePtr copy = nn::clone_module(module);
    nn::zero_grad(copy);
    backward({loss_of(copy, rank)});
    auto& gradients = of_rank.emplace_back();
    for (const nn::NamedParameter& parameter : nn::named_parameters(copy)) {
      const Tensor gradient = grad(parameter.tensor());
      const auto doubles = gradient.defined()
                               ? to_doubles(gradient)
                               : std::vector<double>(static_cast<std::size_t>(parameter.tensor().num_elements()), 0.0);
      gradients.emplace_back(doubles.begin(), doubles.end());
    }
  }
  while (of_rank.size() > 1) {
    std::vector<std::vector<std::vector<float>>> next;
    for (std::size_t i = 0; i < of_rank.size(); i += 2) {
      next.push_back(of_rank[i]);
      if (i + 1 < of_rank.size())
        for (std::size_t p = 0; p < next.back().size(); ++p)
          for (std::size_t k = 0; k < next.back()[p].size(); ++k) next.back()[p][k] += of_rank[i + 1][p][k];
    }
    of_rank = std::move(next);
  }
  for (auto& gradient : of_rank[0])
    for (float& value : gradient) value /= static_cast<float>(world_size);
  return of_rank[0];
}

// The first element of a gradient that differs in a bit, "" if none does.
inline std::string differing_gradient(const nn::ModulePtr& module, const std::vector<std::vector<float>>& expected) {
  const auto parameters = nn::named_parameters(module);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = grad(parameters[i].tensor());
    if (!gradient.defined()) return parameters[i].path + " has no gradient";
    const auto doubles = to_doubles(gradient);
    for (std::size_t k = 0; k < doubles.size(); ++k)
      if (static_cast<float>(doubles[k]) != expected[i][k])
        return str(parameters[i].path, "[", k, "] is ", doubles[k], ", not ", expected[i][k]);
  }
  return "";
}

// The number of collectives of a kind in the log of this rank, from entry `from`.
inline int count(comm::Operation operation, comm::Family family, std::size_t from = 0) {
  int found = 0;
  for (std::size_t i = from; i < comm::log().size(); ++i)
    found += comm::log()[i].operation == operation && comm::log()[i].family == family;
  return found;
}

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace lockstep::parallel::testing
