// Expected numbers come from PyTorch 2.15 on the CPU: torch.manual_seed(seed), then the named draw.
#include "engine/core/random.hpp"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"

namespace lockstep {
namespace {

using testing::ElementsAre;

Generator seeded(std::uint64_t seed = 42) {
  Generator generator;
  generator.seed(seed);
  return generator;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], relative * std::abs(expected[i])) << i;
}

TEST(Generator, IsTheStandardMersenneTwister) {
  // The published 10,000th word of MT19937 for its default seed.
  Generator generator = seeded(5489);
  std::uint32_t word = 0;
  for (int i = 0; i < 10000; ++i) word = generator.next32();
  EXPECT_EQ(word, 4123659995u);
}

TEST(Generator, SixtyFourBitsAreHighWordFirst) {
  Generator words = seeded(), pairs = seeded();
  const std::uint64_t high = words.next32(), low = words.next32();
  EXPECT_EQ(pairs.next64(), high << 32 | low);
}

TEST(Generator, UniformFloat32) {
  Generator generator = seeded();
  float drawn[4];
  generator.uniform(drawn, 4, 0.0, 1.0);
  EXPECT_THAT(drawn, ElementsAre(0x1.c3b8ccp-1f, 0x1.d47b66p-1f, 0x1.880d7p-2f, 0x1.eb2a1cp-1f));
  generator.seed(42);
  generator.uniform(drawn, 3, -0.5, 0.25);
  EXPECT_EQ(drawn[0], 0x1.4b2a64p-3f);
  EXPECT_EQ(drawn[1], 0x1.7d7232p-3f);
  EXPECT_EQ(drawn[2], -0x1.b3ebd8p-3f);
}

TEST(Generator, UniformFloat64) {
  Generator generator = seeded();
  double drawn[3];
  generator.uniform(drawn, 3, 0.0, 1.0);
  EXPECT_THAT(drawn, ElementsAre(0x1.dc66cbea3db3p-5, 0x1.01ae177aca87p-4, 0x1.fa3563ccea238p-4));
}

TEST(Generator, SeedsAreThirtyTwoBit) {
  EXPECT_EQ(seeded(0).uniform32(), 0x1.fc2abp-2f);
  EXPECT_EQ(seeded((std::uint64_t{1} << 40) + 7).uniform32(), 0x1.11e15ep-1f);
  Generator unseeded;
  EXPECT_EQ(unseeded.uniform32(), 0x1.11b5d8p-2f);
}

TEST(Generator, FewNormalsComeFromCachedPairs) {
  Generator generator = seeded();
  double drawn[3];
  generator.normal(drawn, 3, 0.0, 1.0);
  expect_close({drawn, drawn + 3}, {0x1.58c55b33d44ccp-2, 0x1.07cd39b3d4b85p-3, 0x1.e02dcdb63ec41p-3}, 1e-15);
  // Drawing in blocks does not use the cached sample.
  std::vector<double> block(16);
  generator.normal(block.data(), 16, 0.0, 1.0);
  expect_close({block[0], block[1]}, {0x1.57a1651f4080fp-1, 0x1.9043d03301e76p-1}, 1e-14);
  generator.normal(drawn, 2, 0.0, 1.0);
  expect_close({drawn, drawn + 2}, {0x1.d7b8d7b0a7c22p-3, 0x1.5a4091d2a6ba1p+0}, 1e-15);

  generator.seed(42);
  float single[5];
  generator.normal(single, 5, 0.0, 1.0);
  EXPECT_THAT(single, ElementsAre(0x1.58c55cp-2f, 0x1.07cd3ap-3f, 0x1.e02dcep-3f, 0x1.d7b8d8p-3f, -0x1.1f7384p+0f));
}

TEST(Generator, SeedingDropsTheCachedNormal) {
  Generator generator = seeded();
  const double first = generator.normal_single();
  generator.seed(42);
  EXPECT_EQ(generator.normal_single(), first);
}

TEST(Generator, ManyNormalsComeInBlocks) {
  Generator generator = seeded();
  std::vector<double> doubles(18);
  generator.normal(doubles.data(), 18, 0.0, 1.0);
  expect_close(
      doubles,
      {0x1.32bee22ccb503p-2, 0x1.f063c46668b78p-3, 0x1.4586fc50325b4p+0, 0x1.3cc2503d82af8p-1, -0x1.30c45c7145abep-5,
       0x1.0905f784f7792p+0, -0x1.4a7b7ceff41c7p-7, 0x1.6e82bfad73187p-4, 0x1.3adc896b5cc6ap-5, -0x1.e4538c09260c9p-4,
       -0x1.28e0fab040e8cp-1, 0x1.c07529caa8c80p-1, 0x1.91cd551d1ca00p-2, 0x1.1bc41cab382c5p+0, 0x1.baf804309bfb6p-1,
       0x1.b5deddd314d28p-1, 0x1.fecba7d412db7p-3, 0x1.0bdc98531685dp-2},
      1e-13);
  generator.seed(42);
  std::vector<float> floats(20);
  generator.normal(floats.data(), 20, 0.0, 1.0);
  expect_close(
      {floats.begin(), floats.end()},
      {0x1.ed4a52p+0,  0x1.7cbea6p+0, 0x1.cd2acep-1,  -0x1.0d81b6p+1, -0x1.8429c4p-1, 0x1.140cap+0,   0x1.9a0288p-1,
       0x1.ae3d26p+0,  0x1.6c668ap-2, -0x1.5f8d0cp-1, -0x1.f93268p-2, 0x1.ee9126p-3,  -0x1.da5ddap-3, 0x1.5618p-5,
       -0x1.019cf4p-2, 0x1.b83f6p-1,  -0x1.3d2904p-2, -0x1.953522p-2, 0x1.9b5878p-1,  -0x1.3e41cp-1},
      1e-5);
  generator.seed(42);
  generator.normal(doubles.data(), 18, 3.0, 0.5);
  expect_close({doubles[0], doubles[1]}, {0x1.932bee22ccb5p+1, 0x1.8f831e233345cp+1}, 1e-14);
}

TEST(Generator, Integers) {
  Generator generator = seeded();
  std::vector<std::int64_t> drawn;
  for (int i = 0; i < 8; ++i) drawn.push_back(generator.integer(-3, 10));
  EXPECT_THAT(drawn, ElementsAre(2, 5, 3, 1, 1, 8, 6, 4));
  EXPECT_THROW(generator.integer(3, 3), Error);
}

TEST(Generator, WideIntegersUseTwoWords) {
  // The expected numbers follow six draws below 5.
  Generator generator = seeded();
  std::vector<std::int64_t> small, wide;
  for (int i = 0; i < 6; ++i) small.push_back(generator.integer(0, 5));
  EXPECT_THAT(small, ElementsAre(2, 2, 1, 4, 1, 0));
  generator.seed(42);
  for (int i = 0; i < 3; ++i) wide.push_back(generator.integer(0, std::int64_t{1} << 40));
  EXPECT_THAT(wide, ElementsAre(441507790259, 395924837646, 458615280711));
}

TEST(Generator, Permutation) {
  EXPECT_THAT(seeded().permutation(10), ElementsAre(2, 6, 1, 8, 4, 5, 0, 9, 3, 7));
  EXPECT_THAT(seeded().permutation(0), ElementsAre());
  EXPECT_THAT(seeded().permutation(1), ElementsAre(0));
}

TEST(Generator, DropoutKeeps) {
  Generator generator = seeded();
  std::vector<bool> kept;
  for (int i = 0; i < 12; ++i) kept.push_back(generator.keep(0.4));
  EXPECT_THAT(kept, ElementsAre(true, true, true, true, true, true, false, false, true, true, true, true));
}

TEST(Generator, StateCanBeSavedAndRestored) {
  Generator generator = seeded();
  generator.normal_single();
  const Generator::State saved = generator.state();
  const double cached = generator.normal_single(), next = generator.normal_single();
  generator.set_state(saved);
  EXPECT_EQ(generator.normal_single(), cached);
  EXPECT_EQ(generator.normal_single(), next);
}

}  // namespace
}  // namespace lockstep
