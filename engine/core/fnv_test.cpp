#include "engine/core/fnv.hpp"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Fnv, GivesThePublishedValues) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
}

TEST(Fnv, ContinuesAHash) { EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar")); }

TEST(Fnv, SeparatesTheTextsOfAList) {
  EXPECT_NE(fnv1a_append(fnv1a_append(1, "ab"), "c"), fnv1a_append(fnv1a_append(1, "a"), "bc"));
  EXPECT_NE(fnv1a_append(fnv1a_append(1, "a"), ""), fnv1a_append(1, "a"));
}

}  // namespace
}  // namespace lockstep
