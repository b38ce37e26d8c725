// State dicts of models with flat-sharded units. The witnesses are the plain model, rows and elements counted by hand,
// and fully_shard on the same model.
#include "engine/parallel/flat_state_dict.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/flat_summon.hpp"
#include "engine/parallel/tensor_parallel_testing.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;

std::vector<float> floats(const Tensor& tensor) {
  const std::vector<double> doubles = to_doubles(raw::contiguous(local_tensor(tensor)));
  return {doubles.begin(), doubles.end()};
}

// A Linear of 3 x 2, a full-sharded MLP and a replicated MLP of odd sizes, as one model.
nn::ModulePtr mixed(std::uint64_t seed) {
  RankContext::current().generator().seed(seed);
  auto model = nn::build("Sequential", {}, {},
                         {nn::build("Linear", {{3, 2}, {}}, {}), nn::build("MLP", {{5}, {{"mult", 3}}}, {}),
                          nn::build("MLP", {{3}, {}}, {})});
  nn::name_parameters(model);
  return model;
}

enum class Units { of_children, one, flat_slots };
void shard(const nn::ModulePtr& model, Units units) {
  if (units == Units::one) {
    flat_shard(model);
    return;
  }
  flat_shard(model->children[1].module, {.original_parameters = units != Units::flat_slots});
  flat_shard(model->children[2].module, {.strategy = FlatStrategy::no_shard});
}

struct Setting {
  int world_size;
  Units units;
};
std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const int world_size : {1, 2, 3, 4, 8})
    for (const Units units : {Units::of_children, Units::one, Units::flat_slots}) all.push_back({world_size, units});
  return all;
}
void on_all(const std::function<void(int rank, const Setting&)>& body) {
  for (const Setting& one : settings())
    EXPECT_EQ(run(one.world_size, [&](int rank) { body(rank, one); }), "")
        << one.world_size << " ranks, way " << static_cast<int>(one.units);
}

void require_same(const nn::StateDict& found, const nn::StateDict& expected) {
  require(found.size() == expected.size(), str(found.size(), " entries, not ", expected.size()));
  for (std::size_t i = 0; i < found.size(); ++i) {
    require(found[i].first == expected[i].first, str(found[i].first, " in the place of ", expected[i].first));
    require(!found[i].second.is_sharded() && found[i].second.sizes() == expected[i].second.sizes(),
            str(found[i].first, " is ", describe_sharded(found[i].second)));
    require(floats(found[i].second) == floats(expected[i].second), str("values of ", found[i].first));
  }
}

TEST(FlatStateDict, FullIsThatOfThePlainModel) {
  on_all([](int, const Setting& one) {
    const nn::ModulePtr plain = mixed(7), model = mixed(7);
    shard(model, one.units);
    const std::size_t before = comm::log().size();
    require_same(model_state_dict(model), nn::state_dict(plain));
    require(count(comm::Operation::all_gather, comm::Family::data_parallel, before) == (one.world_size > 1 ? 1 : 0),
            "one all-gather per unit that shards");
  });
}

// Rows by ceiling division: rank r of W has rows r*c .. r*c+c, c = ceil(rows / W).
TEST(FlatStateDict, ShardedGivesRowsOfThePlainModel) {
  on_all([](int rank, const Setting& one) {
    const nn::ModulePtr plain = mixed(7), model = mixed(7);
    shard(model, one.units);
    set_state_dict_type(model, {StateDictType::sharded});
    const nn::StateDict found = model_state_dict(model), expected = nn::state_dict(plain);
    require(found.size() == expected.size(), "other entries");
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto& [name, tensor] = found[i];
      const Tensor& whole = expected[i].second;
      require(name == expected[i].first, name + " is out of order");
      const bool sharded = one.world_size > 1 && (one.units == Units::one || name.starts_with("1."));
      require(tensor.is_sharded() == sharded, str(name, " is ", describe_sharded(tensor)));
      const std::int64_t rows = whole.size(0), per_rank = sharded ? (rows + one.world_size - 1) / one.world_size : rows;
      const std::int64_t begin = sharded ? std::min(rows, rank * per_rank) : 0, end = std::min(rows, begin + per_rank);
      require(floats(tensor) == floats(slice(whole, 0, begin, end)), str("values of ", name));
      if (sharded) require(tensor.layout()->placements == Placements{layout::shard(0)}, "Shard(0)");
    }
  });
}

// Without alignment the flat parameter is all elements one after the other; rank r has the r-th of W equal parts.
TEST(FlatStateDict, LocalGivesTheChunkOfTheUnit) {
  for (const int world_size : {2, 3, 4, 8})
    EXPECT_EQ(run(world_size,
                  [&](int rank) {
                    const nn::ModulePtr plain = mixed(7), model = mixed(7);
                    shard(model, Units::flat_slots);
                    set_state_dict_type(model, {StateDictType::local});
                    std::vector<float> all;
                    for (const auto& [name, tensor] : nn::state_dict(plain->children[1].module))
                      for (const float value : floats(tensor)) all.push_back(value);
                    const std::size_t per_rank =
                        (all.size() + static_cast<std::size_t>(world_size) - 1) / static_cast<std::size_t>(world_size);
                    const std::size_t begin = std::min(all.size(), static_cast<std::size_t>(rank) * per_rank);
                    const std::size_t end = std::min(all.size(), begin + per_rank);
                    std::vector<std::string> names;
                    for (const auto& [name, tensor] : model_state_dict(model)) {
                      names.push_back(name);
                      if (name == "1._flat_param")
                        require(floats(tensor) == std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                                                     all.begin() + static_cast<std::ptrdiff_t>(end)),
                                "the elements of this rank");
                    }
                    require(names == std::vector<std::string>{"0.weight", "0.bias", "1._flat_param", "2.in_proj.weight",
                                                              "2.in_proj.bias", "2.out_proj.weight", "2.out_proj.bias"},
                            "the names");
                  }),
              "")
        << world_size;
}

TEST(FlatStateDict, EveryTypeIsLoadedAsItWasSaved) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded, StateDictType::local})
    on_all([type](int, const Setting& one) {
      const nn::ModulePtr expected = mixed(8), from = mixed(8), to = mixed(9);
      shard(from, one.units);
      shard(to, one.units);
      set_state_dict_type(from, {type});
      set_state_dict_type(to, {type});
      require(state_dict_settings(to).type == type, "the type can be read back");
      load_model_state_dict(to, model_state_dict(from));
      set_state_dict_type(to, {StateDictType::full});
      require_same(model_state_dict(to), nn::state_dict(expected));
    });
}

// Values of a unit are written to the shard, so a forward after the load computes with them.
TEST(FlatStateDict, ForwardComputesWithLoadedValues) {
  EXPECT_EQ(run(3,
                [](int) {
                  const nn::ModulePtr expected = mixed(8)->children[1].module, to = mixed(9)->children[1].module;
                  flat_shard(to, {.strategy = FlatStrategy::shard_grad_op});
                  const Tensor x = rows(1, {2, 5});
                  {
                    const NoGrad no_grad;
                    to->call(x);  // leaves the root unsharded
                  }
                  load_model_state_dict(to, nn::state_dict(expected));
                  const NoGrad no_grad;
                  require(floats(to->call(x).tensor()) == floats(expected->call(x).tensor()), "the same bits");
                }),
            "");
}

TEST(FlatStateDict, HybridUnitsShardWithinTheirReplicas) {
  EXPECT_EQ(run(4,
                [](int rank) {
                  const nn::ModulePtr plain = mixed(7), model = mixed(7);
                  flat_shard(model, {.mesh = DeviceMesh({2, 2}, {"replicate", "shard"}),
                                     .strategy = FlatStrategy::hybrid_shard});
                  require_same(model_state_dict(model), nn::state_dict(plain));
                  set_state_dict_type(model, {StateDictType::sharded});
                  for (const auto& [name, tensor] : model_state_dict(model)) {
                    require(tensor.layout()->placements == Placements{layout::replicate(), layout::shard(0)}, name);
                    if (name != "0.weight") continue;  // 2 rows over 2 shards
                    const Tensor whole = nn::state_dict(plain)[0].second;
                    require(floats(tensor) == floats(slice(whole, 0, rank % 2, rank % 2 + 1)), "a row each");
                  }
                }),
            "");
}

// Tensor parallelism below: the sharded form has the layouts and the values of fully_shard on the same model.
TEST(FlatStateDict, OnTwoAxesItIsThatOfFullyShard) {
  EXPECT_EQ(run(4,
                [](int) {
                  const DeviceMesh mesh({2, 2}, {"dp", "tp"});
                  const auto styled = [&mesh](std::uint64_t seed) {
                    const nn::ModulePtr model = mixed(seed)->children[1].module;
                    tensor_parallel(model, mesh.slice({"tp"}),
                                    {{"in_proj", model->child("in_proj"), Colwise{}},
                                     {"out_proj", model->child("out_proj"), Rowwise{}}});
                    return model;
                  };
                  const nn::ModulePtr plain = mixed(7)->children[1].module, model = styled(7), other = styled(7);
                  flat_shard(model, {.mesh = mesh.slice({"dp"})});
                  FullyShardOptions options;
                  options.mesh = mesh.slice({"dp"});
                  fully_shard({other}, options);
                  require_same(model_state_dict(model), nn::state_dict(plain));
                  set_state_dict_type(model, {StateDictType::sharded});
                  const nn::StateDict found = model_state_dict(model), expected = nn::state_dict(other);
                  for (std::size_t i = 0; i < found.size(); ++i) {
                    require(*found[i].second.layout() == *expected[i].second.layout(),
                            describe_sharded(found[i].second) + " for " + describe_sharded(expected[i].second));
                    require(floats(found[i].second) == floats(expected[i].second), "values of " + found[i].first);
                  }
                  const nn::ModulePtr from_shards = styled(9), from_full = styled(10);
                  for (const nn::ModulePtr& to : {from_shards, from_full}) flat_shard(to, {.mesh = mesh.slice({"dp"})});
                  set_state_dict_type(from_shards, {StateDictType::sharded});
                  load_model_state_dict(from_shards, expected);
                  set_state_dict_type(from_shards, {StateDictType::full});
                  load_model_state_dict(from_full, nn::state_dict(plain));
                  require_same(model_state_dict(from_shards), nn::state_dict(plain));
                  require_same(model_state_dict(from_full), nn::state_dict(plain));
                }),
            "");
}

TEST(FlatStateDict, FirstRankAloneKeepsIt) {
  EXPECT_EQ(run(2,
                [](int rank) {
                  const nn::ModulePtr model = mixed(7);
                  shard(model, Units::of_children);
                  set_state_dict_type(model, {StateDictType::full, true, true});
                  std::vector<std::string> names;
                  for (const auto& [name, tensor] : model_state_dict(model)) names.push_back(name.substr(0, 2));
                  const std::vector<std::string> all{"0.", "0.", "1.", "1.", "1.", "1.", "2.", "2.", "2.", "2."};
                  const std::vector<std::string> outside{"0.", "0.", "2.", "2.", "2.", "2."};
                  require(names == (rank == 0 ? all : outside), "entries");
                }),
            "");
}

// bfloat16 has 7 bits after the point: 1 + 2^-10 becomes 1, and 1 + 3 * 2^-8 is halfway to 1 + 2^-6, which is even.
const std::vector<float> full_precision{1.0F + 1.0F / 1024, 1.0F + 3.0F / 256, -0.5F}, rounded{1.0F, 1.015625F, -0.5F};

Tensor of_values(const std::vector<float>& values) {
  const Tensor made = zeros({static_cast<std::int64_t>(values.size())}, DType::float32, {});
  for (std::size_t i = 0; i < values.size(); ++i) raw::fill_(select(made, 0, static_cast<std::int64_t>(i)), values[i]);
  return made;
}

// Buffers compute in bfloat16 from the first forward on. State dicts give and take the original type.
TEST(FlatStateDict, BuffersHaveTheirOriginalType) {
  for (const StateDictType type : {StateDictType::full, StateDictType::sharded, StateDictType::local})
    EXPECT_EQ(run(2,
                  [type](int) {
                    const nn::ModulePtr model = built("Linear", 1, {{3, 2}, {}});
                    model->add_buffer("shift", of_values(full_precision));
                    model->add_buffer("steps", full({1}, 7.0, DType::int64, {}));
                    flat_shard(model, {.mixed_precision = {.buffer = DType::bfloat16}});
                    set_state_dict_type(model, {type});
                    const auto shift_in = [](const nn::StateDict& state) {
                      for (const auto& [name, tensor] : state)
                        if (name == "shift") {
                          require(tensor.dtype() == DType::float32, "the type of the entry");
                          return floats(tensor);
                        }
                      return std::vector<float>{};
                    };
                    require(shift_in(model_state_dict(model)) == full_precision, "before the first forward");
                    model->call(rows(1, {2, 3}));
                    const Tensor& shift = model->buffers[0].tensor;
                    require(shift.dtype() == DType::bfloat16 && floats(shift) == rounded, "it computes in bfloat16");
                    nn::StateDict state = model_state_dict(model);
                    require(shift_in(state) == rounded, "after it");
                    for (auto& [name, tensor] : state)
                      if (name == "shift") tensor = raw::mul(of_values(full_precision), 2.0);
                    load_model_state_dict(model, state);
                    require(shift.dtype() == DType::bfloat16, "a load keeps the type of the computation");
                    require(floats(shift) == std::vector<float>{2.0F, 2.03125F, -1.0F}, "and rounds the values");
                    require(model->buffers[1].tensor.dtype() == DType::int64, "integers stay");
                    for (const StateDictTarget& target : state_dict_targets(model))
                      if (target.form.path == "shift") require(target.dtype == DType::float32, "the type to load");
                  }),
              "")
        << name_of(type);
}

TEST(FlatStateDict, ErrorsNameTheKeyAndBothSizes) {
  EXPECT_EQ(
      run(2,
          [](int) {
            using ::testing::HasSubstr;
            const auto holds = [](const std::string& message, const std::string& part) {
              require(message.find(part) != std::string::npos, message + " has no " + part);
            };
            const nn::ModulePtr model = mixed(7);
            holds(error_of([&] { set_state_dict_type(model, {StateDictType::sharded}); }), "no flat-sharded unit");
            shard(model, Units::of_children);
            nn::StateDict state = model_state_dict(model);
            state[2].second = ones({4, 5}, DType::float32, {});
            holds(error_of([&] { load_model_state_dict(model, state); }),
                  "size mismatch for 1.in_proj.weight ((4, 5) into (15, 5))");
            state.erase(state.begin() + 2);
            holds(error_of([&] { load_model_state_dict(model, state); }),
                  "Missing key(s) in state_dict: 1.in_proj.weight");
            require(load_model_state_dict(model, state, false).missing == std::vector<std::string>{"1.in_proj.weight"},
                    "missing entries are reported");
            const nn::StateDict full = model_state_dict(model);
            set_state_dict_type(model, {StateDictType::sharded});
            holds(error_of([&] { load_model_state_dict(model, full); }),
                  "1.in_proj.weight (plain (15, 5) into (15, 5) as (Shard(0))");
            holds(error_of([&] { load_model_state_dict(model, model_state_dict(model), true, true); }), "`assign`");
            holds(error_of([&] {
                    set_state_dict_type(model, {StateDictType::sharded, false, true});
                  }),
                  "rank0_only goes with full");
            set_state_dict_type(model->children[1].module, {StateDictType::full});
            holds(error_of([&] { model_state_dict(model); }),
                  "All FSDP modules must have the same state dict settings");
            SummonedParameters summoned(model, {});
            holds(error_of([&] { model_state_dict(model->children[1].module); }), "already unsharding parameters");
          }),
      "");
}

}  // namespace
}  // namespace lockstep::parallel
