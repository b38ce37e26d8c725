// Every operation of the registry on sharded operands: for each operand every placement, on one and on two mesh axes.
// Either values, gradients and random state are those of the operation on full tensors, or it is refused by an Error
// that names it and gives a remedy. The table of accepted placements is engine/mesh/sharding_rules.md, which this test
// compares; LOCKSTEP_WRITE_REFERENCE=1 writes it.
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/autograd/op_registry.hpp"
#include "engine/autograd/ops_sharded.hpp"
#include "engine/autograd/ops_sharded_testing.hpp"

namespace lockstep {
namespace {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;
using layout::partial;
using layout::Placement;
using layout::replicate;
using layout::shard;
using layout::strided_shard;
using sharded_testing::values;
using ::testing::Each;

// One placement list per operand.
using Choice = std::vector<Placements>;

std::string short_text(const Placement& placement) {
  if (placement.is_partial()) return "P";
  if (placement.is_replicate()) return "R";
  return str(placement.kind == Placement::Kind::shard ? "S" : "Z", placement.dim);
}
std::string short_text(const Placements& placements) {
  std::string text;
  for (const Placement& placement : placements) text += short_text(placement);
  return text;
}
std::string short_text(const Choice& choice) {
  std::string text;
  for (const Placements& placements : choice) text += str(text.empty() ? "" : ",", short_text(placements));
  return text;
}

std::vector<Placement> placements_of(int num_dims) {
  std::vector<Placement> all = {replicate(), partial()};
  for (int dim = 0; dim < num_dims; ++dim) all.push_back(shard(dim));
  if (num_dims > 0) all.push_back(strided_shard(0, 2));
  return all;
}

// All choices for one mesh axis.
std::vector<Choice> all_choices(const ops::OpVariant& variant) {
  std::vector<Choice> choices = {{}};
  for (const ops::OpInput& input : variant.inputs) {
    std::vector<Choice> longer;
    for (const Choice& choice : choices)
      for (const Placement& placement : placements_of(input.sizes.size())) {
        longer.push_back(choice);
        longer.back().push_back({placement});
      }
    choices = std::move(longer);
  }
  return choices;
}

// Random choices for two mesh axes. Operands often share a placement, because most random ones do not match.
std::vector<Choice> some_choices(const ops::OpVariant& variant, int count, Generator& generator) {
  const auto below = [&generator](std::size_t n) {
    return static_cast<std::size_t>(generator.integer(0, static_cast<std::int64_t>(n)));
  };
  std::vector<Choice> choices;
  std::set<std::string> seen;
  for (int i = 0; i < count; ++i) {
    Choice choice(variant.inputs.size());
    for (int axis = 0; axis < 2; ++axis) {
      const std::vector<Placement> wide = placements_of(variant.inputs[0].sizes.size());
      const Placement shared = wide[below(wide.size())];
      for (std::size_t k = 0; k < choice.size(); ++k) {
        const std::vector<Placement> own = placements_of(variant.inputs[k].sizes.size());
        const bool fits = std::find(own.begin(), own.end(), shared) != own.end();
        const std::size_t way = below(4);
        choice[k].push_back(way < 2 && fits ? shared : way == 2 ? replicate() : own[below(own.size())]);
      }
    }
    if (seen.insert(short_text(choice)).second) choices.push_back(std::move(choice));
  }
  return choices;
}

bool is_in_place(std::string_view name) { return name.back() == '_'; }

// The operation on full tensors: inputs, result and gradients, in float64.
struct Expected {
  std::vector<Tensor> inputs;
  Tensor result;
  std::vector<Tensor> gradients;
  Generator::State random;
};

std::vector<Tensor> make_inputs(const ops::OpVariant& variant) {
  Generator generator;
  generator.seed(3);
  std::vector<Tensor> inputs;
  for (const ops::OpInput& input : variant.inputs)
    inputs.push_back(ops::make_input(input, DType::float64, {}, generator));
  return inputs;
}

void record_gradients(const ops::OpCase& op, const ops::OpVariant& variant, const std::vector<Tensor>& inputs) {
  if (!op.differentiable || !op.differentiable_if_sharded || is_in_place(op.name)) return;
  ops::require_gradients(variant, inputs);
}

// The gradient of the result.
Tensor weights_for(const Tensor& result) { return ops::cast(values(result.sizes(), 1.1), result.dtype()); }

Expected expect(const ops::OpCase& op, const ops::OpVariant& variant) {
  Expected made;
  made.inputs = make_inputs(variant);
  record_gradients(op, variant, made.inputs);
  RankContext::current().generator().seed(5);
  const Tensor result = variant.run(made.inputs);
  if (requires_grad(result)) backward({result}, {weights_for(result)});
  made.result = detach(result);
  made.random = RankContext::current().generator().state();
  for (Tensor& input : made.inputs) {
    made.gradients.push_back(grad(input));
    input = detach(input);
  }
  return made;
}

void require_near(const Tensor& a, const Tensor& b, double tolerance, const std::string& what) {
  require(a.dtype() == b.dtype() && a.sizes() == b.sizes(), str(what, ": ", describe(a), " for ", describe(b)));
  const double unit = a.dtype() == DType::float32 ? 1e-6 : 1e-12;
  const std::vector<double> x = to_doubles(a), y = to_doubles(b);
  for (std::size_t i = 0; i < x.size(); ++i)
    require(std::fabs(x[i] - y[i]) <= tolerance * unit * (1.0 + std::fabs(y[i])), str(what, ": ", x[i], " for ", y[i]));
}

// Whether the operation accepts the placements; throws where it accepts and is wrong, or refuses badly.
bool accepts(const ops::OpCase& op, const ops::OpVariant& variant, const Expected& expected, const DeviceMesh& mesh,
             const Choice& choice, Placements& result_placements) {
  const std::string what = str(op.name, ", ", variant.name, ", ", short_text(choice), " on ", mesh.shape().text());
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < choice.size(); ++i) inputs.push_back(distribute(expected.inputs[i], mesh, choice[i]));
  record_gradients(op, variant, inputs);
  RankContext::current().generator().seed(5);
  Tensor result;
  try {
    result = variant.run(inputs);
  } catch (const InternalError&) {
    throw;
  } catch (const CollectiveError&) {
    throw;
  } catch (const Error& refused) {
    const std::string text = refused.message();
    const bool names_it = std::any_of(std::begin(ops::operation_names), std::end(ops::operation_names),
                                      [&](std::string_view name) { return text.rfind(str(name, ": "), 0) == 0; });
    require(names_it && !refused.remedy().empty(), str(what, ": no name or no remedy: ", refused.what()));
    require(text.find(" on ") != std::string::npos, str(what, ": no layout in: ", text));
    return false;
  }
  require(result.is_sharded(), str(what, ": the result is plain"));
  result_placements = result.layout()->placements;
  const Generator::State& random = RankContext::current().generator().state();
  require(random.engine == expected.random.engine, str(what, ": random state"));
  require_near(full_tensor(detach(result)), expected.result, op.tolerance, what);
  if (!requires_grad(result)) return true;
  const LayoutPtr wanted = layout::gradient_layout(result.layout());
  backward({result}, {distribute(weights_for(expected.result), mesh, wanted->placements)});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor gradient = grad(inputs[i]);
    require(gradient.defined() == expected.gradients[i].defined(), str(what, ": gradient ", i, " is missing or extra"));
    if (!gradient.defined()) continue;
    require(*gradient.layout() == *layout::gradient_layout(inputs[i].layout()), str(what, ": its layout"));
    require_near(full_tensor(gradient), expected.gradients[i], op.tolerance, str(what, ": gradient ", i));
  }
  return true;
}

bool is_small(const ops::OpVariant& variant) {
  std::int64_t count = 0;
  for (const ops::OpInput& input : variant.inputs) count += num_elements(input.sizes);
  return count <= 300;
}

struct Tally {
  int accepted = 0, tried = 0;
};
struct Findings {
  std::map<std::string, Tally> tallies;       // per operation
  std::map<std::string, std::string> tables;  // per operation: the accepted placements of its first variant
};

bool is_valid(const Choice& choice, const ops::OpVariant& variant, const DeviceMesh& mesh) {
  for (std::size_t i = 0; i < choice.size(); ++i) {
    try {
      layout::check({mesh.shape(), choice[i], variant.inputs[i].sizes});
    } catch (const Error&) {
      return false;
    }
  }
  return true;
}

void try_variant(const ops::OpCase& op, const ops::OpVariant& variant, const DeviceMesh& mesh,
                 const std::vector<Choice>& choices, Findings& findings) {
  const Expected expected = expect(op, variant);
  const std::string name(op.name);
  std::string table;
  for (const Choice& choice : choices) {
    if (!is_valid(choice, variant, mesh)) continue;
    Placements result;
    const bool accepted = accepts(op, variant, expected, mesh, choice, result);
    findings.tallies[name].tried += 1;
    findings.tallies[name].accepted += accepted;
    if (accepted) table += str(table.empty() ? "" : "; ", short_text(choice), " -> ", short_text(result));
  }
  if (!findings.tables.count(name)) {
    std::string sizes;
    for (const ops::OpInput& input : variant.inputs) sizes += str(sizes.empty() ? "" : " ", to_text(input.sizes));
    findings.tables[name] = str(sizes, " | ", table.empty() ? "none" : table);
  }
}

Findings try_all(const std::vector<int>& mesh_sizes) {
  int num_ranks = 1;
  for (const int size : mesh_sizes) num_ranks *= size;
  Findings found;
  const auto failures = comm::testing_ranks::run_ranks(num_ranks, Kind::threads, [&](int rank) {
    const DeviceMesh mesh(mesh_sizes);
    Findings mine;
    Generator generator;
    generator.seed(7);
    for (const ops::OpCase& op : ops::op_registry())
      for (const ops::OpVariant& variant : op.variants)
        if (is_small(variant))
          try_variant(op, variant, mesh,
                      mesh_sizes.size() == 1 ? all_choices(variant) : some_choices(variant, 40, generator), mine);
    if (rank == 0) found = std::move(mine);
  });
  EXPECT_THAT(failures, Each(""));
  return found;
}

// Operations with equal findings share a row.
std::string rows(const Findings& findings) {
  std::map<std::string, std::string> names_of;
  std::vector<std::string> order;
  for (const std::string_view name : ops::operation_names) {
    const std::string& table = findings.tables.at(std::string(name));
    std::string& names = names_of[table];
    if (names.empty()) order.push_back(table);
    names += str(names.empty() ? "" : ", ", name);
  }
  std::string text = "| operations | operands | accepted -> result |\n|---|---|---|\n";
  for (const std::string& table : order) text += str("| ", names_of[table], " | ", table, " |\n");
  return text;
}

const char* const introduction =
    "# Operations on sharded operands\n\n"
    "`engine/autograd/ops_sharded_registry_test.cpp` writes this page (LOCKSTEP_WRITE_REFERENCE=1) and compares it. "
    "The test "
    "calls\n"
    "every operation of the registry with every placement of each operand, and compares values and gradients with the\n"
    "operation on full tensors.\n\n"
    "The table shows one mesh axis. On a mesh of several axes each axis follows its row. R: Replicate, P: "
    "Partial(sum),\n"
    "S0: Shard(0), Z0: StridedShard(0, 2). An operation refuses all other placements by an error with a remedy. It "
    "reduces\n"
    "a partial operand first, by one all-reduce, unless its result is partial or it is a copy.\n\n";

std::string counts(const std::vector<std::pair<std::string, Findings>>& all) {
  std::string text =
      "\n## Placements tried\n\nAccepted / tried, over all variants of the registry up to 300 elements; "
      "random placements on two axes.\n\n| operation |";
  for (const auto& [mesh, findings] : all) text += str(" ", mesh, " |");
  text += "\n|---|";
  for (std::size_t i = 0; i < all.size(); ++i) text += "---|";
  text += "\n";
  for (const std::string_view name : ops::operation_names) {
    text += str("| ", name, " |");
    for (const auto& [mesh, findings] : all) {
      const Tally& tally = findings.tallies.at(std::string(name));
      text += str(" ", tally.accepted, " / ", tally.tried, " |");
    }
    text += "\n";
  }
  return text;
}

TEST(ShardedRegistry, OperationsAgreeWithFullTensorsOrRefuse) {
  const std::vector<std::pair<std::string, Findings>> all = {
      {"2 ranks", try_all({2})}, {"3 ranks", try_all({3})}, {"2 x 2 ranks", try_all({2, 2})}};
  if (HasFailure()) return;
  const std::string text = introduction + rows(all[0].second) + counts(all);
  const std::string path = LOCKSTEP_SOURCE_DIR "/engine/mesh/sharding_rules.md";
  if (const char* update = std::getenv("LOCKSTEP_WRITE_REFERENCE"); update && *update) std::ofstream(path) << text;
  std::stringstream stored;
  stored << std::ifstream(path).rdbuf();
  EXPECT_EQ(stored.str(), text) << "LOCKSTEP_WRITE_REFERENCE=1 writes " << path;
}

}  // namespace
}  // namespace lockstep
