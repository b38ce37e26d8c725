#include <chrono>
#include <functional>
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
#include "engine/parallel/replicate.hpp"
#include "harness/cli/bench.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::cli {

namespace {

// Transformers with tied weights and no dropout, trained by Adam on the sum of the output: tiny is all overhead, medium
// all arithmetic. ci/peer_torch.py measures the same.
struct StepModel {
  const char* name;
  int dim, num_layers, num_heads, vocabulary, length, batch;
};
constexpr StepModel step_models[] = {
    {"tiny", 16, 3, 4, 1024, 64, 3}, {"small", 256, 4, 8, 1024, 128, 4}, {"medium", 768, 4, 12, 8192, 256, 2}};

nn::ModulePtr build_model(const StepModel& size) {
  return nn::build("Transformer",
                   {{},
                    {{"n_layers", size.num_layers},
                     {"vocab_size", size.vocabulary},
                     {"max_seq_len", size.length},
                     {"dim", size.dim},
                     {"n_heads", size.num_heads},
                     {"dropout_p", 0.0}}},
                   {});
}

// Steps in turn with and without the order check, so that a slow moment of the machine meets both.
struct Timings {
  std::vector<double> plain, checked;  // ms
};

Timings time_steps(const StepModel& size, bool replicated, int rounds) {
  RankContext& context = RankContext::current();
  context.generator().seed(42);
  const nn::ModulePtr model = build_model(size);
  if (replicated) parallel::replicate(model, {});
  std::vector<optim::ParameterRef> parameters;
  for (const nn::NamedParameter& parameter : nn::named_parameters(model)) {
    parameters.push_back({parameter.path, [parameter] { return parameter.tensor(); }});
  }
  const auto optimizer = optim::make_optimizer("Adam", {{parameters, {.lr = 1e-4}}});
  const Tensor x = randint(0, size.vocabulary, {size.batch, size.length}, DType::int64, {});
  const auto step = [&] {
    optimizer->zero_grad();
    const Tensor loss = ops::sum(model->call(x).tensor());
    backward({loss});
    optimizer->step();
  };
  comm::Call uncounted;
  uncounted.family = comm::Family::uncounted;
  const auto time_one = [&](bool order_check) {
    device::set_order_check(order_check);
    comm::barrier(comm::world_group(), uncounted);
    const auto begin = std::chrono::steady_clock::now();
    step();
    comm::barrier(comm::world_group(), uncounted);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  };
  Timings timings;
  for (int i = 0; i < 5; ++i) time_one(i % 2 == 0);
  for (int i = 0; i < rounds; ++i) {
    timings.plain.push_back(time_one(false));
    timings.checked.push_back(time_one(true));
  }
  device::set_order_check(false);
  return timings;
}

}  // namespace

void bench_steps(const BenchOptions& options, const EmitRow& emit) {
  const std::vector<int> world_sizes = options.world_sizes.empty() ? std::vector<int>{2} : options.world_sizes;
  for (const StepModel& model : step_models) {
    for (const char* name : {"alone", "replicate"}) {
      if (!options.only.empty() && std::string(name).find(options.only) == std::string::npos &&
          std::string(model.name).find(options.only) == std::string::npos) {
        continue;
      }
      const bool replicated = std::string(name) == "replicate";
      for (const int world_size : replicated ? world_sizes : std::vector<int>{1}) {
        const int rounds = options.rounds > 0 ? options.rounds : (model.dim < 100 ? 400 : model.dim < 500 ? 80 : 20);
        launch::LaunchOptions how;
        how.world_size = world_size;
        how.timeout_seconds = 300.0;
        const launch::LaunchResult result = launch::launch(how, [&](int rank) {
          verdict::RankOutcome outcome;
          outcome.rank = rank;
          const Timings timings = time_steps(model, replicated, rounds);
          outcome.records.emplace_back("plain", nlohmann::json(timings.plain).dump());
          outcome.records.emplace_back("checked", nlohmann::json(timings.checked).dump());
          return outcome;
        });
        const verdict::RankOutcome& first = result.outcomes.front();
        if (first.status != verdict::RankStatus::finished || first.records.size() != 2) {
          throw Error(str("steps ", name, " ", model.name, ": ",
                          first.failures.empty() ? verdict::describe_end(first) : first.failures.front().message));
        }
        for (const auto& [record, json] : first.records) {
          BenchRow row = summarise("steps", name, "ms", nlohmann::json::parse(json).get<std::vector<double>>());
          row.params = {{"model", str("\"", model.name, "\"")},
                        {"world_size", str(world_size)},
                        {"order_check", record == "checked" ? "true" : "false"}};
          emit(row);
        }
      }
    }
  }
}

}  // namespace lockstep::cli
