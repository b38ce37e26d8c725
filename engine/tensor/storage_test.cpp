#include "engine/tensor/storage.hpp"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/tensor/storage_state.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr device::Device cpu{device::Kind::cpu, 0};
constexpr device::Device sim{device::Kind::sim, 0};
constexpr device::Device meta{device::Kind::meta, 0};

class StorageTest : public testing::Test {
 protected:
  RankContext context_{0, 1};
  RankScope scope_{context_};
};

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(StorageTest, ViewsFollowReleasedAndAttachedMemory) {
  const Tensor matrix = from_values(std::vector<double>{1, 2, 3, 4}, {2, 2}, DType::float32, cpu);
  const Tensor row = select(matrix, 0, 1);
  const std::uint64_t version = matrix.storage()->version();
  device::MemoryPtr other = device::allocate(cpu, 16);
  const float values[] = {5, 6, 7, 8};
  device::write_from_host(*other, 0, values, sizeof values);
  matrix.storage()->release();
  EXPECT_FALSE(row.storage()->has_memory());
  EXPECT_THROW(to_doubles(row), Error);
  matrix.storage()->attach(other);
  EXPECT_THAT(to_doubles(row), ElementsAre(7, 8));
  EXPECT_EQ(matrix.storage()->version(), version);
  matrix.bump_version();
  EXPECT_EQ(row.storage()->version(), version + 1);
}

TEST_F(StorageTest, ReadErrorNamesOwnerAndState) {
  const Tensor tensor = zeros({3}, DType::float32, sim);
  tensor.storage()->owner = "layers.0.weight";
  tensor.storage()->state = "resharded after forward";
  tensor.storage()->release();
  EXPECT_THAT(message_of([&] { read(tensor); }),
              AllOf(HasSubstr("`layers.0.weight`"), HasSubstr("sim:0"), HasSubstr("resharded after forward")));
  EXPECT_THAT(message_of([&] { item(select(tensor, 0, 0)); }), HasSubstr("released"));
}

TEST_F(StorageTest, RemedyOfAReadDependsOnTheState) {
  const Tensor tensor = zeros({3}, DType::float32, cpu);
  tensor.storage()->release();
  tensor.storage()->state = "sharded";
  EXPECT_THAT(message_of([&] { read(tensor); }), HasSubstr("(sharded) (unshard it before it is read)"));
  tensor.storage()->state = state_model_dropped;
  EXPECT_THAT(message_of([&] { read(tensor); }),
              HasSubstr("(its model was dropped) (keep the model until the last backward through its graphs)"));
}

TEST_F(StorageTest, ReleaseReturnsTheMemory) {
  const Tensor tensor = zeros({1000}, DType::float32, cpu);
  EXPECT_EQ(device::memory_stats().current_total, 4000);
  tensor.storage()->release();
  EXPECT_EQ(device::memory_stats().current_total, 0);
}

TEST_F(StorageTest, AttachChecksDeviceAndSize) {
  const Tensor tensor = zeros({4}, DType::float32, cpu);
  EXPECT_THAT(message_of([&] { tensor.storage()->attach(device::allocate(sim, 16)); }), HasSubstr("sim:0"));
  EXPECT_THAT(message_of([&] { tensor.storage()->attach(device::allocate(cpu, 15)); }), HasSubstr("15 bytes"));
  EXPECT_NO_THROW(tensor.storage()->attach(device::allocate(cpu, 17)));
}

TEST_F(StorageTest, MetaHasNoMemory) {
  const Tensor tensor = empty({4}, DType::float32, meta);
  EXPECT_TRUE(tensor.is_meta());
  EXPECT_EQ(tensor.num_bytes(), 16);
  EXPECT_THAT(message_of([&] { tensor.storage()->memory(); }), HasSubstr("meta"));
  EXPECT_THAT(message_of([&] { to_doubles(tensor); }), HasSubstr("meta"));
}

TEST_F(StorageTest, AccessesSpanFirstToLastElement) {
  const Tensor tensor = zeros({4, 6}, DType::float64, cpu);
  const auto range = [](const device::Access& access) { return std::pair(access.offset, access.bytes); };
  EXPECT_EQ(range(read(tensor)), std::pair(std::size_t{0}, std::size_t{192}));
  EXPECT_EQ(range(read(select(tensor, 0, 2))), std::pair(std::size_t{96}, std::size_t{48}));
  EXPECT_EQ(range(read(slice(tensor, 1, 1, 3))), std::pair(std::size_t{8}, std::size_t{(3 * 6 + 2) * 8}));
  EXPECT_EQ(range(read(expand(slice(select(tensor, 0, 0), 0, 1, 2), {5}))), std::pair(std::size_t{8}, std::size_t{8}));
  EXPECT_EQ(range(read(slice(tensor, 0, 2, 2))).second, 0u);
  EXPECT_EQ(read(tensor).mode, device::Mode::read);
  EXPECT_EQ(update(tensor).mode, device::Mode::update);
  EXPECT_EQ(write(tensor).mode, device::Mode::write);
  EXPECT_EQ(write(transpose(tensor, 0, 1)).mode, device::Mode::write);
  EXPECT_EQ(write(slice(tensor, 1, 1, 3)).mode, device::Mode::update);  // there are other elements in the gaps
}

}  // namespace
}  // namespace lockstep
