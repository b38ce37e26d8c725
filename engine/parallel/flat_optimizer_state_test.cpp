// Optimizer state of flat-sharded models against that of the plain model, trained on the same inputs on every rank. On
// 1, 2, 4 and 8 ranks the mean of equal gradients has the bits of one.
#include "engine/parallel/flat_optimizer_state.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using OptimizerPtr = std::unique_ptr<optim::Optimizer>;

nn::ModulePtr stack(std::uint64_t seed) {
  RankContext::current().generator().seed(seed);
  auto model = nn::build("Sequential", {}, {},
                         {nn::build("MLP", {{5}, {}}, {}), nn::build("MLP", {{5}, {{"mult", 3}}}, {}),
                          nn::build("Linear", {{5, 5}, {}}, {})});
  nn::name_parameters(model);
  return model;
}

OptimizerPtr optimizer_of(const nn::ModulePtr& model, const char* type = "Adam") {
  optim::Options options;
  options.lr = 1e-2;
  if (std::string_view(type) == "SGD") options.momentum = 0.9;
  return optim::make_optimizer(type, {optim::group_of(nn::named_parameters(model), options)});
}

std::vector<double> train(const nn::ModulePtr& model, optim::Optimizer& optimizer, int from, int to) {
  std::vector<double> losses;
  for (int i = from; i < to; ++i) {
    optimizer.zero_grad();
    const Tensor off = ops::sub(model->call(rows(static_cast<std::uint64_t>(i), {3, 5})).tensor(), 1.0);
    const Tensor loss = ops::sum(ops::mul(off, off));
    backward({loss});
    optimizer.step();
    losses.push_back(to_doubles(loss)[0]);
  }
  return losses;
}

enum class Units { several, flat_slots, one, no_shard };
void shard(const nn::ModulePtr& model, Units units) {
  FlatShardOptions options;
  if (units != Units::one) options.unit_types = {"MLP"};
  options.original_parameters = units != Units::flat_slots;
  if (units == Units::no_shard) options.strategy = FlatStrategy::no_shard;
  flat_shard(model, options);
}
constexpr Units all_units[] = {Units::several, Units::flat_slots, Units::one, Units::no_shard};

std::vector<double> values(const Tensor& tensor) { return to_doubles(raw::contiguous(local_tensor(tensor))); }

void require_same(const OptimizerState& found, const OptimizerState& expected) {
  require(found.state.size() == expected.state.size(),
          str(found.state.size(), " entries, not ", expected.state.size()));
  require(found.groups[0].first == expected.groups[0].first, "the names of the group");
  for (std::size_t i = 0; i < found.state.size(); ++i) {
    const auto& [name, tensors] = found.state[i];
    require(name == expected.state[i].first, str(name, " in the place of ", expected.state[i].first));
    require(tensors.size() == expected.state[i].second.size(), str(name, " has ", tensors.size(), " tensors"));
    for (const auto& [key, tensor] : tensors) {
      const Tensor& other = expected.state[i].second.at(key);
      require(!tensor.is_sharded() && tensor.sizes() == other.sizes(),
              str(name, "/", key, " is ", describe_sharded(tensor)));
      require(values(tensor) == values(other), str("values of ", name, "/", key));
    }
  }
}

void on_all(const std::function<void(int world_size, Units, const char* type)>& body) {
  for (const int world_size : {1, 2, 4, 8})
    for (const Units units : all_units)
      for (const char* type : {"Adam", "SGD"})
        EXPECT_EQ(run(world_size, [&](int) { body(world_size, units, type); }), "")
            << world_size << " ranks, units " << static_cast<int>(units) << ", " << type;
}

TEST(FlatOptimizerState, FullIsThatOfThePlainOptimizer) {
  on_all([](int world_size, Units units, const char* type) {
    const nn::ModulePtr plain = stack(3), flat = stack(3);
    shard(flat, units);
    const OptimizerPtr reference = optimizer_of(plain, type), optimizer = optimizer_of(flat, type);
    require(optimizer_state_dict(*optimizer).state.empty(), "no state before the first step");
    train(plain, *reference, 0, 3);
    train(flat, *optimizer, 0, 3);
    const std::size_t before = comm::log().size();
    require_same(optimizer_state_dict(*optimizer), reference->state_dict());
    const int num_units = units == Units::one ? 1 : 3, num_keys = std::string_view(type) == "Adam" ? 2 : 1;
    require(count(comm::Operation::all_gather, comm::Family::data_parallel, before) ==
                (world_size == 1 || units == Units::no_shard ? 0 : num_units * num_keys),
            "one all-gather per unit and key");
  });
}

// Rows by ceiling division, as the parameters.
TEST(FlatOptimizerState, ShardedGivesRows) {
  for (const Units units : {Units::several, Units::flat_slots})
    for (const int world_size : {2, 4, 8})
      EXPECT_EQ(run(world_size,
                    [&](int rank) {
                      const nn::ModulePtr plain = stack(3), flat = stack(3);
                      shard(flat, units);
                      const OptimizerPtr reference = optimizer_of(plain), optimizer = optimizer_of(flat);
                      train(plain, *reference, 0, 2);
                      train(flat, *optimizer, 0, 2);
                      set_state_dict_type(flat, {StateDictType::sharded});
                      const OptimizerState found = optimizer_state_dict(*optimizer), all = reference->state_dict();
                      require(found.state.size() == all.state.size(), "entries");
                      for (std::size_t i = 0; i < found.state.size(); ++i)
                        for (const auto& [key, tensor] : found.state[i].second) {
                          const Tensor& whole = all.state[i].second.at(key);
                          if (key == "step") continue;
                          const std::int64_t rows = whole.size(0), each = (rows + world_size - 1) / world_size;
                          const std::int64_t begin = std::min(rows, rank * each), end = std::min(rows, begin + each);
                          require(tensor.layout()->placements == Placements{layout::shard(0)}, "Shard(0)");
                          require(values(tensor) == values(slice(whole, 0, begin, end)),
                                  found.state[i].first + "/" + key);
                        }
                    }),
                "")
          << world_size;
}

// The state goes from a model of any units into one of any other, which then trains as if nothing had happened.
TEST(FlatOptimizerState, TrainingGoesOnWithLoadedState) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded})
    for (const Units from : all_units)
      for (const Units to : all_units)
        EXPECT_EQ(run(4,
                      [&](int) {
                        if (type == StateDictType::sharded && (from == Units::no_shard) != (to == Units::no_shard))
                          return;
                        const nn::ModulePtr plain = stack(3), source = stack(3), target = stack(4);
                        shard(source, from);
                        shard(target, to);
                        const OptimizerPtr reference = optimizer_of(plain), saved = optimizer_of(source),
                                           loaded = optimizer_of(target);
                        train(plain, *reference, 0, 2);
                        train(source, *saved, 0, 2);
                        train(target, *loaded, 7, 8);  // state to overwrite
                        for (const nn::ModulePtr& model : {source, target}) set_state_dict_type(model, {type});
                        load_model_state_dict(target, model_state_dict(source));
                        load_optimizer_state_dict(*loaded, optimizer_state_dict(*saved));
                        const auto expected = train(plain, *reference, 2, 5), found = train(target, *loaded, 2, 5);
                        require(found == expected, str(found.back(), ", not ", expected.back()));
                      }),
                  "")
            << static_cast<int>(from) << " into " << static_cast<int>(to);
}

TEST(FlatOptimizerState, FrozenParametersHaveNone) {
  EXPECT_EQ(run(4,
                [](int) {
                  const nn::ModulePtr plain = stack(3), flat = stack(3);
                  for (const nn::ModulePtr& model : {plain, flat})
                    set_requires_grad(model->children[1].module->child("in_proj")->parameter_slot("weight")->tensor,
                                      false);
                  shard(flat, Units::several);
                  const OptimizerPtr reference = optimizer_of(plain), optimizer = optimizer_of(flat);
                  train(plain, *reference, 0, 2);
                  train(flat, *optimizer, 0, 2);
                  const OptimizerState state = optimizer_state_dict(*optimizer);
                  require_same(state, reference->state_dict());
                  for (const auto& [name, tensors] : state.state) require(name != "1.in_proj.weight", "a frozen one");
                  load_optimizer_state_dict(*optimizer, state);
                  require_same(optimizer_state_dict(*optimizer), reference->state_dict());
                }),
            "");
}

TEST(FlatOptimizerState, PositionsAreThoseOfThePlainOptimizer) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr plain = stack(3), flat = stack(3);
                  shard(flat, Units::flat_slots);
                  const OptimizerPtr reference = optimizer_of(plain), optimizer = optimizer_of(flat);
                  train(plain, *reference, 0, 2);
                  train(flat, *optimizer, 0, 2);
                  const OptimizerState state = optimizer_state_dict(*optimizer);
                  const OptimizerState positions = keyed_by_position(state);
                  require(positions.state[3].first == "3" && positions.groups[0].first.back() == "9", "positions");
                  require_same(positions, keyed_by_position(reference->state_dict()));
                  require_same(keyed_by_name(positions, original_names(*optimizer)), state);
                  require(error_of([&] {
                            keyed_by_name(positions, {"a", "b"});
                          }).find("positions 0 to 1") != std::string::npos,
                          "a position beyond the last");
                }),
            "");
}

TEST(FlatOptimizerState, RefusesStateThatDoesNotFit) {
  EXPECT_EQ(run(2,
                [](int) {
                  const auto holds = [](const std::string& message, const std::string& part) {
                    require(message.find(part) != std::string::npos, message + " has no " + part);
                  };
                  const nn::ModulePtr flat = stack(3), slots = stack(3);
                  shard(flat, Units::several);
                  shard(slots, Units::flat_slots);
                  const OptimizerPtr optimizer = optimizer_of(flat), other = optimizer_of(slots);
                  train(flat, *optimizer, 0, 1);
                  OptimizerState state = optimizer_state_dict(*optimizer);
                  OptimizerState wrong = state;
                  wrong.state[4].second["exp_avg"] = ones({2, 2}, DType::float32, {});
                  holds(error_of([&] { load_optimizer_state_dict(*optimizer, wrong); }),
                        "`1.in_proj.weight/exp_avg` is plain (2, 2), its place in the state is plain (15, 5)");
                  wrong = state;
                  wrong.state.erase(wrong.state.begin() + 5);
                  holds(error_of([&] { load_optimizer_state_dict(*other, wrong); }), "`1.in_proj.bias` has no state");
                  set_state_dict_type(flat, {StateDictType::sharded});
                  holds(error_of([&] { load_optimizer_state_dict(*optimizer, state); }), "plain (20, 5), its place");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::parallel
