#include "engine/state/inspect.hpp"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/mesh/sharded.hpp"
#include "engine/state/file_system.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/save.hpp"
#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

using testing::counting;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::require;
using testing::require_equal;
using testing::run;
using testing::TemporaryFolder;

void save_as(const std::string& path, int ranks, int axis_dim, double first) {
  ASSERT_EQ(run(ranks,
                [&](int) {
                  const Tensor full = counting({4, 6}, 1.0);
                  const Tensor row = select(full, 0, 2);
                  raw::fill_(slice(row, 0, 3, 4), first);
                  save({{"w", distribute(full, DeviceMesh::world(), {layout::shard(axis_dim)})},
                        {"n", counting({3}, 0.0, DType::int64)},
                        {"step", PlainValue{str(first)}}},
                       path);
                }),
            "");
}

TEST(Inspect, ShowsTensorsValuesAndFiles) {
  const TemporaryFolder folder;
  save_as(folder / "a", 2, 0, 5.0);
  const std::string text = show_checkpoint(folder / "a");
  EXPECT_THAT(text, HasSubstr("w       F32   2       96            (4, 6)\n"));
  EXPECT_THAT(text, HasSubstr("step = 5\n"));
  EXPECT_THAT(text, HasSubstr("2 tensors of 120 bytes, 1 values, 2 files, format version 2\n"));
}

TEST(Inspect, ANameOfTwoLinesIsOneLine) {
  const TemporaryFolder folder;
  ASSERT_EQ(run(1, [&](int) { save({{"a\nb = 1", counting({2})}}, folder / "a"); }), "");
  const std::string text = show_checkpoint(folder / "a");
  EXPECT_THAT(text, HasSubstr("a\\nb = 1  F32 "));
  EXPECT_THAT(text, Not(HasSubstr("\nb = 1")));
}

TEST(Inspect, DiffComparesValuesAndNotShards) {
  const TemporaryFolder folder;
  save_as(folder / "a", 2, 0, 5.0);
  save_as(folder / "b", 3, 1, 5.0);
  save_as(folder / "c", 1, 0, 6.0);
  EXPECT_THAT(diff_checkpoints(folder / "a", folder / "b"), IsEmpty());
  EXPECT_THAT(diff_checkpoints(folder / "a", folder / "c"),
              ElementsAre("w: 1 of 24 elements differ, the first at (2, 3)", "step: 5 and 6"));
  ASSERT_EQ(run(1, [&](int) { save({{"w", counting({5})}, {"m", counting({1})}}, folder / "d"); }), "");
  EXPECT_THAT(diff_checkpoints(folder / "c", folder / "d"),
              ElementsAre("n: only in the first", "w: float32 (4, 6) and float32 (5,)", "m: only in the second",
                          "step: only in the first"));
}

TEST(Inspect, ExportsFullTensorsThatAnyReaderOpens) {
  const TemporaryFolder folder;
  save_as(folder / "a", 4, 1, 5.0);
  export_checkpoint(folder / "a", folder / "out.safetensors", "out");
  EXPECT_EQ(run(1,
                [&](int) {
                  const NamedTensors tensors = read_safetensors(read_text(folder / "out.safetensors"), "out", {});
                  require(tensors.size() == 2 && tensors[1].first == "w", "the names");
                  const Tensor expected = counting({4, 6}, 1.0);
                  raw::fill_(slice(select(expected, 0, 2), 0, 3, 4), 5.0);
                  require_equal(tensors[1].second, expected, "w");
                }),
            "");
  EXPECT_THAT(error_of([&] { export_checkpoint(folder / "a", folder / "out.safetensors", "out"); }),
              HasSubstr("`out` already exists"));
}

TEST(Inspect, VerifyNamesEveryProblem) {
  const TemporaryFolder folder;
  save_as(folder / "a", 3, 0, 5.0);
  EXPECT_EQ(verify_checkpoint(folder / "a").num_chunks, 3);
  const std::string first = folder / "a/rank-00000.safetensors";
  std::string text = read_text(first);
  text.back() = static_cast<char>(text.back() ^ 1);
  std::ofstream(first, std::ios::binary | std::ios::trunc) << text;
  std::filesystem::remove(folder / "a/rank-00001.safetensors");
  EXPECT_THAT(verify_checkpoint(folder / "a").problems,
              ElementsAre(HasSubstr("`rank-00001.safetensors` of the checkpoint"), HasSubstr("is damaged")));
  EXPECT_THAT(error_of([&] { export_checkpoint(folder / "a", folder / "out.safetensors", "out"); }),
              HasSubstr("damaged"));
  EXPECT_FALSE(exists(folder / "out.safetensors.part"));
  EXPECT_THAT(error_of([&] { verify_checkpoint(folder / "none"); }), HasSubstr("there is no checkpoint"));
}

}  // namespace
}  // namespace lockstep::state
