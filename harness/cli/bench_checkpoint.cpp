// Checkpoints of 512 MB of float32, against plain sequential writes and reads of the same bytes by the same ranks.
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>

#include <nlohmann/json.hpp>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/state/load.hpp"
#include "engine/state/save.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/cli/bench.hpp"
#include "harness/launch/launcher.hpp"

namespace lockstep::cli {

namespace {

constexpr std::int64_t num_tensors = 8, num_rows = 4096, num_columns = 4096;  // 8 * 64 MiB

// Milliseconds from the entry of the last rank to the exit of the last.
double time_of(const std::function<void()>& action) {
  using Clock = std::chrono::steady_clock;
  comm::ProcessGroup& world = comm::world_group();
  comm::exchange(world, "", "begin of a measurement");
  const auto start = Clock::now();
  action();
  comm::exchange(world, "", "end of a measurement");
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

state::State state_of(int dim) {
  state::State state;
  for (int i = 0; i < num_tensors; ++i) {
    const layout::ShardedLayout layout =
        layout::ShardedLayout{DeviceMesh::world().shape(), {layout::shard(dim)}, {num_rows, num_columns}};
    const Tensor local = rand(layout::local_sizes(layout, comm::world_group().rank()), DType::float32, {});
    state.push_back({str("tensor_", i), make_sharded(local, layout)});
  }
  return state;
}

// The bytes that a rank holds, written or read in one file of its own.
void write_plainly(const std::string& path, const std::vector<std::byte>& bytes) {
  state::FileSystem& files = state::real_files();
  std::filesystem::remove(path);
  const int file = files.create(path);
  for (std::size_t at = 0; at < bytes.size(); at += 1 << 20)
    files.write(file, path, bytes.data() + at, std::min<std::size_t>(1 << 20, bytes.size() - at));
  files.sync(file, path);
  files.close(file, path);
}

nlohmann::json measure(const std::string& folder, int rounds) {
  nlohmann::json timings;
  const state::State rows = state_of(0), columns = state_of(1);
  const std::string own = str(folder, "/plain-", comm::world_group().rank()), saved = folder + "/saved";
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(num_tensors * num_rows * num_columns * 4 / comm::world_group().size()), std::byte{3});
  for (int i = 0; i < rounds; ++i) {
    const auto note = [&](const char* name, const std::function<void()>& action) {
      timings[name].push_back(time_of(action));
    };
    note("plain write", [&] { write_plainly(own, bytes); });
    note("plain read", [&] { state::InputFile(own).read(0, bytes.data(), bytes.size()); });
    note("save", [&] { state::save(rows, saved, {.overwrite = true}); });
    note("load", [&] { state::load(rows, saved); });
    note("load columns", [&] { state::load(columns, saved); });
    state::SaveHandle saving;
    note("save async, call", [&] { saving = state::save(rows, saved, {.overwrite = true, .async = true}); });
    note("save async, wait", [&] { saving.wait(); });
    note("load after async", [&] { state::load(rows, saved); });
  }
  return timings;
}

}  // namespace

void bench_checkpoint(const BenchOptions& options, const EmitRow& emit) {
  if (!is_wanted(options, "save load")) return;
  std::string folder = (std::filesystem::temp_directory_path() / "lockstep-bench-XXXXXX").string();
  if (!::mkdtemp(folder.data())) throw Error("cannot make a temporary folder", "set TMPDIR");
  const std::unique_ptr<const std::string, void (*)(const std::string*)> removed(
      &folder, [](const std::string* path) { std::filesystem::remove_all(*path); });
  const int rounds = options.rounds > 0 ? options.rounds : 5;
  for (const int world_size : options.world_sizes.empty() ? std::vector<int>{2} : options.world_sizes) {
    launch::LaunchOptions how;
    how.world_size = world_size;
    how.timeout_seconds = 600.0;
    const launch::LaunchResult result = launch::launch(how, [&](int rank) {
      verdict::RankOutcome outcome;
      outcome.rank = rank;
      outcome.records.emplace_back("timings", measure(folder, rounds).dump());
      return outcome;
    });
    const verdict::RankOutcome& first = result.outcomes.front();
    if (first.status != verdict::RankStatus::finished || first.records.empty())
      throw Error(verdict::describe_end(first));
    const nlohmann::json measured = nlohmann::json::parse(first.records.front().second);
    for (const auto& [name, timings] : measured.items()) {
      BenchRow row = summarize("checkpoint", name, "ms", timings.get<std::vector<double>>());
      row.params = {{"world_size", str(world_size)}, {"bytes", str(num_tensors * num_rows * num_columns * 4)}};
      emit(row);
    }
  }
}

}  // namespace lockstep::cli
