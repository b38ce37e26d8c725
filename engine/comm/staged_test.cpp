// Ranks that are processes and whose peers cannot access their buffers: all data is staged and gives the same bits.
// Tensors are always in arenas, so the test calls functions below the public ones.
#include <gtest/gtest.h>

#include "engine/comm/communicator.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/comm/transport.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;

struct Buffer {
  std::vector<float> values;
  std::byte* data() { return reinterpret_cast<std::byte*>(values.data()); }
};

// Runs a collective on memory outside the arenas.
void run_on(Operation operation, std::int64_t count, int root, const std::byte* input, std::byte* output) {
  Endpoint& endpoint = CollectiveIssuer::endpoint_of(world_group());
  IssuedCollective issued;
  issued.rank = Communicator::current().state();
  issued.group = endpoint.control;
  issued.me = world_group().rank();
  issued.sequence = endpoint.sequence++;
  issued.fingerprint.kind = static_cast<std::uint8_t>(operation);
  issued.fingerprint.root = root;
  issued.fingerprint.count = count;
  issued.input = input;
  issued.output = output;
  run(issued);
  require(count == 0 || issued.slot().generation.load() > issued.generation() ||
              issued.slot().transport == TransportKind::staged,
          "was not staged");
}

std::vector<float> values_of_rank(int rank, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(rank + 1) * 0.37f + static_cast<float>(i % 1013) * 1.3e-3f);
  return values;
}

class Staged : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, Staged, ::testing::Values(2, 3, 5));

TEST_P(Staged, EveryOperationMatchesArenas) {
  const int size = GetParam();
  const auto failures = run_ranks(size, Kind::processes, [&](int rank) {
    for (const std::int64_t count : {1, 100, 40'000}) {
      const std::vector<float> shard = values_of_rank(rank, count), full = values_of_rank(rank, count * size);
      const auto each = [&](const char* what, Buffer& got, const Tensor& expected) {
        require(same_bits(got.values, values_of<float>(expected)), str(what, " of ", count));
      };
      const Tensor tensor_shard = empty({count}, DType::float32, {}),
                   tensor_full = empty({count * size}, DType::float32, {});
      Buffer small{shard}, large{full};
      Buffer small_out{std::vector<float>(shard.size())}, large_out{std::vector<float>(full.size())};

      run_on(Operation::all_reduce, count, 0, small.data(), small.data());
      const Tensor summed = tensor_of(shard, DType::float32);
      all_reduce(world_group(), summed, ReduceOp::sum);
      each("all_reduce", small, summed);

      small.values = shard;
      run_on(Operation::all_gather, count, 0, small.data(), large_out.data());
      all_gather(world_group(), tensor_full, tensor_of(shard, DType::float32));
      each("all_gather", large_out, tensor_full);

      run_on(Operation::reduce_scatter, count, 0, large.data(), small_out.data());
      reduce_scatter(world_group(), tensor_shard, tensor_of(full, DType::float32), ReduceOp::sum);
      each("reduce_scatter", small_out, tensor_shard);

      run_on(Operation::all_to_all, count, 0, large.data(), large_out.data());
      all_to_all(world_group(), tensor_full, tensor_of(full, DType::float32));
      each("all_to_all", large_out, tensor_full);

      const int root = size - 1;
      run_on(Operation::broadcast, count, root, rank == root ? small.data() : nullptr,
             rank == root ? nullptr : small.data());
      const Tensor sent = tensor_of(shard, DType::float32);
      broadcast(world_group(), sent, root);
      each("broadcast", small, sent);

      small.values = shard;
      run_on(Operation::gather, count, root, small.data(), rank == root ? large_out.data() : nullptr);
      gather(world_group(), rank == root ? tensor_full : Tensor(), tensor_of(shard, DType::float32), root);
      if (rank == root) each("gather", large_out, tensor_full);

      run_on(Operation::scatter, count, root, rank == root ? large.data() : nullptr, small_out.data());
      scatter(world_group(), tensor_shard, rank == root ? tensor_of(full, DType::float32) : Tensor(), root);
      each("scatter", small_out, tensor_shard);
    }
    std::int64_t logged = 0;
    for (const LogEntry& entry : log()) logged += entry.bytes;
    require(transport_bytes() == 2 * logged, str("transport ", transport_bytes(), " log ", logged));
  });
  for (const std::string& failure : failures) EXPECT_EQ(failure, "");
}

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
