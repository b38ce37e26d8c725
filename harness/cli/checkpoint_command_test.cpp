#include "harness/cli/checkpoint_command.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/rank_context.hpp"
#include "engine/state/save.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::HasSubstr;

class CheckpointCommand : public testing::Test {
 protected:
  CheckpointCommand() {
    RankContext context(0, 1);
    const RankScope scope(context);
    for (const double first : {1.0, 2.0}) {
      const Tensor w = full({2, 3}, first, DType::float32, {});
      state::save({{"w", w}, {"step", state::PlainValue{"7"}}}, folder(first));
    }
  }
  std::string folder(double first) const { return home_ / (first == 1.0 ? "one" : "two"); }
  Ended run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "checkpoint");
    return lockstep(home_, std::move(arguments));
  }
  Home home_;
};

TEST_F(CheckpointCommand, ShowsVerifiesAndCompares) {
  const Ended shown = run({"show", folder(1)});
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.out, HasSubstr("step = 7"));
  const Ended verified = run({"verify", folder(1)});
  EXPECT_EQ(verified.code, 0);
  EXPECT_THAT(verified.out, HasSubstr("1 tensor with 1 chunk of 24 bytes: undamaged"));
  EXPECT_EQ(run({"diff", folder(1), folder(1)}).code, 0);
  const Ended compared = run({"diff", folder(1), folder(2)});
  EXPECT_EQ(compared.code, 1);
  EXPECT_THAT(compared.out, HasSubstr("w: 6 of 6 elements differ, the first at (0, 0)"));
}

TEST_F(CheckpointCommand, ReportsDamageByExitCode) {
  std::filesystem::resize_file(folder(1) + "/rank-00000.safetensors", 10);
  const Ended verified = run({"verify", folder(1)});
  EXPECT_EQ(verified.code, 1);
  EXPECT_THAT(verified.out, HasSubstr("has 10 bytes, and its index says"));
  EXPECT_EQ(run({"export", folder(1), "-o", folder(1) + ".safetensors"}).code, 2);
  EXPECT_EQ(run({"show", folder(1) + "-none"}).code, 2);
}

TEST_F(CheckpointCommand, ExportsOneFile) {
  const std::string file = folder(1) + ".safetensors";
  EXPECT_EQ(run({"export", folder(1), "-o", file}).code, 0);
  EXPECT_EQ(std::filesystem::file_size(file) % 8, 0u);
}

TEST_F(CheckpointCommand, NeedsAnAction) { EXPECT_EQ(run({}).code, 2); }

}  // namespace
}  // namespace lockstep::cli
