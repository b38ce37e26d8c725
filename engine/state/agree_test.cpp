#include "engine/state/agree.hpp"

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "engine/comm/communicator.hpp"
#include "engine/state/test_support.hpp"

namespace lockstep::state {
namespace {

using testing::require;
using testing::run;

// The first rank has run its stage and waits for the second one, whose stage looks at the deadline of this wait.
TEST(Agree, WaitsTenMinutesForPeersThatUseFiles) {
  constexpr std::int64_t of_files = 600'000'000'000, of_collectives = 10'000'000'000;
  std::promise<std::shared_ptr<comm::RankState>> first;
  const std::string failure = run(2, [&](int rank) {
    const std::shared_ptr<comm::RankState> own = comm::Communicator::current().state();
    require(own->deadline_ns.load() == of_collectives, "the test begins with another deadline");
    if (rank == 0) first.set_value(own);
    agree("save", [&]() -> std::string {
      if (rank == 0) return "";
      const std::shared_ptr<comm::RankState> waiting = first.get_future().get();
      for (int looks = 0; looks < 5000 && waiting->deadline_ns.load() == of_collectives; ++looks)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::int64_t found = waiting->deadline_ns.load();
      require(found == of_files, str("the first rank waits for ", found, " ns"));
      return "";
    });
    require(own->deadline_ns.load() == of_collectives, "the deadline of collectives has changed");
  });
  EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace lockstep::state
