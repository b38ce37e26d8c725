#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/optim/schedule.hpp"
#include "engine/state/format.hpp"
#include "engine/state/load.hpp"
#include "engine/state/save.hpp"
#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

using testing::counting;
using testing::error_of;
using testing::Kind;
using testing::require;
using testing::require_equal;
using testing::require_error;
using testing::run;
using testing::TemporaryFolder;

using layout::replicate;
using layout::shard;
using layout::strided_shard;

struct Form {
  std::vector<int> mesh;
  Placements placements;  // empty: a plain tensor
};
const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {{1}, {}},
      {{2}, {shard(0)}},
      {{4}, {shard(1)}},
      {{3}, {shard(0)}},
      {{2, 2}, {replicate(), shard(0)}},
      {{2, 2}, {strided_shard(0, 2), shard(0)}},
      {{2, 2}, {strided_shard(1, 2), replicate()}},
      {{4}, {}},
  };
  return all;
}
int ranks_of(const Form& form) {
  int ranks = 1;
  for (const int size : form.mesh) ranks *= size;
  return ranks;
}
Tensor in_form(const Tensor& full, const Form& form) {
  return form.placements.empty() ? raw::clone(full) : distribute(full, DeviceMesh(form.mesh), form.placements);
}
Tensor expected_local(const Tensor& full, const Tensor& like) {
  return like.is_sharded() ? local_shard_of(full, *like.layout()) : full;
}

TEST(SaveLoad, AnyFormIntoAnyOther) {
  const TemporaryFolder folder;
  const std::vector<std::pair<Dims, DType>> tensors = {
      {{9, 4}, DType::float32}, {{5, 3}, DType::bfloat16}, {{3, 2, 7}, DType::int64}, {{2, 2}, DType::float64}};
  const auto state_of = [&](const Form& form, double start) {
    State state;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      state.push_back({str("t", i), in_form(counting(tensors[i].first, start, tensors[i].second), form)});
    return state;
  };
  for (std::size_t i = 0; i < forms().size(); ++i) {
    const std::string path = folder / str("from-", i);
    ASSERT_EQ(run(ranks_of(forms()[i]), [&](int) { save(state_of(forms()[i], 1.0), path); }), "");
    for (const Form& to : forms())
      ASSERT_EQ(run(ranks_of(to),
                    [&](int) {
                      const State state = state_of(to, 100.0);
                      const LoadReport report = load(state, path);
                      std::uint64_t needed = 0;
                      for (std::size_t t = 0; t < tensors.size(); ++t) {
                        const Tensor& tensor = std::get<Tensor>(state[t].object);
                        const Tensor full = counting(tensors[t].first, 1.0, tensors[t].second);
                        require_equal(local_tensor(tensor), expected_local(full, tensor), str("t", t));
                        needed += static_cast<std::uint64_t>(local_tensor(tensor).num_bytes());
                      }
                      require(report.bytes_needed == needed && report.bytes_read >= needed, "the bytes read");
                    }),
                "")
          << "from form " << i;
  }
}

// A model and its optimizer after some steps.
struct Trained {
  nn::ModulePtr model;
  std::unique_ptr<optim::Optimizer> optimizer;
  Trained(const char* type, double lr, std::uint64_t seed) {
    RankContext::current().generator().seed(seed);
    model = nn::build("Linear", {{5, 3}, {}}, {});
    nn::name_parameters(model);
    optim::Options options;
    options.lr = lr;
    options.momentum = std::string_view(type) == "SGD" ? 0.5 : 0.0;
    optimizer = optim::make_optimizer(type, {optim::group_of(nn::named_parameters(model), options)});
  }
  void step(double scale) {
    for (const nn::NamedParameter& parameter : nn::named_parameters(model))
      set_grad(parameter.trained(), raw::mul(counting(parameter.trained().sizes(), 1.0), scale));
    optimizer->step();
  }
  State state() { return {{"model", model}, {"optimizer", optimizer.get()}}; }
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    for (const auto& [name, tensor] : nn::state_dict(model))
      for (const std::byte byte : to_bytes(tensor)) all.push_back(byte);
    return all;
  }
};

TEST(SaveLoad, TrainingGoesOnWithTheSameBits) {
  const TemporaryFolder folder;
  for (const char* type : {"SGD", "Adam", "AdamW"})
    for (const bool is_used : {false, true})
      EXPECT_EQ(run(2,
                    [&](int) {
                      Trained first(type, 0.1, 1), second(type, 0.7, 2);
                      first.step(1.0);
                      first.step(-0.5);
                      save(first.state(), folder / type, {.overwrite = true});
                      if (is_used) second.step(3.0);
                      load(second.state(), folder / type);
                      require(second.bits() == first.bits(), "the parameters differ");
                      first.step(2.0);
                      second.step(2.0);
                      require(second.bits() == first.bits(), "the next step differs");
                      require(optim::learning_rates(*second.optimizer) == std::vector{0.1}, "the learning rate");
                    }),
                "")
          << type << is_used;
}

TEST(SaveLoad, AnOptimizerWithoutStateLosesTheStateItHad) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(1,
                [&](int) {
                  Trained first("Adam", 0.1, 1), second("Adam", 0.1, 2);
                  save(first.state(), folder / "a");
                  second.step(3.0);
                  load(second.state(), folder / "a");
                  require(second.optimizer->state_tensors().empty(), "state is left");
                }),
            "");
}

TEST(SaveLoad, ARefusedLoadChangesNothing) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(2,
                [&](int rank) {
                  Trained first("Adam", 0.1, 1);
                  first.step(1.0);
                  save(first.state(), folder / "a");
                  Trained second("Adam", 0.7, 2);
                  const auto before = second.bits();
                  State wrong = second.state();
                  // Only rank 1 has a tensor that the checkpoint lacks.
                  if (rank == 1) wrong.push_back({"extra", counting({2})});
                  require_error([&] { load(wrong, folder / "a"); },
                                "rank 1: Missing key in checkpoint `" + (folder / "a") + "`: `extra`");
                  require(second.bits() == before, "the model changed");
                  require(second.optimizer->state_tensors().empty(), "the optimizer has state");
                  require(optim::learning_rates(*second.optimizer) == std::vector{0.7}, "the learning rate changed");
                }),
            "");
}

TEST(SaveLoad, RefusalsNameFileKeyAndShapes) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(2,
                [&](int) {
                  const std::string path = folder / "a";
                  save({{"w", counting({4, 2})}, {"step", PlainValue{"3"}}, {"m.x", counting({2})}}, path);
                  require_error(
                      [&] {
                        load({{"w", counting({2, 4})}}, path);
                      },
                      "ranks 0 and 1: Size mismatch for `w`: float32 (4, 2) in the checkpoint `" + path +
                          "`, float32 (2, 4) in the state");
                  require_error([&] { load({{"w", counting({4, 2}, 0, DType::float64)}}, path); }, "Type mismatch");
                  require_error([&] { load({{"w", counting({4, 2})}}, folder / "none"); }, "there is no checkpoint");
                  require_error([&] { load({{"w", counting({4, 2})}}, folder.path()); }, "it is no checkpoint");
                  require_error([&] { save({{"w", counting({4})}}, path); }, "already exists");
                  require_error(
                      [&] {
                        save({{"w", counting({4})}}, folder.path(), {.overwrite = true});
                      },
                      "already exists and is no checkpoint");
                  require_error(
                      [&] {
                        save({{"w", counting({4})}, {"w", counting({4})}}, folder / "b");
                      },
                      "the state has `w` twice");
                  require(load({{"step", PlainValue{"0"}}}, path).values.at("step") == "3", "the plain value");
                }),
            "");
}

TEST(SaveLoad, ValuesThatDifferBetweenRanksAreRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(3,
                [&](int rank) {
                  require_error(
                      [&] {
                        save({{"w", counting({4}, rank == 2 ? 1 : 0)}}, folder / "a");
                      },
                      "the replicas of `w` have other values on rank 2 than on rank 0");
                  require_error(
                      [&] {
                        save({{"n", PlainValue{str(rank / 2)}}}, folder / "a");
                      },
                      "`n` is 0 on rank 0, and 1 on rank 2");
                }),
            "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SaveLoad, KeysMayDifferBetweenRanksInAnyOrder) {
  const TemporaryFolder folder;
  for (const Kind kind : {Kind::threads, Kind::processes})
    EXPECT_EQ(run(
                  2,
                  [&](int rank) {
                    State state{{"both", counting({6})}, {str("own-", rank), counting({3}, rank)}};
                    if (rank == 1) std::swap(state[0], state[1]);
                    save(state, folder / "a", {.overwrite = true});
                    State back{{str("own-", rank), counting({3}, 9)}, {"both", counting({6}, 9)}};
                    if (rank == 1) std::swap(back[0], back[1]);
                    load(back, folder / "a");
                    require_equal(std::get<Tensor>(back[rank == 1].object), counting({3}, rank), "own");
                    require_equal(std::get<Tensor>(back[rank == 0].object), counting({6}), "both");
                  },
                  kind),
              "");
}

TEST(SaveLoad, PartialLoadsWhatBothHave) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(2,
                [&](int) {
                  save({{"a", counting({3})}, {"m.x", counting({2})}, {"n", PlainValue{"[1, 2]"}}}, folder / "a");
                  const Tensor a = counting({3}, 9), b = counting({3}, 9);
                  const LoadReport report =
                      load({{"a", a}, {"b", b}, {"k", PlainValue{"1"}}}, folder / "a", {.partial = true});
                  require_equal(a, counting({3}), "a");
                  require_equal(b, counting({3}, 9), "b");
                  require(report.missing == std::vector<std::string>{"k", "b"}, "the missing keys");
                }),
            "");
}

TEST(SaveLoad, UnexpectedKeysOfAPartAreRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(1,
                [&](int) {
                  const nn::ModulePtr with = nn::build("Linear", {{2, 3}, {}}, {});
                  const nn::ModulePtr without = nn::build("Linear", {{2, 3}, {{"bias", nn::Structure(false)}}}, {});
                  save({{"model", with}}, folder / "a");
                  require_error(
                      [&] {
                        load({{"model", without}}, folder / "a");
                      },
                      "Unexpected key in checkpoint: `model.bias`");
                  require(load({{"model", without}}, folder / "a", {.partial = true}).unexpected ==
                              std::vector<std::string>{"model.bias"},
                          "the unexpected keys");
                }),
            "");
}

// Changes a plain value of a checkpoint. The index states the right hash.
void put_value(const std::string& path, const std::string& key, const std::string& json) {
  const std::string text = path + "/" + index_name, hashes = path + "/" + hashes_name;
  Index index = index_from_files({read_text(text), read_text(hashes)}, "a");
  index.values[key] = json;
  const IndexFiles files = index_files(index);
  std::ofstream(text, std::ios::binary) << files.text;
  std::ofstream(hashes, std::ios::binary) << files.hashes;
}

TEST(SaveLoad, PlainValuesThatNoSaveWritesAreRefusedBeforeAnyValueIsLoaded) {
  struct Row {
    std::string key, json, message;
  };
  const std::string step = "optimizer.state.weight.step", largest = "18446744073709551615";
  std::string negative = random_state_text(Generator::State());
  negative.replace(negative.find(":0"), 2, ":-1");
  const std::vector<Row> rows = {
      {step, "-1", "is -1, which is no step count"},
      {step, "9223372036854775807", "which is no step count"},
      {step, "1.5", "has 1.5 in the place of an integer"},
      {step, largest, "in the place of an integer"},
      {"value", largest, "refused by the caller"},
      {"scaler.scaler",
       R"({"scale":1.0,"growth_factor":2.0,"backoff_factor":0.5,"growth_interval":2.5,"growth_tracker":0})",
       "has 2.5 in the place of an integer"},
      {"random.rank-0", negative, "`cached_bits` is no integer from 0"},
  };
  for (const Row& row : rows) {
    const TemporaryFolder folder;
    EXPECT_EQ(run(1,
                  [&](int) {
                    Trained first("Adam", 0.1, 1), second("Adam", 0.7, 2);
                    optim::GradScaler scaler;
                    const auto state_of = [&scaler](const Trained& trained) {
                      return State{{"model", trained.model},
                                   {"optimizer", trained.optimizer.get()},
                                   {"scaler", &scaler},
                                   {"value", PlainValue{"0"}},
                                   {"random", RandomState{}}};
                    };
                    first.step(1.0);
                    save(state_of(first), folder / "a");
                    put_value(folder / "a", row.key, row.json);
                    LoadOptions options;
                    options.check_value = [](const std::string& json) {
                      if (json != "0") throw Error("refused by the caller");
                    };
                    const std::vector<std::byte> before = second.bits();
                    require_error([&] { load(state_of(second), folder / "a", options); }, row.message);
                    require(second.bits() == before, "the model has changed");
                    require(second.optimizer->state_tensors().empty(), "the optimizer has state");
                  }),
              "")
        << row.key << " " << row.json;
  }
}

TEST(SaveLoad, RandomStatesAreThoseOfTheRank) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(2,
                [&](int rank) {
                  Generator& generator = RankContext::current().generator();
                  generator.seed(7 + static_cast<std::uint64_t>(rank));
                  generator.normal_single();  // caches the second sample of a pair
                  save({{"random", RandomState{}}}, folder / "a");
                  std::vector<double> expected, drawn;
                  for (int i = 0; i < 5; ++i) expected.push_back(generator.normal_single());
                  generator.seed(1);
                  load({{"random", RandomState{}}}, folder / "a");
                  for (int i = 0; i < 5; ++i) drawn.push_back(generator.normal_single());
                  require(drawn == expected, "other numbers are drawn");
                }),
            "");
  EXPECT_EQ(run(3,
                [&](int) {
                  require_error(
                      [&] {
                        load({{"random", RandomState{}}}, folder / "a");
                      },
                      "rank 2: Missing key in checkpoint");
                }),
            "");
}

TEST(SaveLoad, ScalersReturn) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(1,
                [&](int) {
                  optim::GradScaler first({.init_scale = 8.0, .growth_interval = 3}), second, off({.enabled = false});
                  first.update(4.0);
                  save({{"scaler", &first}, {"off", &off}}, folder / "a");
                  load({{"scaler", &second}}, folder / "a");
                  require(second.scale() == 4.0 && second.options().growth_interval == 3, "the scaler");
                  require_error([&] { load({{"off", &second}}, folder / "a"); }, "the scaler of the checkpoint is not");
                }),
            "");
}

TEST(SaveLoad, AnAsynchronousSaveHasTheValuesOfItsCall) {
  const TemporaryFolder folder;
  for (const Kind kind : {Kind::threads, Kind::processes})
    EXPECT_EQ(run(
                  3,
                  [&](int) {
                    const Form form{{3}, {shard(0)}};
                    for (const double start : {1.0, 50.0, 200.0}) {
                      const Tensor w = in_form(counting({70, 5}, start), form);
                      const SaveHandle saving = save({{"w", w}}, folder / "a", {.overwrite = true, .async = true});
                      if (local_tensor(w).num_elements() > 0) raw::zero_(local_tensor(w));
                      if (start > 100.0) saving.wait();
                      load({{"w", w}}, folder / "a");
                      require_equal(local_tensor(w), expected_local(counting({70, 5}, start), w), "w");
                      saving.wait();
                    }
                  },
                  kind),
              "");
  EXPECT_FALSE(std::filesystem::exists(folder / ".a.saving"));
}

TEST(SaveLoad, AnAsynchronousSaveIsPublishedWithoutAWait) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(2,
                [&](int) {
                  save({{"w", counting({8})}}, folder / "a", {.async = true});
                  for (int i = 0; i < 500 && !std::filesystem::exists(folder / "a/index.json"); ++i)
                    std::this_thread::sleep_for(std::chrono::milliseconds(10));
                  require(std::filesystem::exists(folder / "a/index.json"), "the checkpoint is not there");
                  finish_saves();
                }),
            "");
}

TEST(SaveLoad, TiedParametersAreWrittenOnce) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(2,
                [&](int) {
                  const Tensor w = counting({6, 2}), other = counting({6, 2}, 5);
                  save({{"a", w}, {"b", w}}, folder / "tied");
                  const Tensor a = counting({6, 2}, 9), b = counting({6, 2}, 9);
                  load({{"a", a}, {"b", b}}, folder / "tied");
                  require_equal(a, w, "a");
                  require_equal(b, w, "b");
                  save({{"a", w}, {"b", other}}, folder / "untied");
                  require_error([&] { load({{"a", a}, {"b", a}}, folder / "untied"); }, "are one tensor here");
                }),
            "");
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "tied"))
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  EXPECT_LT(bytes, 48u + 200u);
}

TEST(SaveLoad, ScalarsAndEmptyTensors) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(2,
                [&](int) {
                  const Tensor scalar = full({}, 4.5, DType::float64, {}), none = empty({0, 3}, DType::float32, {});
                  save({{"scalar", scalar}, {"none", none}}, folder / "a");
                  const Tensor back = full({}, 0.0, DType::float64, {});
                  load({{"scalar", back}, {"none", none}}, folder / "a");
                  require(item(back) == 4.5, "the scalar");
                }),
            "");
}

TEST(SaveLoad, OnTheSimulatedDevice) {
  const TemporaryFolder folder;
  EXPECT_EQ(run(2,
                [&](int rank) {
                  const device::Device sim{device::Kind::sim, rank};
                  const Tensor w = raw::to_device(counting({5, 6}), sim);
                  save({{"w", transpose(w, 0, 1)}}, folder / "a");
                  const Tensor back = zeros({5, 6}, DType::float32, sim);
                  load({{"w", transpose(back, 0, 1)}}, folder / "a");
                  require(to_bytes(back) == to_bytes(w), "the values");
                }),
            "");
}

}  // namespace
}  // namespace lockstep::state
