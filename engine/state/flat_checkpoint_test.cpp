// Checkpoints of flat-sharded models and their optimizers, into and out of other shardings. The witness is the plain
// model after the same elementwise steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/parallel/flat_optimizer_state.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/tensor_parallel.hpp"
#include "engine/state/load.hpp"
#include "engine/state/reader.hpp"
#include "engine/state/save.hpp"
#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

using testing::require;
using testing::require_equal;
using testing::require_error;
using testing::run;
using testing::TemporaryFolder;

enum class Way { plain, fully_shard, units, one_unit, flat_slots, no_shard, hybrid, two_axes, fully_shard_two_axes };
struct Form {
  const char* name;
  Way way;
  int world_size;
};
const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"plain", Way::plain, 1},
      {"fully_shard", Way::fully_shard, 3},
      {"units", Way::units, 2},
      {"units on 8", Way::units, 8},
      {"one unit", Way::one_unit, 3},
      {"flat slots", Way::flat_slots, 4},
      {"no_shard", Way::no_shard, 2},
      {"hybrid", Way::hybrid, 4},
      {"over tensor parallelism", Way::two_axes, 4},
      {"fully_shard over tensor parallelism", Way::fully_shard_two_axes, 4},
  };
  return all;
}

struct Training {
  nn::ModulePtr model;
  std::unique_ptr<optim::Optimizer> optimizer;
  State state() { return {{"model", model}, {"optimizer", optimizer.get()}}; }
};

void style(const nn::ModulePtr& model, const DeviceMesh& tp) {
  const nn::ModulePtr mlp = model->children[1].module;
  parallel::tensor_parallel(model, tp,
                            {{"1.in_proj", mlp->child("in_proj"), parallel::Colwise{}},
                             {"1.out_proj", mlp->child("out_proj"), parallel::Rowwise{}}});
}

void shard(const nn::ModulePtr& model, Way way) {
  parallel::FlatShardOptions options;
  options.unit_types = {"MLP"};
  parallel::FullyShardOptions per_parameter;
  switch (way) {
    case Way::plain:
      return;
    case Way::fully_shard:
      return parallel::fully_shard({model});
    case Way::one_unit:
      options.unit_types.clear();
      break;
    case Way::flat_slots:
      options.original_parameters = false;
      break;
    case Way::no_shard:
      options.strategy = parallel::FlatStrategy::no_shard;
      break;
    case Way::hybrid:
      options.strategy = parallel::FlatStrategy::hybrid_shard;
      options.mesh = DeviceMesh({2, 2}, {"replicate", "shard"});
      break;
    case Way::two_axes:
    case Way::fully_shard_two_axes: {
      const DeviceMesh mesh({2, 2}, {"dp", "tp"});
      style(model, mesh.slice({"tp"}));
      options.mesh = per_parameter.mesh = mesh.slice({"dp"});
      if (way == Way::fully_shard_two_axes) return parallel::fully_shard({model}, per_parameter);
      break;
    }
    case Way::units:
      break;
  }
  parallel::flat_shard(model, options);
}

Training run_of(Way way, std::uint64_t seed) {
  RankContext::current().generator().seed(seed);
  Training made;
  made.model = nn::build("Sequential", {}, {},
                         {nn::build("Linear", {{7, 3}, {}}, {}), nn::build("MLP", {{5}, {{"mult", 3}}}, {}),
                          nn::build("MLP", {{3}, {}}, {})});
  nn::name_parameters(made.model);
  shard(made.model, way);
  optim::Options options;
  options.lr = 0.1;
  made.optimizer = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(made.model), options)});
  return made;
}

// The gradient of each element is its value, so a step is the same in every sharding.
void step(const Training& made) {
  const NoGrad no_grad;
  for (const nn::NamedParameter& entry : nn::named_parameters(made.model)) {
    const Tensor trained = entry.trained();
    if (trained.num_elements() == 0 && !trained.is_sharded()) continue;  // as reductions leave it
    set_grad(trained, sharded_like(raw::clone(local_tensor(detach(trained))), trained));
  }
  made.optimizer->step();
}

void require_state_of(const Training& found, const Training& expected) {
  const NoGrad no_grad;
  const nn::StateDict values = parallel::model_state_dict(found.model), plain = nn::state_dict(expected.model);
  require(values.size() == plain.size(), "entries of the model");
  for (std::size_t i = 0; i < values.size(); ++i)
    require_equal(full_tensor(values[i].second), plain[i].second, values[i].first);
  const auto state = parallel::optimizer_state_dict(*found.optimizer), whole = expected.optimizer->state_dict();
  require(state.state.size() == whole.state.size(), "entries of the optimizer");
  for (std::size_t i = 0; i < state.state.size(); ++i)
    for (const auto& [key, tensor] : state.state[i].second)
      require_equal(full_tensor(tensor), whole.state[i].second.at(key), state.state[i].first + "/" + key);
}

TEST(FlatCheckpoint, AnyShardingIntoAnyOther) {
  const TemporaryFolder folder;
  for (const Form& from : forms()) {
    const std::string path = folder / from.name;
    ASSERT_EQ(run(from.world_size,
                  [&](int) {
                    Training saved = run_of(from.way, 5);
                    step(saved);
                    step(saved);
                    const std::size_t before = comm::log().size();
                    save(saved.state(), path);
                    require(comm::log().size() == before, "a save makes no collective");
                  }),
              "")
        << from.name;
    for (const Form& to : forms())
      ASSERT_EQ(run(to.world_size,
                    [&](int) {
                      Training expected = run_of(Way::plain, 5);
                      step(expected);
                      step(expected);
                      Training loaded = run_of(to.way, 6);
                      const LoadReport report = load(loaded.state(), path);
                      require(report.bytes_read >= report.bytes_needed && report.bytes_needed > 0, "bytes are read");
                      require_state_of(loaded, expected);
                      step(loaded);
                      step(expected);
                      require_state_of(loaded, expected);
                    }),
                "")
          << from.name << " into " << to.name;
  }
}

// The chunks of the file tile each parameter: verify checks it. Their bytes are those of the values, without padding.
TEST(FlatCheckpoint, EveryValueIsWrittenOnce) {
  for (const Form& form : forms()) {
    const TemporaryFolder folder;
    const std::string path = folder / "saved";
    std::uint64_t values = 0;
    ASSERT_EQ(run(form.world_size,
                  [&](int rank) {
                    Training saved = run_of(form.way, 5);
                    const Training plain = run_of(Way::plain, 5);
                    save({{"model", saved.model}}, path);
                    if (rank != 0) return;
                    for (const auto& [name, tensor] : nn::state_dict(plain.model))
                      values += static_cast<std::uint64_t>(tensor.num_elements());
                  }),
              "")
        << form.name;
    std::uint64_t written = 0;
    const Reader reader(path, path);
    for (const auto& [key, tensor] : reader.index().tensors)
      for (const SavedChunk& chunk : tensor.chunks) written += static_cast<std::uint64_t>(chunk.box.num_elements());
    EXPECT_EQ(written, values) << form.name;
  }
}

// Buffers that compute in bfloat16 have their original type in a checkpoint, with the values that were computed with.
// It loads into a model before or after its first forward, and into a plain one.
TEST(FlatCheckpoint, BuffersHaveTheirOriginalType) {
  const TemporaryFolder folder;
  const std::string path = folder / "saved";
  const auto with_buffer = [](double value, bool casts) {
    RankContext::current().generator().seed(1);
    const nn::ModulePtr model = nn::build("Linear", {{3, 2}, {}}, {});
    model->add_buffer("shift", full({2}, value, DType::float32, {}));
    nn::name_parameters(model);
    parallel::FlatPrecision precision;
    if (casts) precision.buffer = DType::bfloat16;
    parallel::flat_shard(model, {.mixed_precision = precision});
    return model;
  };
  const auto run_once = [](const nn::ModulePtr& model) { model->call(ones({1, 3}, DType::float32, {})); };
  const auto expect_shift = [](const nn::ModulePtr& model, DType type, double value) {
    const Tensor& shift = model->buffers[0].tensor;
    require(shift.dtype() == type && to_doubles(shift) == std::vector<double>{value, value}, describe_sharded(shift));
  };
  ASSERT_EQ(run(2,
                [&](int) {
                  const nn::ModulePtr model = with_buffer(1.0 + 1.0 / 1024, true);  // bfloat16 rounds it to 1
                  run_once(model);
                  save({{"model", model}}, path);
                  expect_shift(model, DType::bfloat16, 1.0);
                }),
            "");
  EXPECT_EQ(Reader(path, path).index().tensors.at("model.shift").dtype, DType::float32);
  EXPECT_EQ(run(3,
                [&](int) {
                  const nn::ModulePtr fresh = with_buffer(5.0, true), computed = with_buffer(5.0, true);
                  const nn::ModulePtr full_type = with_buffer(5.0, false);
                  run_once(computed);
                  for (const nn::ModulePtr& model : {fresh, computed, full_type}) load({{"model", model}}, path);
                  expect_shift(computed, DType::bfloat16, 1.0);
                  expect_shift(full_type, DType::float32, 1.0);
                  expect_shift(fresh, DType::float32, 1.0);
                  run_once(fresh);
                  expect_shift(fresh, DType::bfloat16, 1.0);
                }),
            "");
}

// One flat parameter has one state, so the checkpoint must have the state of all its parameters, or of none.
TEST(FlatCheckpoint, RefusesStateOfSomeParametersOfAFlatOne) {
  const TemporaryFolder folder;
  const std::string path = folder / "saved";
  EXPECT_EQ(run(2,
                [&](int) {
                  Training saved = run_of(Way::units, 5);
                  const auto frozen = saved.model->children[1].module->child("in_proj")->parameter_slot("bias");
                  set_requires_grad(frozen->tensor, false);
                  for (const nn::NamedParameter& entry : nn::named_parameters(saved.model))
                    if (requires_grad(entry.trained()) && entry.trained().num_elements() > 0)
                      set_grad(entry.trained(), raw::clone(detach(entry.trained())));
                  saved.optimizer->step();
                  save(saved.state(), path);
                  Training loaded = run_of(Way::flat_slots, 6);
                  require_error([&] { load(loaded.state(), path); }, "different step counts");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::state
