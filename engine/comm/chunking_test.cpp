// How the range of elements of a collective is cut into chunks.
#include <gtest/gtest.h>

#include "engine/comm/transport.hpp"

namespace lockstep::comm {
namespace {

TEST(Chunking, CoversEveryElementOnce) {
  for (const int size : {1, 2, 3, 8, 128}) {
    for (const std::int64_t count : {0, 1, 1000, 70'000, 3'000'001}) {
      for (int kind = 0; kind < num_operations; ++kind) {
        Fingerprint fingerprint;
        fingerprint.kind = static_cast<std::uint8_t>(kind);
        fingerprint.count = count;
        const Chunking chunking = chunking_of(fingerprint, size);
        if (chunking.total == 0) {
          EXPECT_EQ(chunking.num_chunks, 0);
          continue;
        }
        EXPECT_GT(chunking.chunk, 0);
        EXPECT_GE(chunking.chunk * chunking.num_chunks, chunking.total);
        EXPECT_LT(chunking.chunk * (chunking.num_chunks - 1), chunking.total);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
