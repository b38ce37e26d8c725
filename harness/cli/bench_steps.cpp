#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/autograd/autograd.hpp"
#include "engine/autograd/ops.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/order.hpp"
#include "engine/nn/build.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/parallel/flat_shard.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/replicate.hpp"
#include "engine/parallel/tensor_parallel.hpp"
#include "harness/cli/bench.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::cli {

namespace {

// Transformers with tied weights and no dropout, trained by Adam on the sum of the output. The time of `tiny` is nearly
// all overhead, that of `medium` nearly all arithmetic. ci/peer_torch.py measures the same models.
struct StepModel {
  const char* name;
  int dim, num_layers, num_heads, vocabulary, length, batch;
};
constexpr StepModel step_models[] = {
    {"tiny", 16, 3, 4, 1024, 64, 3}, {"small", 256, 4, 8, 1024, 128, 4}, {"medium", 768, 4, 12, 8192, 256, 2}};

nn::ModulePtr build_model(const StepModel& size, device::Device device) {
  nn::BuildOptions options;
  options.device = device;
  return nn::build("Transformer",
                   {{},
                    {{"n_layers", size.num_layers},
                     {"vocab_size", size.vocabulary},
                     {"max_seq_len", size.length},
                     {"dim", size.dim},
                     {"n_heads", size.num_heads},
                     {"dropout_p", 0.0}}},
                   options);
}

// A model that is trained in one way on all ranks of a launch.
struct Trainee {
  std::string name;  // one of `ways`
  nn::ModulePtr model;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::vector<double> plain, checked;  // ms, without and with the order check
  std::vector<double> issued;          // ms, without it, until the host has issued the step
};

// The ways to train, and the world sizes at which each is measured.
struct Way {
  const char* name;
  bool (*fits)(int world_size);
};
constexpr Way ways[] = {
    {"alone", [](int world_size) { return world_size == 1; }},
    {"replicate", [](int world_size) { return world_size > 1; }},
    {"fully_shard", [](int) { return true; }},
    {"flat_shard", [](int world_size) { return world_size > 1; }},
    {"hsdp", [](int world_size) { return world_size >= 4 && world_size % 2 == 0; }},
    {"tensor_parallel", [](int world_size) { return world_size == 2 || world_size == 4; }},  // the heads are divided
    {"fully_shard_tensor_parallel", [](int world_size) { return world_size >= 4 && world_size % 2 == 0; }},
};

void shard(const nn::ModulePtr& model, const std::optional<DeviceMesh>& mesh) {
  parallel::FullyShardOptions options;
  options.mesh = mesh;
  for (const nn::ChildSlot& layer : model->child("layers")->children) {
    options.name = "layers." + layer.name;
    parallel::fully_shard({layer.module}, options);
  }
  options.name = "root";
  parallel::fully_shard({model}, options);
}

// The plan of scenarios/lib/parallelize_transformer.yaml without sequence parallelism.
void make_tensor_parallel(const nn::ModulePtr& model, const DeviceMesh& mesh) {
  std::vector<parallel::PlannedModule> plan;
  const auto add = [&](const std::string& path, const nn::ModulePtr& module, const parallel::Style& style) {
    plan.push_back({path, module, style});
  };
  const parallel::Rowwise from_indices{.input = layout::replicate()};
  add("tok_embeddings", model->child("tok_embeddings"), from_indices);
  add("pos_embeddings", model->child("pos_embeddings"), from_indices);
  add("output", model->child("output"), parallel::Colwise{.output = layout::replicate()});
  for (const nn::ChildSlot& layer : model->child("layers")->children) {
    const std::string path = "layers." + layer.name;
    const nn::ModulePtr attention = layer.module->child("attention"), network = layer.module->child("feed_forward");
    for (const char* name : {"wq", "wk", "wv"})
      add(str(path, ".attention.", name), attention->child(name), parallel::Colwise{});
    add(path + ".attention.wo", attention->child("wo"), parallel::Rowwise{});
    add(path + ".feed_forward.w1", network->child("w1"), parallel::Colwise{});
    add(path + ".feed_forward.w2", network->child("w2"), parallel::Rowwise{});
  }
  parallel::tensor_parallel(model, mesh, plan);
}

Trainee make_trainee(const StepModel& size, const std::string& name, device::Device device) {
  RankContext::current().generator().seed(42);
  Trainee trainee{name, build_model(size, device), nullptr, {}, {}, {}};
  if (name == "replicate") parallel::replicate(trainee.model, {});
  const int world_size = RankContext::current().world_size();
  if (name == "fully_shard") shard(trainee.model, {});
  if (name == "flat_shard")
    parallel::flat_shard(trainee.model, parallel::FlatShardOptions{.unit_types = {"TransformerBlock"}});
  if (name == "hsdp") shard(trainee.model, DeviceMesh({2, world_size / 2}, {"replicate", "shard"}));
  if (name == "tensor_parallel") make_tensor_parallel(trainee.model, DeviceMesh::world("tp"));
  if (name == "fully_shard_tensor_parallel") {
    const DeviceMesh mesh({world_size / 2, 2}, {"dp", "tp"});
    make_tensor_parallel(trainee.model, mesh.slice({"tp"}));
    shard(trainee.model, mesh.slice({"dp"}));
  }
  optim::Options adam;
  adam.lr = 1e-4;
  trainee.optimizer = optim::make_optimizer("Adam", {optim::group_of(nn::named_parameters(trainee.model), adam)});
  return trainee;
}

// The trainees take turns, with and without the order check, so that a slow moment of the machine affects all of them.
std::vector<Trainee> time_steps(const StepModel& size, const std::vector<std::string>& names, int rounds,
                                device::Device device) {
  std::vector<Trainee> trainees;
  trainees.reserve(names.size());
  for (const std::string& name : names) trainees.push_back(make_trainee(size, name, device));
  const Tensor x = randint(0, size.vocabulary, {size.batch, size.length}, DType::int64, device);
  comm::Call uncounted;
  uncounted.family = comm::Family::uncounted;
  using Clock = std::chrono::steady_clock;
  const auto ms_since = [](Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  struct Times {
    double whole, issued;
  };
  const auto time_one = [&](const Trainee& trainee, bool order_check) -> Times {
    device::set_order_check(order_check);
    comm::barrier(comm::world_group(), uncounted);
    const auto begin = Clock::now();
    trainee.optimizer->zero_grad();
    backward({ops::sum(trainee.model->call(x).tensor())});
    trainee.optimizer->step();
    const double issued = ms_since(begin);
    device::synchronize_all();
    comm::barrier(comm::world_group(), uncounted);
    return {ms_since(begin), issued};
  };
  for (const Trainee& trainee : trainees)
    for (int i = 0; i < 5; ++i) time_one(trainee, i % 2 == 0);
  for (int i = 0; i < rounds; ++i)
    for (Trainee& trainee : trainees) {
      const Times plain = time_one(trainee, false);
      trainee.plain.push_back(plain.whole);
      trainee.issued.push_back(plain.issued);
      trainee.checked.push_back(time_one(trainee, true).whole);
    }
  device::set_order_check(false);
  return trainees;
}

void bench_launch(const StepModel& model, const std::vector<std::string>& names, int world_size, int rounds,
                  const BenchOptions& options, const EmitRow& emit) {
  launch::LaunchOptions how;
  how.world_size = world_size;
  how.timeout_seconds = 300.0;
  how.hosts = options.hosts;
  const launch::LaunchResult result = launch::launch(how, [&](int rank) {
    verdict::RankOutcome outcome;
    outcome.rank = rank;
    for (const Trainee& trainee : time_steps(model, names, rounds, device::device_from_name(options.device))) {
      for (const auto* times : {&trainee.plain, &trainee.checked, &trainee.issued})
        outcome.records.emplace_back(trainee.name, nlohmann::json(*times).dump());
    }
    return outcome;
  });
  const verdict::RankOutcome& first = result.outcomes.front();
  if (first.status != verdict::RankStatus::finished || first.records.size() != 3 * names.size())
    throw Error(str("steps of ", model.name, " on ", world_size, " ranks: ",
                    first.failures.empty() ? verdict::describe_end(first) : first.failures.front().message));
  for (std::size_t i = 0; i < first.records.size(); ++i) {
    const bool is_issued = i % 3 == 2;
    if (is_issued && options.device != "cuda") continue;  // the host runs the kernels itself
    BenchRow row = summarize("steps", names[i / 3], "ms",
                             nlohmann::json::parse(first.records[i].second).get<std::vector<double>>());
    row.params = {{"model", str("\"", model.name, "\"")},
                  {"world_size", str(world_size)},
                  {"order_check", i % 3 == 1 ? "true" : "false"}};
    if (is_issued) row.params.emplace_back("until", "\"issued\"");
    add_device(row, options);
    emit(row);
  }
}

}  // namespace

// --only matches the name of a model or of a way to train.
void bench_steps(const BenchOptions& options, const EmitRow& emit) {
  const std::vector<int> world_sizes = options.world_sizes.empty() ? std::vector<int>{1, 2} : options.world_sizes;
  for (const StepModel& model : step_models) {
    const int rounds = options.rounds > 0 ? options.rounds : (model.dim < 100 ? 400 : model.dim < 500 ? 60 : 12);
    for (const int world_size : world_sizes) {
      std::vector<std::string> names;
      for (const Way& way : ways)
        if (way.fits(world_size) && (is_wanted(options, way.name) || is_wanted(options, model.name)))
          names.emplace_back(way.name);
      if (!names.empty()) bench_launch(model, names, world_size, rounds, options, emit);
    }
  }
}

}  // namespace lockstep::cli
