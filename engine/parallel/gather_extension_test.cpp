#include "engine/parallel/gather_extension.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/order.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/parallel/fully_shard.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;

// Sends two tensors of two types, whose sum is exactly the shard. The metadata is the number of ranks.
GatherExtension coarse_and_rest() {
  GatherExtension extension;
  extension.send = [](const Tensor& shard, const GatherSite& site) {
    require(shard.sizes() == site.shard_sizes, "the shard is not padded");
    const Tensor coarse = raw::cast(shard, DType::bfloat16);
    const Tensor rest = raw::sub(shard, raw::cast(coarse, shard.dtype()));
    return GatherInputs{{coarse, raw::reshape(rest, {rest.num_elements()})}, {site.mesh.num_ranks()}};
  };
  extension.build = [](const std::vector<Tensor>& gathered, const nn::Structure& metadata, const GatherSite& site) {
    require(*metadata.get_if<std::int64_t>() == site.mesh.num_ranks(), "metadata is lost");
    return raw::add(raw::cast(gathered[0], site.type), raw::reshape(gathered[1], gathered[0].sizes()));
  };
  return extension;
}

TEST(GatherExtension, RebuildsParametersForAllSizesAndReshards) {
  for (const int world_size : {1, 2, 3, 4})
    for (const auto reshard : {ReshardAfterForward::of(true), ReshardAfterForward::of(false)})
      EXPECT_EQ(run(world_size,
                    [&](int rank) {
                      device::set_order_check(true);
                      const nn::ModulePtr plain = built("Net", 3), extended = built("Net", 3);
                      for (const nn::ModulePtr& model : {plain, extended}) {
                        FullyShardOptions options;
                        options.reshard_after_forward = reshard;
                        fully_shard({model->child("fc1")}, options);
                        fully_shard({model}, options);
                      }
                      extend_gather(extended->child("fc1"), 0, coarse_and_rest());
                      extend_gather(extended->child("fc2"), 0, coarse_and_rest());
                      for (std::uint64_t step = 0; step < 2; ++step) {
                        const std::uint64_t seed = 10 * step + static_cast<std::uint64_t>(rank);
                        const Tensor loss = loss_of(extended, seed), expected = loss_of(plain, seed);
                        require(item(loss) == item(expected), str(item(loss), " and ", item(expected)));
                        backward({expected});
                        backward({loss});
                      }
                      const auto ours = nn::named_parameters(extended), theirs = nn::named_parameters(plain);
                      for (std::size_t i = 0; i < ours.size(); ++i)
                        require(to_doubles(local_tensor(grad(ours[i].trained()))) ==
                                    to_doubles(local_tensor(grad(theirs[i].trained()))),
                                ours[i].path);
                      require(device::order_violations().empty(),
                              device::order_violations().empty() ? "" : device::order_violations()[0].message);
                    }),
                "");
}

TEST(GatherExtension, GathersOncePerGroupTheBytesThatAreSent) {
  EXPECT_EQ(run(2,
                [](int) {
                  const nn::ModulePtr model = built("Linear", 1, {{4, 6}, {}});
                  fully_shard({model});
                  GatherExtension narrow;
                  narrow.send = [](const Tensor& shard, const GatherSite&) {
                    return GatherInputs{{raw::cast(shard, DType::bfloat16)}, {}};
                  };
                  narrow.build = [](const std::vector<Tensor>& gathered, const nn::Structure&, const GatherSite& site) {
                    return raw::cast(gathered[0], site.type);
                  };
                  for (const std::size_t slot : {0, 1}) extend_gather(model, slot, narrow);
                  const std::size_t before = comm::log().size();
                  unshard(model);
                  require(comm::log().size() == before + 1, str(comm::log().size() - before, " collectives"));
                  require(comm::log().back().bytes == 2 * 30, str(comm::log().back().bytes, " bytes"));
                }),
            "");
}

TEST(GatherExtension, IsRefusedForAPlainParameter) {
  EXPECT_THAT(run(1,
                  [](int) {
                    const nn::ModulePtr model = built("Linear", 1, {{4, 6}, {}});
                    extend_gather(model, 0, coarse_and_rest());
                  }),
              ::testing::HasSubstr("no group of fully_shard holds `weight` of Linear"));
}

}  // namespace
}  // namespace lockstep::parallel
