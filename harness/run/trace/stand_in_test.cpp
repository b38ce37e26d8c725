#include "harness/run/trace/stand_in.hpp"

#include <gtest/gtest.h>

#include "engine/core/rank_context.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::run {
namespace {

using device::Device;
using device::Kind;

TEST(StandIn, RepresentsExactlyOneDevice) {
  const Device devices[] = {{Kind::cpu, 0}, {Kind::sim, 0}, {Kind::sim, 3}, {Kind::cuda, 0}, {Kind::cuda, 7}};
  for (const Device& one : devices) {
    EXPECT_EQ(stand_in(one).kind, Kind::meta);
    EXPECT_TRUE(is_stand_in(stand_in(one)));
    EXPECT_EQ(real_device_of(stand_in(one)), one);
    for (const Device& other : devices) EXPECT_EQ(stand_in(one) == stand_in(other), one == other);
  }
}

TEST(StandIn, MetaDeviceIsNoStandIn) {
  const Device meta{Kind::meta, 0};
  EXPECT_FALSE(is_stand_in(meta));
  EXPECT_EQ(stand_in(meta), meta);
  EXPECT_EQ(real_device_of(meta), meta);
  EXPECT_EQ(real_device_of({Kind::sim, 1}), (Device{Kind::sim, 1}));
}

TEST(StandIn, OperationsRejectTwoDevicesAndMovesWork) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const Tensor here = empty({2}, DType::float32, stand_in({Kind::cpu, 0}));
  const Tensor there = empty({2}, DType::float32, stand_in({Kind::sim, 0}));
  EXPECT_THROW(raw::add(here, there), Error);
  EXPECT_EQ(raw::add(raw::to_device(here, there.device()), there).device(), there.device());
}

}  // namespace
}  // namespace lockstep::run
