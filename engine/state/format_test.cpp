#include "engine/state/format.hpp"

#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/mesh/sharded.hpp"
#include "engine/state/hash.hpp"
#include "engine/state/inspect.hpp"
#include "engine/state/load.hpp"
#include "engine/state/save.hpp"
#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

using Json = nlohmann::json;
using testing::counting;
using testing::error_of;
using ::testing::HasSubstr;
using testing::require_equal;
using testing::run;
using testing::TemporaryFolder;

const Dims sizes{64, 300};

void save_rows(const std::string& path) {
  const auto rows = [] { return distribute(counting(sizes, 1.0), DeviceMesh::world(), {layout::shard(0)}); };
  ASSERT_EQ(run(2, [&](int) { save({{"w", rows()}, {"b", counting({5})}, {"step", PlainValue{"3"}}}, path); }), "");
}

// "" if both ranks load the right columns.
std::string load_columns(const std::string& path) {
  return run(2, [&](int) {
    const Tensor w = distribute(counting(sizes, -1.0), DeviceMesh::world(), {layout::shard(1)}), b = counting({5}, 9);
    load({{"w", w}, {"b", b}, {"step", PlainValue{"0"}}}, path);
    require_equal(local_tensor(w), local_shard_of(counting(sizes, 1.0), *w.layout()), "w");
    require_equal(b, counting({5}), "b");
  });
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

void write_index(const std::string& path, Json index) {
  index["hash"] = hash_text(hash_of(index["content"].dump()));
  write_text(path + "/index.json", index.dump());
}

// Writes the index as version 1 has it: a list of the hashes of the blocks per chunk, and no tiles.
void make_version_1(const std::string& path) {
  Json index = Json::parse(read_text(path + "/index.json"));
  const std::string hashes = read_text(path + "/hashes.bin");
  index["version"] = 1;
  index["content"].erase("hashes");
  for (auto& [key, tensor] : index["content"]["tensors"].items())
    for (Json& chunk : tensor["chunks"]) {
      std::size_t bytes = 4;
      for (const Json& size : chunk["shape"]) bytes *= size.get<std::size_t>();
      const auto first = chunk["first_hash"].get<std::size_t>(), block = chunk["hash_block"].get<std::size_t>();
      chunk["hashes"] = Json::array();
      for (std::size_t i = 0; i * block < bytes; ++i) {
        std::uint64_t hash = 0;
        std::memcpy(&hash, hashes.data() + (first + i) * 8, 8);
        chunk["hashes"].push_back(hash_text(hash));
      }
      chunk.erase("first_hash");
      chunk.erase("tile_parts");
    }
  write_index(path, index);
  std::filesystem::remove(path + "/hashes.bin");
}

TEST(Format, Version1IsRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  save_rows(path);
  make_version_1(path);
  EXPECT_EQ(load_columns(path), "");
  EXPECT_TRUE(verify_checkpoint(path).problems.empty());
  EXPECT_THAT(show_checkpoint(path), HasSubstr("format version 1"));
  std::string data = read_text(path + "/rank-00001.safetensors");
  data[data.size() - 1] ^= 1;
  write_text(path + "/rank-00001.safetensors", data);
  EXPECT_THAT(load_columns(path), HasSubstr("the file `rank-00001.safetensors` of the checkpoint"));
}

TEST(Format, ANewerVersionIsRefusedByName) {
  const TemporaryFolder folder;
  save_rows(folder / "a");
  Json index = Json::parse(read_text(folder / "a/index.json"));
  index["version"] = 3;
  write_index(folder / "a", index);
  EXPECT_THAT(load_columns(folder / "a"), HasSubstr("has format version 3, and this program reads versions up to 2"));
}

TEST(Format, HashesThatAreMissingOrChangedAreRefused) {
  const TemporaryFolder folder;
  save_rows(folder / "a");
  const std::string file = folder / "a/hashes.bin", hashes = read_text(file);
  const std::string refusal = "the file `hashes.bin` of the checkpoint `" + (folder / "a") + "` is damaged";
  std::string changed = hashes;
  changed[9] ^= 4;
  for (const std::string& text : {changed, hashes.substr(8), hashes + "12345678", std::string()}) {
    write_text(file, text);
    EXPECT_THAT(load_columns(folder / "a"), HasSubstr(refusal));
  }
  std::filesystem::remove(file);
  EXPECT_THAT(load_columns(folder / "a"), HasSubstr(refusal));
  write_text(file, hashes);
  EXPECT_EQ(load_columns(folder / "a"), "");
}

TEST(Format, GridsThatDoNotFitAreRefused) {
  const TemporaryFolder folder;
  save_rows(folder / "a");
  const Json index = Json::parse(read_text(folder / "a/index.json"));
  const Json& chunk = index["content"]["tensors"]["w"]["chunks"][0];
  ASSERT_EQ(chunk["tile_parts"].size(), 2u);
  for (const auto& [field, value] : std::vector<std::pair<const char*, Json>>{{"tile_parts", {0, 2}},
                                                                              {"tile_parts", {2}},
                                                                              {"tile_parts", {1, 301}},
                                                                              {"tile_parts", {32, 300}},
                                                                              {"tile_parts", "2"},
                                                                              {"first_hash", 1'000'000},
                                                                              {"first_hash", -1},
                                                                              {"hash_block", 0}}) {
    Json changed = index;
    changed["content"]["tensors"]["w"]["chunks"][0][field] = value;
    write_index(folder / "a", changed);
    EXPECT_THAT(load_columns(folder / "a"), HasSubstr("is no index of a checkpoint")) << field << value;
  }
  // A grid with as many tiles of other elements has other hashes.
  Json changed = index;
  ASSERT_EQ(chunk["tile_parts"], Json({1, 24}));
  changed["content"]["tensors"]["w"]["chunks"][0]["tile_parts"] = {2, 12};
  write_index(folder / "a", changed);
  EXPECT_THAT(load_columns(folder / "a"), HasSubstr("do not have the hash of the index"));
}

// A chunk of another tensor at the same place does not count as verified.
TEST(Format, ChunksAtOnePlaceAreEachVerified) {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  ASSERT_EQ(run(1, [&](int) { save({{"a", counting({4}, 1.0)}, {"b", counting({4}, 5.0)}}, path); }), "");
  Json index = Json::parse(read_text(path + "/index.json"));
  Json& tensors = index["content"]["tensors"];
  tensors["b"]["chunks"][0]["byte_offset"] = tensors["a"]["chunks"][0]["byte_offset"];
  write_index(path, index);
  EXPECT_EQ(run(1,
                [&](int) {
                  const Tensor a = counting({4}, 9), b = counting({4}, 9);
                  testing::require_error([&] { load({{"a", a}, {"b", b}}, path); }, "of `b`, do not have the hash");
                  require_equal(b, counting({4}, 9), "b");
                }),
            "");
}

TEST(Format, ChunksAtOnePlaceKeepTheirOwnHashes) {
  const auto chunk = [](std::int64_t row, std::uint64_t block, std::vector<std::uint64_t> hashes) {
    return SavedChunk{"rank_0.safetensors", 80, {{row, 0}, {2, 4}}, block, std::move(hashes), {}, {}};
  };
  Index index;
  index.files["rank_0.safetensors"] = 96;
  index.tensors["w"] = {DType::bfloat16, {6, 4}, {chunk(0, 16, {7}), chunk(2, 16, {7}), chunk(4, 15, {8, 9})}};
  const IndexFiles files = index_files(index);
  EXPECT_EQ(files.hashes.size(), 3 * sizeof(std::uint64_t)) << "equal chunks share their hashes";
  const Index again = index_from_files(files, "again");
  EXPECT_EQ(again.tensors.at("w").chunks[1].hashes, std::vector<std::uint64_t>{7});
  EXPECT_EQ(again.tensors.at("w").chunks[2].hashes, (std::vector<std::uint64_t>{8, 9}));
}

TEST(Format, LevelsAreCountedOutsideOfTexts) {
  EXPECT_EQ(depth_of("3"), 0);
  EXPECT_EQ(depth_of(R"({"a":[1,{}],"b":[]})"), 3);
  EXPECT_EQ(depth_of(R"(["[[\"{{\\",[]])"), 2) << "a backslash in a text hides the next character";
  EXPECT_EQ(depth_of(R"(\[\[])"), 2) << "a backslash outside of texts, which is no JSON, hides nothing";
}

}  // namespace
}  // namespace lockstep::state
