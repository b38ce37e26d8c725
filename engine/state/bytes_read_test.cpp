// The ranks of a load together read at most 1.05 times the bytes that they need, counted where they open files: every
// byte of the files of ranks that a rank looks at, once.
#include <atomic>
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/state/load.hpp"
#include "engine/state/save.hpp"
#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

using layout::replicate;
using layout::shard;
using layout::strided_shard;
using testing::counting;
using testing::require;
using testing::require_equal;
using testing::run;
using testing::TemporaryFolder;

// Counts the bytes that each rank looks at.
class CountingFiles : public FileSystem {
 public:
  std::unique_ptr<InputFile> open(const std::string& path) override;
  std::uint64_t bytes_of_rank(int rank) {
    const std::lock_guard lock(mutex_);
    return bytes_[rank];
  }
  void add(int rank, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_[rank] += bytes;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::uint64_t> bytes_;
};

class CountingFile : public InputFile {
 public:
  CountingFile(const std::string& path, CountingFiles& files)
      : InputFile(path), is_seen_(static_cast<std::size_t>(bytes())), files_(files) {}
  void read(std::uint64_t offset, void* to, std::size_t size) const override {
    note(offset, size);
    InputFile::read(offset, to, size);
  }
  const std::byte* view(std::uint64_t offset, std::size_t size) override {
    note(offset, size);
    return InputFile::view(offset, size);
  }

 private:
  void note(std::uint64_t offset, std::size_t size) const {
    std::uint64_t is_new = 0;
    for (std::size_t at = static_cast<std::size_t>(offset); at < static_cast<std::size_t>(offset) + size; ++at) {
      is_new += is_seen_[at] == 0;
      is_seen_[at] = 1;
    }
    files_.add(RankContext::current().rank(), is_new);
  }
  mutable std::vector<char> is_seen_;
  CountingFiles& files_;
};

std::unique_ptr<InputFile> CountingFiles::open(const std::string& path) {
  if (path.find("/rank-") == std::string::npos) return FileSystem::open(path);  // the index
  return std::make_unique<CountingFile>(path, *this);
}

struct Form {
  std::string name;
  std::vector<int> mesh;
  Placements placements;
  int ranks() const {
    int count = 1;
    for (const int size : mesh) count *= size;
    return count;
  }
  Tensor of(const Tensor& full) const { return distribute(full, DeviceMesh(mesh), placements); }
};

std::vector<Form> saved_forms() {
  return {{"rows on 2", {2}, {shard(0)}},
          {"rows on 3", {3}, {shard(0)}},
          {"rows on 4", {4}, {shard(0)}},
          {"columns on 2", {2}, {shard(1)}},
          {"boxes on 2 x 2", {2, 2}, {shard(0), shard(1)}}};
}

std::vector<Form> wanted_forms() {
  std::vector<Form> forms = {{"boxes on 2 x 2", {2, 2}, {shard(0), shard(1)}},
                             {"boxes on 2 x 4", {2, 4}, {shard(0), shard(1)}},
                             {"strided rows on 2 x 2", {2, 2}, {strided_shard(0, 2), shard(0)}},
                             {"strided columns on 2 x 2", {2, 2}, {strided_shard(1, 2), shard(1)}},
                             {"replicas", {2}, {replicate()}}};
  for (const int ranks : {2, 3, 4, 5, 6, 7, 8})
    for (const int dim : {0, 1})
      forms.push_back({str(dim == 0 ? "rows on " : "columns on ", ranks), {ranks}, {shard(dim)}});
  return forms;
}

// Loads `w` on all ranks. Returns the bytes that the ranks looked at, and those that they need.
std::pair<std::uint64_t, std::uint64_t> load_counted(const std::string& path, const Dims& sizes, DType dtype,
                                                     const Form& to) {
  CountingFiles files;
  std::atomic<std::uint64_t> all_needed{0}, all_counted{0};
  EXPECT_EQ(run(to.ranks(),
                [&](int rank) {
                  const Tensor full = counting(sizes, 1.0, dtype), w = to.of(counting(sizes, 100.0, dtype));
                  LoadOptions options;
                  options.files = &files;
                  const LoadReport report = load({{"w", w}}, path, options);
                  require_equal(local_tensor(w), local_shard_of(full, *w.layout()), "w");
                  const auto needed = static_cast<std::uint64_t>(local_tensor(w).num_bytes());
                  const std::uint64_t counted = files.bytes_of_rank(rank);
                  const std::string about = str(path, " as ", to.name, ", rank ", rank, ": ", counted, " bytes, ",
                                                needed, " needed, ", report.bytes_read, " reported");
                  require(report.bytes_needed == needed && report.bytes_read >= counted, about);
                  require(counted >= needed && counted * 100 <= needed * 110, about);
                  all_needed += needed;
                  all_counted += counted;
                }),
            "");
  return {all_counted, all_needed};
}

TEST(BytesRead, AtMost105PercentOfTheBytesNeeded) {
  const TemporaryFolder folder;
  const std::vector<std::pair<Dims, DType>> tensors = {{{1024, 1536}, DType::float32},
                                                       {{1000, 1400}, DType::float32},
                                                       {{960, 2048}, DType::bfloat16},
                                                       {{8, 480, 192}, DType::float32},
                                                       {{256, 1024}, DType::float32}};
  for (const auto& [sizes, dtype] : tensors)
    for (const Form& from : saved_forms()) {
      const std::string path = folder / str(to_text(sizes), " saved as ", from.name);
      const Dims shape = sizes;
      const DType type = dtype;
      ASSERT_EQ(run(from.ranks(), [&](int) { save({{"w", from.of(counting(shape, 1.0, type))}}, path); }), "");
      for (const Form& to : wanted_forms()) {
        const auto [counted, needed] = load_counted(path, shape, type, to);
        EXPECT_LE(counted * 100, needed * 105) << path << ", loaded as " << to.name;
      }
    }
}

// A row of 32 B is one run of a tile.
TEST(BytesRead, NarrowRowsAreReadInFull) {
  const TemporaryFolder folder;
  const Form from{"rows on 2", {2}, {shard(0)}}, to{"columns on 2", {2}, {shard(1)}};
  const Dims sizes{2000, 8};
  ASSERT_EQ(run(2, [&](int) { save({{"w", from.of(counting(sizes, 1.0))}}, folder / "a"); }), "");
  CountingFiles files;
  EXPECT_EQ(run(2,
                [&](int rank) {
                  const Tensor w = to.of(counting(sizes, 5.0));
                  LoadOptions options;
                  options.files = &files;
                  load({{"w", w}}, folder / "a", options);
                  require_equal(local_tensor(w), local_shard_of(counting(sizes, 1.0), *w.layout()), "w");
                  require(files.bytes_of_rank(rank) == 2000 * 8 * 4, str(files.bytes_of_rank(rank), " bytes"));
                }),
            "");
}

}  // namespace
}  // namespace lockstep::state
