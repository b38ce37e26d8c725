// The order of the streams under replicate, and the effects of its seeded defects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/order.hpp"
#include "engine/parallel/test_support.hpp"

namespace lockstep::parallel {
namespace {

using namespace testing;
using comm::Family;
using comm::Operation;
using ::testing::Each;
using ::testing::HasSubstr;

// Trains for three steps on a device with the order check on. Returns the violations of each rank.
std::vector<std::string> violations_of_training(const char* device_name, bool as_view) {
  std::vector<std::string> found(2, "did not finish");
  const std::string failure = run(2, [&](int rank) {
    device::set_order_check(true);
    // With a wait left out, sim has a real race, which may change bytes that a launch only reads.
    device::set_poison(!defect_armed(Defect::replicate_wait_left_out));
    nn::BuildOptions build;
    build.device = device::device_from_name(device_name);
    RankContext::current().generator().seed(5);
    const nn::ModulePtr model = nn::build("Net", {}, build);
    const nn::ModulePtr plain = built("Net", 5);
    ReplicateOptions options;
    options.gradient_as_bucket_view = as_view;
    options.bucket_cap_mb = 1e-6;
    replicate(model, options);
    for (int step = 0; step < 3; ++step) {
      nn::zero_grad(model);
      const Tensor x = raw::to_device(rows(static_cast<std::uint64_t>(rank), {3, 2}), build.device);
      const Tensor y = model->call(x).tensor();
      backward({ops::sum(ops::mul(y, y))});
    }
    device::synchronize_all();
    if (!defect_armed(Defect::replicate_wait_left_out)) {
      const auto expected = mean_gradients(
          plain, 2, [](const nn::ModulePtr& copy, int of) { return loss_of(copy, static_cast<std::uint64_t>(of)); });
      require(differing_gradient(model, expected).empty(), differing_gradient(model, expected));
      require(device::num_order_checks() > 0, "the order check saw no access");
    }
    std::string& text = found[static_cast<std::size_t>(rank)];
    text.clear();
    for (const device::OrderViolation& violation : device::order_violations()) text += violation.message + "\n";
  });
  EXPECT_EQ(failure, "");
  return found;
}

TEST(ReplicateOrder, HasNoViolationsOnAnyDevice) {
  for (const char* device : {"cpu", "sim"})
    for (const bool as_view : {false, true})
      EXPECT_THAT(violations_of_training(device, as_view), Each("")) << device << as_view;
}

TEST(ReplicateOrder, ReportsAMissingWait) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the race is real, so the thread sanitizer reports it, too";
#endif
  for (const char* device : {"cpu", "sim"})
    for (const bool as_view : {false, true}) {
      arm_defect(Defect::replicate_wait_left_out);
      const auto found = violations_of_training(device, as_view);
      arm_defect(Defect::none);
      EXPECT_THAT(found, Each(HasSubstr("all_reduce"))) << device << as_view;
    }
}

TEST(ReplicateDefects, ChangeTheResult) {
  // The number of ranks with wrong gradients, and the number of all-reduces on rank 0.
  const auto with = [](Defect defect) {
    std::vector<int> wrong(2), reduced(2);
    arm_defect(defect);
    const std::string failure = run(2, [&](int rank) {
      const nn::ModulePtr plain = built("Net", 5);
      const nn::ModulePtr model = built("Net", 5);
      replicate(model);
      const auto expected = mean_gradients(
          plain, 2, [](const nn::ModulePtr& copy, int of) { return loss_of(copy, static_cast<std::uint64_t>(of)); });
      backward({loss_of(model, static_cast<std::uint64_t>(rank))});
      wrong[static_cast<std::size_t>(rank)] = !differing_gradient(model, expected).empty();
      reduced[static_cast<std::size_t>(rank)] = count(Operation::all_reduce, Family::data_parallel);
    });
    arm_defect(Defect::none);
    EXPECT_EQ(failure, "");
    return std::pair(wrong[0] + wrong[1], reduced[0]);
  };
  EXPECT_EQ(with(Defect::none), std::pair(0, 1));
  EXPECT_EQ(with(Defect::replicate_no_division), std::pair(2, 1));
  EXPECT_EQ(with(Defect::replicate_divides_twice), std::pair(2, 1));
  EXPECT_EQ(with(Defect::replicate_reduces_early), std::pair(2, 1));
  EXPECT_EQ(with(Defect::replicate_bucket_not_sent), std::pair(2, 0));
}

}  // namespace
}  // namespace lockstep::parallel
