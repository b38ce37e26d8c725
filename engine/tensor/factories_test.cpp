// The expected random numbers come from PyTorch 2.15 on the CPU: torch.manual_seed(42), then the tested draw.
#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "engine/device/order.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr device::Device cpu{device::Kind::cpu, 0};
constexpr device::Device meta{device::Kind::meta, 0};

class Factories : public testing::TestWithParam<device::Kind> {
 protected:
  Factories() { context_.generator().seed(42); }
  void reseed() { context_.generator().seed(42); }
  device::Device device() const { return {GetParam(), 0}; }
  RankContext context_{0, 1};
  RankScope scope_{context_};
};
INSTANTIATE_TEST_SUITE_P(Devices, Factories, testing::Values(device::Kind::cpu, device::Kind::sim),
                         [](const auto& kind) { return std::string(device::name_of(kind.param)); });

std::vector<double> first(const Tensor& tensor, std::size_t count) {
  std::vector<double> values = to_doubles(tensor);
  values.resize(count);
  return values;
}

TEST_P(Factories, MakeConstantsOfEveryType) {
  for (int i = 0; i < num_dtypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const Tensor three = full({2, 3}, 3.0, dtype, device());
    EXPECT_EQ(three.dtype(), dtype);
    EXPECT_EQ(three.device(), device());
    EXPECT_EQ(three.sizes(), (Dims{2, 3}));
    EXPECT_TRUE(three.is_contiguous());
    EXPECT_THAT(to_doubles(three), testing::AllOf(testing::SizeIs(6), Each(dtype == DType::boolean ? 1.0 : 3.0)));
    EXPECT_THAT(to_doubles(zeros({5}, dtype, device())), Each(0.0));
    EXPECT_THAT(to_doubles(ones({5}, dtype, device())), Each(1.0));
    const std::vector<double> expected = {0, 1, dtype == DType::boolean ? 1.0 : is_floating(dtype) ? 2.5 : 2.0};
    EXPECT_THAT(to_doubles(from_values(std::vector<double>{0, 1, 2.5}, {3}, dtype, device())),
                testing::ElementsAreArray(expected));
  }
  EXPECT_TRUE(device::order_violations().empty());
}

TEST_P(Factories, KeepTheBitsOfLargeIntegers) {
  const std::int64_t large = (std::int64_t{1} << 62) + 1;
  const Tensor tensor = from_values(std::vector<std::int64_t>{large, -large}, {2}, DType::int64, device());
  const std::vector<std::byte> bytes = to_bytes(tensor);
  std::int64_t back[2];
  std::memcpy(back, bytes.data(), 16);
  EXPECT_THAT(back, ElementsAre(large, -large));
  EXPECT_THAT(to_integers(tensor), ElementsAre(large, -large));
  EXPECT_THAT(to_integers(full({2}, large, DType::int64, device())), Each(large));
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(integer_item(full({}, largest, DType::int64, device())), largest);
  EXPECT_THROW(full({}, largest, DType::int32, device()), Error);
  EXPECT_EQ(item(full({}, largest, DType::float64, device())), 0x1p63);
}

TEST_P(Factories, MakeEmptyTensors) {
  const Tensor tensor = zeros({2, 0, 3}, DType::float32, device());
  EXPECT_EQ(tensor.num_elements(), 0);
  EXPECT_THAT(to_doubles(tensor), ElementsAre());
  EXPECT_THAT(to_doubles(from_values(std::vector<double>{}, {0}, DType::float32, device())), ElementsAre());
  EXPECT_EQ(context_.generator().next32(), 1608637542u);
  randn({0}, DType::float32, device());
  EXPECT_EQ(context_.generator().next32(), 3421126067u);  // no draws in between
}

TEST_P(Factories, MakeScalars) {
  EXPECT_EQ(item(full({}, 2.5, DType::float64, device())), 2.5);
  EXPECT_EQ(item(full({1, 1}, -1, DType::bfloat16, device())), -1);
  EXPECT_THROW(item(zeros({2}, DType::float32, device())), Error);
  EXPECT_THROW(item(zeros({0}, DType::float32, device())), Error);
}

TEST_P(Factories, MakeRanges) {
  EXPECT_THAT(to_doubles(arange(5, -3, -2, DType::int64, device())), ElementsAre(5, 3, 1, -1));
  EXPECT_THAT(to_doubles(arange(0, 1, 0.1, DType::float32, device())),
              ElementsAre(0, 0.1f, 0.2f, 0x1.333334p-2f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f));
  EXPECT_THAT(to_doubles(arange(0, 1, 0.3, DType::float16, device())),
              ElementsAre(0, 0x1.334p-2, 0x1.334p-1, 0x1.cccp-1));
  EXPECT_THAT(to_doubles(arange(3, 3, 1, DType::int32, device())), ElementsAre());
  EXPECT_THROW(arange(0, 1, 0, DType::int32, device()), Error);
  EXPECT_THROW(arange(0, 1, -1, DType::int32, device()), Error);
  EXPECT_THROW(arange(0, std::numeric_limits<double>::infinity(), 1, DType::int32, device()), Error);
}

TEST_P(Factories, RandDrawsInMemoryOrder) {
  EXPECT_THAT(to_doubles(rand({2, 2}, DType::float32, device())),
              ElementsAre(0x1.c3b8ccp-1, 0x1.d47b66p-1, 0x1.880d7p-2, 0x1.eb2a1cp-1));
  reseed();
  EXPECT_THAT(to_doubles(rand({3}, DType::float64, device())),
              ElementsAre(0x1.dc66cbea3db3p-5, 0x1.01ae177aca87p-4, 0x1.fa3563ccea238p-4));
  reseed();
  EXPECT_THAT(to_doubles(rand({4}, DType::float16, device())),
              ElementsAre(0x1.c3cp-1, 0x1.d48p-1, 0x1.88p-2, 0x1.eb4p-1));
  reseed();
  EXPECT_THAT(to_doubles(rand({4}, DType::bfloat16, device())),
              ElementsAre(0x1.c4p-1, 0x1.d4p-1, 0x1.88p-2, 0x1.ecp-1));
}

TEST_P(Factories, UniformDrawsSixteenBitTypes) {
  Tensor tensor = empty({4}, DType::float16, device());
  uniform_(tensor, -0.3, 0.3);
  EXPECT_THAT(to_doubles(tensor), ElementsAre(0x1.d5cp-3, 0x1.fep-3, -0x1.1fcp-4, 0x1.1a4p-2));
  reseed();
  tensor = empty({4}, DType::bfloat16, device());
  uniform_(tensor, -0.3, 0.3);
  EXPECT_THAT(to_doubles(tensor), ElementsAre(0x1.d6p-3, 0x1.fep-3, -0x1.2p-4, 0x1.1ap-2));
}

TEST_P(Factories, UniformDrawsInTheOrderOfMemory) {
  const Tensor base = zeros({3, 2}, DType::float32, device());
  const std::uint64_t version = base.storage()->version();
  uniform_(transpose(base, 0, 1), 0.0, 1.0);
  EXPECT_EQ(base.storage()->version(), version + 1);
  const std::vector<double> drawn = to_doubles(base);  // in the order of memory
  reseed();
  EXPECT_EQ(drawn, to_doubles(rand({3, 2}, DType::float32, device())));
}

TEST_P(Factories, NormalDrawsSixteenBitTypesInBlocks) {
  EXPECT_THAT(first(randn({17}, DType::float16, device()), 6),
              ElementsAre(0x1.ed4p+0, 0x1.a48p+0, -0x1.46cp-3, -0x1.fd4p-2, 0x1.c24p-2, -0x1.844p-1));
  reseed();
  EXPECT_THAT(first(randn({17}, DType::bfloat16, device()), 6),
              ElementsAre(0x1.eep+0, 0x1.a4p+0, -0x1.46p-3, -0x1.fep-2, 0x1.c2p-2, -0x1.84p-1));
  reseed();
  const Tensor few = randn({5}, DType::float32, device());
  reseed();
  const Tensor half = randn({5}, DType::float16, device());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(to_doubles(half)[static_cast<std::size_t>(i)],
              static_cast<double>(
                  static_cast<float>(Half(static_cast<float>(to_doubles(few)[static_cast<std::size_t>(i)])))));
  }
}

TEST_P(Factories, NormalDrawsSinglyForNonContiguousTensors) {
  const Tensor base = zeros({4, 5}, DType::float32, device());
  normal_(transpose(base, 0, 1), 0.0, 1.0);
  const std::vector<double> drawn = to_doubles(base);  // in the order of memory
  reseed();
  for (double value : drawn) EXPECT_EQ(value, static_cast<float>(context_.generator().normal_single()));
}

TEST_P(Factories, NormalScalesAndShifts) {
  const Tensor tensor = empty({18}, DType::float64, device());
  normal_(tensor, 3.0, 0.5);
  EXPECT_NEAR(to_doubles(tensor)[0], 0x1.932bee22ccb5p+1, 1e-14);
  EXPECT_THROW(normal_(tensor, 0.0, -1.0), Error);
  EXPECT_THROW(normal_(zeros({2}, DType::int64, device()), 0.0, 1.0), Error);
  EXPECT_THROW(uniform_(zeros({2}, DType::boolean, device()), 0.0, 1.0), Error);
}

TEST_P(Factories, DrawIntegersAndPermutations) {
  EXPECT_THAT(to_doubles(randint(-3, 10, {2, 4}, DType::int64, device())), ElementsAre(2, 5, 3, 1, 1, 8, 6, 4));
  reseed();
  EXPECT_THAT(to_doubles(randint(0, 5, {6}, DType::int32, device())), ElementsAre(2, 2, 1, 4, 1, 0));
  reseed();
  const Tensor order = randperm(10, device());
  EXPECT_EQ(order.dtype(), DType::int64);
  EXPECT_THAT(to_doubles(order), ElementsAre(2, 6, 1, 8, 4, 5, 0, 9, 3, 7));
  EXPECT_THROW(randperm(-1, device()), Error);
  EXPECT_THROW(randint(2, 2, {1}, DType::int64, device()), Error);
}

TEST(FactoriesOnMeta, MakeShapesAndDrawNothing) {
  RankContext context(0, 1);
  RankScope scope(context);
  context.generator().seed(42);
  EXPECT_EQ(randn({20, 3}, DType::float32, meta).sizes(), (Dims{20, 3}));
  EXPECT_EQ(rand({2}, DType::float16, meta).dtype(), DType::float16);
  EXPECT_EQ(zeros({2}, DType::int64, meta).num_bytes(), 16);
  EXPECT_EQ(arange(0, 7, 2, DType::int64, meta).sizes(), Dims{4});
  EXPECT_EQ(from_values(std::vector<double>{1, 2}, {2}, DType::float32, meta).num_elements(), 2);
  EXPECT_EQ(randint(0, 2, {3}, DType::int64, meta).num_elements(), 3);
  EXPECT_EQ(randperm(3, meta).num_elements(), 3);
  EXPECT_EQ(context.generator().next32(), 1608637542u);
  EXPECT_EQ(device::memory_stats().num_allocations, 0);
}

TEST(FactoriesErrors, NameOperandsAndRemedy) {
  RankContext context(0, 1);
  RankScope scope(context);
  const auto message_of = [](auto&& f) {
    try {
      f();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(message_of([] { empty({2, -1}, DType::float32, cpu); }), HasSubstr("size -1 at dim 1 of (2, -1)"));
  EXPECT_THAT(message_of([] {
                from_values(std::vector<double>{1, 2}, {3}, DType::float32, cpu);
              }),
              HasSubstr("2 values for sizes (3,), which hold 3"));
  device::cuda::RecordingCalls machine;
  machine.no_driver = "no driver";
  const device::cuda::StandIn stand_in(machine);
  EXPECT_THROW(empty({2}, DType::float32, {device::Kind::cuda, 0}), UnsupportedError);
  EXPECT_EQ(message_of([] { describe(Tensor()); }), "nothing was thrown");
}

TEST(FactoriesMemory, HasPurposeAndPinning) {
  RankContext context(0, 1);
  RankScope scope(context);
  device::PurposeScope purpose(device::Purpose::optimizer);
  const Tensor tensor = empty_pinned({10}, DType::float32, {device::Kind::sim, 0});
  EXPECT_EQ(tensor.storage()->memory().purpose(), device::Purpose::optimizer);
  EXPECT_TRUE(tensor.storage()->memory().pinned());
  EXPECT_EQ(device::memory_stats().current_total, 40);
}

}  // namespace
}  // namespace lockstep
