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

Chunking of_floats(Operation operation, std::int64_t count, int size) {
  Fingerprint fingerprint;
  fingerprint.kind = static_cast<std::uint8_t>(operation);
  fingerprint.dtype = static_cast<std::uint8_t>(DType::float32);
  fingerprint.count = count;
  return chunking_of(fingerprint, size);
}

TEST(Chunking, CountsTheShardsOfTheOperation) {
  const std::int64_t total_of_each[] = {7, 21, 21, 7, 21, 21, 63, 7, 7, 0};
  const Operation operations[] = {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter,
                                  Operation::broadcast,  Operation::gather,     Operation::scatter,
                                  Operation::all_to_all, Operation::send,       Operation::receive,
                                  Operation::barrier};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(of_floats(operations[i], 7, 3).total, total_of_each[i]) << i;
  Fingerprint exchange;
  exchange.kind = exchange_kind;
  exchange.count = 7;
  EXPECT_EQ(chunking_of(exchange, 3).total, 0);
}

TEST(Chunking, DividesABufferAboveTheSmallestAmongTheMembers) {
  const Chunking small = of_floats(Operation::all_reduce, 4096, 2);  // 16 KiB
  EXPECT_EQ(small.num_chunks, 1);
  EXPECT_EQ(small.chunk, 4096);
  const Chunking more = of_floats(Operation::all_reduce, 4097, 2);
  EXPECT_EQ(more.num_chunks, 2);
  EXPECT_EQ(more.chunk, 2064) << "half of it, up to whole cache lines";
  EXPECT_EQ(of_floats(Operation::all_reduce, 8192, 2).chunk, 4096);
  EXPECT_EQ(of_floats(Operation::all_reduce, 8192, 128).chunk, 1024) << "the shortest chunk";
  const Chunking below = of_floats(Operation::all_reduce, (1 << 18) - 1, 2);
  EXPECT_EQ(below.num_chunks, 2);
  EXPECT_FALSE(below.nontemporal);
  const Chunking large = of_floats(Operation::all_reduce, 1 << 18, 4);  // 1 MiB
  EXPECT_EQ(large.num_chunks, 8);
  EXPECT_TRUE(large.nontemporal);
}

// A chunk of an operation that accesses buffers of all members is shorter in a larger group, down to 16 KiB.
TEST(Chunking, ChunksOfLargeBuffersAccessAboutTheSameNumberOfBytes) {
  for (int kind = 0; kind < num_operations; ++kind) {
    const auto operation = static_cast<Operation>(kind);
    if (operation == Operation::barrier) continue;
    const bool accesses_all = operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
                              operation == Operation::all_gather || operation == Operation::broadcast;
    for (const int size : {2, 4, 8, 128}) {
      const std::int64_t kibibytes = of_floats(operation, 1 << 20, size).chunk * 4 / 1024;
      EXPECT_EQ(kibibytes, accesses_all ? std::max(512 / size, 16) : 256) << name_of(operation) << ", " << size;
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
