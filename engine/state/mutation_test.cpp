// 10,000 damaged checkpoints: each is loaded with the right values or refused by an Error that names the checkpoint.
#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/state/hash.hpp"
#include "engine/state/inspect.hpp"
#include "engine/state/load.hpp"
#include "engine/state/save.hpp"
#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

using testing::counting;
using testing::require_equal;
using testing::run;
using testing::TemporaryFolder;

using Files = std::map<std::string, std::string>;  // contents by name

Files contents_of(const std::string& folder) {
  Files files;
  for (const std::string& name : names_in(folder)) files[name] = read_text(folder + "/" + name);
  return files;
}

void write_changed(const std::string& folder, const Files& original, const Files& changed) {
  for (const auto& [name, text] : original)
    if (!changed.contains(name)) std::filesystem::remove(folder + "/" + name);
  for (const auto& [name, text] : changed) {
    const auto before = original.find(name);
    if (before != original.end() && before->second == text) continue;
    // In place: some file systems flush a file that was truncated before.
    const std::string path = folder + "/" + name;
    std::fstream(path, before == original.end() ? std::ios::out | std::ios::binary
                                                : std::ios::in | std::ios::out | std::ios::binary)
        << text;
    std::filesystem::resize_file(path, text.size());
  }
}

State state_of(double start) {
  const DeviceMesh world = DeviceMesh::world();
  return {{"rows", distribute(counting({6, 50}, start), world, {layout::shard(0)})},
          {"columns", distribute(counting({5, 8}, start, DType::float64), world, {layout::shard(1)})},
          {"plain", counting({9}, start, DType::int64)},
          {"step", PlainValue{str(start)}}};
}

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  // Changes the files and returns a description of the change.
  std::string mutate(Files& files) {
    const int kind = pick(8);
    auto& [name, text] = *std::next(files.begin(), pick(static_cast<int>(files.size())));
    std::string& index = files.at("index.json");
    switch (kind) {
      case 0:
        return flip(name, text, 1);
      case 1:
        return flip(name, text, 1 + pick(20));
      case 2:
        text.resize(static_cast<std::size_t>(pick(static_cast<int>(text.size()))));
        return str(name, " truncated to ", text.size());
      case 3:
        text.append(static_cast<std::size_t>(1 + pick(40)), 'x');
        return str(name, " extended");
      case 4:
        std::swap(text, std::next(files.begin(), pick(static_cast<int>(files.size())))->second);
        return str(name, " swapped with another file");
      case 5: {
        const std::string removed = name;
        files.erase(removed);
        return str(removed, " removed");
      }
      case 6:
        return edit_number(index);
      default:
        return edit_with_new_hash(index);
    }
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<std::uint32_t>(std::max(count, 1))); }

  std::string flip(const std::string& name, std::string& text, int times) {
    std::string where;
    for (int i = 0; i < times && !text.empty(); ++i) {
      const auto at = static_cast<std::size_t>(pick(static_cast<int>(text.size())));
      text[at] = static_cast<char>(text[at] ^ (1 << pick(8)));
      where += str(" ", at);
    }
    return str(name, " flipped at", where);
  }

  // Changes a digit of the index.
  std::string edit_number(std::string& index) {
    for (int tries = 0; tries < 1000; ++tries) {
      const auto at = static_cast<std::size_t>(pick(static_cast<int>(index.size())));
      if (index[at] < '0' || index[at] > '9') continue;
      index[at] = static_cast<char>('0' + pick(10));
      return str("digit of the index at ", at);
    }
    return "nothing";
  }

  // Changes a digit outside texts of the index and makes the hash of the index fit, as someone who edits it on purpose.
  // Only types, ranges, tiling and the hashes of the chunks can show it.
  std::string edit_with_new_hash(std::string& index) {
    const std::size_t content = index.find("\"content\":") + 10, tensors = index.find("\"tensors\":"),
                      values = index.find("\"values\":");
    for (int tries = 0; tries < 1000; ++tries) {
      const auto at = tensors + static_cast<std::size_t>(pick(static_cast<int>(values - tensors)));
      const std::size_t quotes = static_cast<std::size_t>(std::count(
          index.begin() + static_cast<std::ptrdiff_t>(tensors), index.begin() + static_cast<std::ptrdiff_t>(at), '"'));
      if (index[at] < '0' || index[at] > '9' || quotes % 2 == 1) continue;
      index[at] = static_cast<char>('1' + pick(9));
      const std::string body = index.substr(content, index.rfind('}') - content);
      const std::size_t hash = index.find("\"hash\":\"") + 8;
      index.replace(hash, 16, hash_text(hash_of(body)));
      return str("digit of the index at ", at, " with a new hash");
    }
    return "nothing";
  }

  std::mt19937 random_;
};

TEST(Mutation, DamagedCheckpointsAreLoadedRightOrRefused) {
  constexpr int num_mutations = 10'000;
  constexpr std::uint32_t seed = 20;
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  ASSERT_EQ(run(3, [&](int) { save(state_of(1.0), path); }), "");
  const Files original = contents_of(path);
  ASSERT_EQ(original.size(), 5u);
  std::map<std::string, int> loaded, refused;
  EXPECT_EQ(run(1,
                [&](int) {
                  Mutator mutator(seed);
                  for (int i = 0; i < num_mutations; ++i) {
                    Files changed = original;
                    const std::string change = mutator.mutate(changed);
                    write_changed(path, original, changed);
                    const State state = state_of(-7.0);
                    std::string error;
                    LoadReport report;
                    try {
                      report = load(state, path);
                    } catch (const InternalError& problem) {
                      throw Error(str("seed ", seed, ", mutation ", i, " (", change, "): ", problem.what()));
                    } catch (const Error& problem) {
                      error = problem.what();
                    }
                    write_changed(path, changed, original);
                    const std::string about = str("seed ", seed, ", mutation ", i, " (", change, "): ");
                    if (!error.empty() && error.find(path) == std::string::npos)
                      throw Error(about + "does not name the checkpoint: " + error);
                    const State expected = state_of(error.empty() ? 1.0 : -7.0);
                    for (std::size_t part = 0; part < 3; ++part)
                      require_equal(std::get<Tensor>(state[part].object), std::get<Tensor>(expected[part].object),
                                    about + state[part].name);
                    if (error.empty() && report.values.at("step") != "1")
                      throw Error(about + "the plain value is " + report.values.at("step"));
                    ++(error.empty() ? loaded : refused)[change.substr(0, change.find(' '))];
                  }
                }),
            "");
  int num_refused = 0, num_loaded = 0;
  for (const auto& [change, count] : refused) num_refused += count;
  for (const auto& [change, count] : loaded) num_loaded += count;
  EXPECT_EQ(num_refused + num_loaded, num_mutations);
  EXPECT_GT(num_refused, num_mutations / 2);
  EXPECT_GT(num_loaded, 0);  // a header that only others read, a digit replaced by itself
}

// Shards of columns, which are verified by tiles: each rank looks at a part of each row.
TEST(Mutation, DamagedTilesAreRefusedByTheRankThatNeedsThem) {
  constexpr int num_mutations = 300;
  constexpr std::uint32_t seed = 21;
  const Dims sizes{64, 320};
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const auto rows = [&] { return distribute(counting(sizes, 1.0), DeviceMesh::world(), {layout::shard(0)}); };
  ASSERT_EQ(run(2, [&](int) { save({{"w", rows()}}, path); }), "");
  const Files original = contents_of(path);
  std::mt19937 random(seed);
  int num_refused = 0, num_loaded = 0;
  for (int i = 0; i < num_mutations; ++i) {
    Files changed = original;
    std::string& text = changed.at(random() % 2 == 0 ? "rank-00000.safetensors" : "rank-00001.safetensors");
    const std::size_t at = random() % text.size();
    text[at] = static_cast<char>(text[at] ^ (1 << random() % 8));
    write_changed(path, original, changed);
    std::vector<std::string> errors(2);
    EXPECT_EQ(run(2,
                  [&](int rank) {
                    const Tensor w = distribute(counting(sizes, -1.0), DeviceMesh::world(), {layout::shard(1)});
                    const Tensor before = raw::clone(local_tensor(w));
                    // Rank 1 alone needs values.
                    State state{{str("own-", rank), counting({1})}};
                    if (rank == 1) state[0] = {"w", w};
                    std::string& error = errors[static_cast<std::size_t>(rank)];
                    error = testing::error_of([&] { load(state, path, {.partial = true}); });
                    const bool is_loaded = error == "no error" && rank == 1;
                    require_equal(local_tensor(w),
                                  is_loaded ? local_shard_of(counting(sizes, 1.0), *w.layout()) : before,
                                  str("seed ", seed, ", mutation ", i));
                  }),
              "");
    EXPECT_EQ(errors[0], errors[1]);
    const bool is_refused = errors[0] != "no error";
    EXPECT_TRUE(!is_refused || errors[0].find("rank 1: the file `rank-0000") != std::string::npos) << errors[0];
    ++(is_refused ? num_refused : num_loaded);
    write_changed(path, changed, original);
  }
  EXPECT_GT(num_refused, num_mutations / 4);  // half of the bytes are those of rank 1
  EXPECT_GT(num_loaded, num_mutations / 4);
}

TEST(Mutation, VerifySeesEveryDamagedByteOfAFile) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  ASSERT_EQ(run(2, [&](int) { save({{"w", counting({40})}, {"v", counting({3, 3})}}, path); }), "");
  const Files original = contents_of(path);
  EXPECT_TRUE(verify_checkpoint(path).problems.empty());
  for (const auto& [name, text] : original) {
    if (!name.starts_with("rank-")) continue;
    for (std::size_t at = 0; at < text.size(); ++at) {
      Files changed = original;
      changed[name][at] = static_cast<char>(changed[name][at] ^ 0x21);
      write_changed(path, original, changed);
      EXPECT_FALSE(verify_checkpoint(path).problems.empty()) << name << " at " << at;
      write_changed(path, changed, original);
    }
  }
}

}  // namespace
}  // namespace lockstep::state
