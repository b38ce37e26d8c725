// Checkpoints of 512 MB of float32 in large tensors, and of 128 MB in small ones, against plain sequential writes and
// reads of the same bytes by the same ranks. Files that were just written are in memory; `cold` ones are on the disk
// only.
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

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

struct Shape {
  const char* name;  // appended to the names of the measurements
  std::int64_t num_tensors, num_rows, num_columns;
  std::int64_t bytes() const { return num_tensors * num_rows * num_columns * 4; }
};
constexpr Shape shapes[] = {{"", 8, 4096, 4096}, {", small tensors", 2048, 64, 256}};

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

state::State state_of(const Shape& shape, int dim) {
  state::State state;
  for (int i = 0; i < shape.num_tensors; ++i) {
    const layout::ShardedLayout layout =
        layout::ShardedLayout{DeviceMesh::world().shape(), {layout::shard(dim)}, {shape.num_rows, shape.num_columns}};
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

// Removes the pages of a flushed file, or of the files of a folder, from the page cache.
void drop_pages(const std::string& path) {
  std::vector<std::string> files{path};
  if (std::filesystem::is_directory(path)) {
    files.clear();
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  }
  for (const std::string& name : files) {
    const int file = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0 || ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0)
      throw Error(str("cannot drop the pages of ", name));
    ::close(file);
  }
}

nlohmann::json measure(const Shape& shape, const std::string& folder, int rounds) {
  nlohmann::json timings;
  const state::State rows = state_of(shape, 0), columns = state_of(shape, 1);
  const std::string own = str(folder, "/plain-", comm::world_group().rank()), saved = folder + "/saved";
  std::vector<std::byte> bytes(static_cast<std::size_t>(shape.bytes() / comm::world_group().size()), std::byte{3});
  for (int i = 0; i < rounds; ++i) {
    const auto note = [&](const char* name, const std::function<void()>& action) {
      timings[str(name, shape.name)].push_back(time_of(action));
    };
    note("plain write", [&] { write_plainly(own, bytes); });
    note("plain read", [&] { state::InputFile(own).read(0, bytes.data(), bytes.size()); });
    drop_pages(own);
    note("plain read, cold", [&] { state::InputFile(own).read(0, bytes.data(), bytes.size()); });
    note("save", [&] { state::save(rows, saved, {.overwrite = true}); });
    note("load", [&] { state::load(rows, saved); });
    note("load columns", [&] { state::load(columns, saved); });
    drop_pages(saved);
    note("load, cold", [&] { state::load(rows, saved); });
    state::SaveHandle saving;
    note("save async, call", [&] { saving = state::save(rows, saved, {.overwrite = true, .async = true}); });
    note("save async, wait", [&] { saving.wait(); });
    note("load after async", [&] { state::load(rows, saved); });
  }
  return timings;
}

}  // namespace

void bench_checkpoint(const BenchOptions& options, const EmitRow& emit) {
  std::string folder = (std::filesystem::temp_directory_path() / "lockstep-bench-XXXXXX").string();
  if (!::mkdtemp(folder.data())) throw Error("cannot make a temporary folder", "set TMPDIR");
  const std::unique_ptr<const std::string, void (*)(const std::string*)> removed(
      &folder, [](const std::string* path) { std::filesystem::remove_all(*path); });
  const int rounds = options.rounds > 0 ? options.rounds : 5;
  for (const int world_size : options.world_sizes.empty() ? std::vector<int>{2} : options.world_sizes)
    for (const Shape& shape : shapes) {
      if (!is_wanted(options, str("plain write, plain read, save async, load columns, cold", shape.name))) continue;
      launch::LaunchOptions how;
      how.world_size = world_size;
      how.timeout_seconds = 600.0;
      const launch::LaunchResult result = launch::launch(how, [&](int rank) {
        verdict::RankOutcome outcome;
        outcome.rank = rank;
        outcome.records.emplace_back("timings", measure(shape, folder, rounds).dump());
        return outcome;
      });
      const verdict::RankOutcome& first = result.outcomes.front();
      if (first.status != verdict::RankStatus::finished || first.records.empty())
        throw Error(verdict::describe_end(first));
      const nlohmann::json measured = nlohmann::json::parse(first.records.front().second);
      for (const auto& [name, timings] : measured.items()) {
        BenchRow row = summarize("checkpoint", name, "ms", timings.get<std::vector<double>>());
        row.params = {{"world_size", str(world_size)}, {"bytes", str(shape.bytes())}};
        emit(row);
      }
    }
}

}  // namespace lockstep::cli
