// How the range of elements of a collective is cut into chunks.
#include <algorithm>

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

// A chunk of an operation that accesses buffers of all members is shorter in a larger group, down to 16 KiB.
TEST(Chunking, ChunksOfLargeBuffersAccessAboutTheSameNumberOfBytes) {
  for (int kind = 0; kind < num_operations; ++kind) {
    const auto operation = static_cast<Operation>(kind);
    if (operation == Operation::barrier) continue;
    const bool accesses_all = operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
                              operation == Operation::all_gather || operation == Operation::broadcast;
    for (const int size : {2, 4, 8, 128}) {
      Fingerprint fingerprint;
      fingerprint.kind = static_cast<std::uint8_t>(kind);
      fingerprint.dtype = static_cast<std::uint8_t>(DType::float32);
      fingerprint.count = 1 << 20;
      const std::int64_t kibibytes = chunking_of(fingerprint, size).chunk * 4 / 1024;
      EXPECT_EQ(kibibytes, accesses_all ? std::max(512 / size, 16) : 256) << name_of(operation) << ", " << size;
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
