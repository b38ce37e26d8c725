// Groups, point-to-point calls, asynchronous calls, splits, the log, and the transport's own count of bytes.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/bench_support.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/control.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/core/defects.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;

std::vector<float> ramp(std::int64_t count, float start) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = start + 0.37f * static_cast<float>(i);
  return values;
}

void expect_success(const std::vector<std::string>& failures) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) EXPECT_EQ(failures[rank], "") << "rank " << rank;
}

class ProcessGroups : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ProcessGroups, ::testing::Values(Kind::threads, Kind::processes),
                         [](const auto& of) { return of.param == Kind::threads ? "threads" : "processes"; });

TEST_P(ProcessGroups, CreateWithoutCommunication) {
  expect_success(run_ranks(4, GetParam(), [](int rank) {
    // Rank 3 creates no group of the others, and no rank waits for it.
    if (rank == 3) return;
    ProcessGroup& backwards = group_of({2, 0, 1}, "ring");
    require(&backwards == &group_of({2, 0, 1}, "ring"), "the same list gives the same group");
    require(backwards.rank() == (rank + 1) % 3 && backwards.size() == 3 && backwards.axis() == "ring",
            "rank, size and axis");
    const Tensor output = empty({3}, DType::float32, {});
    all_gather(backwards, output, tensor_of(std::vector<float>{static_cast<float>(rank)}, DType::float32));
    require(values_of<float>(output) == std::vector<float>({2, 0, 1}), "the group order is the order of the list");
    ProcessGroup& alone = group_of({rank});
    const Tensor tensor = tensor_of(std::vector<float>{4.0f, 5.0f}, DType::float32);
    all_reduce(alone, tensor, ReduceOp::mean);
    require(values_of<float>(tensor) == std::vector<float>({4, 5}), "alone");
    require(log().size() == 2 && log()[0].axis == "ring" && log()[0].group_size == 3 && log()[1].group_size == 1,
            "log");
  }));
}

TEST_P(ProcessGroups, WorkInManyOverlappingGroups) {
  expect_success(run_ranks(8, GetParam(), [](int rank) {
    // Rows and columns of a 4 x 2 mesh, and all pairs.
    const int row = rank / 2, column = rank % 2;
    ProcessGroup& along = group_of({2 * row, 2 * row + 1}, "tp");
    ProcessGroup& across = group_of({column, 2 + column, 4 + column, 6 + column}, "dp");
    const Tensor tensor = tensor_of(std::vector<float>{static_cast<float>(rank)}, DType::float32);
    all_reduce(along, tensor, ReduceOp::sum);
    all_reduce(across, tensor, ReduceOp::sum);
    require(values_of<float>(tensor)[0] == 28.0f, "the sum over both axes");
    for (int other = 0; other < 8; ++other) {
      if (other == rank) continue;
      const std::vector<std::string> strings =
          comm::exchange(group_of({std::min(rank, other), std::max(rank, other)}), str(rank));
      require(strings[rank < other ? 1 : 0] == str(other), "a pair");
    }
  }));
}

TEST_P(ProcessGroups, SendAndReceive) {
  expect_success(run_ranks(3, GetParam(), [](int rank) {
    ProcessGroup& group = world_group();
    const std::int64_t count = 300'000;
    const Tensor to_next = tensor_of(ramp(count, static_cast<float>(rank)), DType::float32);
    const Tensor from_last = empty({count}, DType::float32, {});
    const int next = (rank + 1) % 3, last = (rank + 2) % 3;
    // All ranks send first, so only asynchronous sends complete the ring.
    const Work sent = send(group, to_next, next, {.async = true});
    receive(group, from_last, last);
    sent.wait();
    require(same_bits(values_of<float>(from_last), ramp(count, static_cast<float>(last))), "received values");
    require(log().size() == 2 && log()[0].operation == Operation::send && log()[1].operation == Operation::receive &&
                log()[0].group_size == 3 && log()[0].bytes == 1'200'000,
            "log");
    require(transport_bytes() == 2'400'000, str("transport ", transport_bytes()));
  }));
}

TEST_P(ProcessGroups, WaitForCallsInAnyOrder) {
  expect_success(run_ranks(4, GetParam(), [](int rank) {
    ProcessGroup& group = world_group();
    std::vector<Tensor> tensors, outputs;
    std::vector<Work> works;
    const int many = 40;  // more than a ring has slots
    for (int i = 0; i < many; ++i) {
      const std::int64_t count = i % 3 == 0 ? 70'000 : 10 + i;
      tensors.push_back(
          tensor_of(std::vector<float>(static_cast<std::size_t>(count), static_cast<float>(rank + i)), DType::float32));
      if (i % 2 == 0) {
        works.push_back(all_reduce(group, tensors.back(), ReduceOp::sum, {.async = true}));
        outputs.push_back(tensors.back());
      } else {
        outputs.push_back(empty({4 * count}, DType::float32, {}));
        works.push_back(all_gather(group, outputs.back(), tensors.back(), {.async = true}));
      }
    }
    for (int i = many - 1; i >= 0; --i) works[static_cast<std::size_t>(i)].wait();
    for (int i = 0; i < many; ++i) {
      const std::vector<float> values = values_of<float>(outputs[static_cast<std::size_t>(i)]);
      require(i % 2 == 0 ? values.back() == static_cast<float>(6 + 4 * i) : values.back() == static_cast<float>(3 + i),
              str("call ", i));
    }
  }));
}

// An all_reduce on another stream directly after the reduce_scatter that writes its buffer. The deferred work of the
// inline stream must complete before peers read the buffer.
TEST_P(ProcessGroups, OrderCollectivesAcrossStreams) {
  expect_success(run_ranks(4, GetParam(), [](int rank) {
    ProcessGroup& along = group_of(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
    ProcessGroup& across = group_of(rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3});
    for (int round = 0; round < 50; ++round) {
      const std::int64_t count = 20'000;
      const Tensor full = tensor_of(
          std::vector<float>(static_cast<std::size_t>(2 * count), static_cast<float>(rank + round)), DType::float32);
      const Tensor shard = empty({count}, DType::float32, {});
      const Work scattered = reduce_scatter(along, shard, full, ReduceOp::sum, {.async = true});
      device::Stream& stream = device::stream({}, device::Role::all_reduce);
      scattered.wait(stream);
      const Work reduced = all_reduce(across, shard, ReduceOp::sum, {.async = true, .stream = &stream});
      reduced.wait();
      require(values_of<float>(shard)[7] == static_cast<float>(6 + 4 * round), str("round ", round));
    }
    require(device::order_violations().empty(), "ordered");
  }));
}

TEST_P(ProcessGroups, RunOnASimulatedDevice) {
  expect_success(run_ranks(2, GetParam(), [](int rank) {
    const device::Device sim{device::Kind::sim, rank};
    ProcessGroup& group = world_group();
    const std::int64_t count = 100'000;
    const Tensor tensor = tensor_of(ramp(count, static_cast<float>(rank)), DType::float32, sim);
    const Work work = all_reduce(group, tensor, ReduceOp::sum, {.async = true});
    const Tensor output = empty({2 * count}, DType::float32, sim);
    work.wait();
    all_gather(group, output, tensor);
    std::vector<float> expected = ramp(count, 0.0f);
    const std::vector<float> other = ramp(count, 1.0f);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += other[i];
    require(same_bits(values_of<float>(tensor), expected), "sum");
    expected.insert(expected.end(), expected.begin(), expected.begin() + count);
    require(same_bits(values_of<float>(output), expected), "gathered");
    require(device::order_violations().empty(), "ordered");
    // A mismatch on the worker thread is thrown on the host when it waits.
    bool failed = false;
    try {
      all_reduce(group, rank == 0 ? tensor : output, ReduceOp::sum).synchronize();
      device::synchronize_all();
    } catch (const CollectiveError& error) {
      failed = std::string(error.what()).find("number of elements") != std::string::npos;
    }
    require(failed, "the mismatch");
  }));
}

TEST_P(ProcessGroups, GiveTheSameBitsForAnySplit) {
  expect_success(run_ranks(5, GetParam(), [](int rank) {
    const std::int64_t count = 90'001;
    std::vector<float> values = ramp(count, 0.001f * static_cast<float>(rank * rank + 1));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] *= (i + static_cast<std::size_t>(rank)) % 3 == 0 ? -1.7e-3f : 3.1f;
    const Tensor full = tensor_of(values, DType::float32), pieces = tensor_of(values, DType::float32);
    all_reduce(world_group(), full, ReduceOp::mean);
    std::int64_t at = 0;
    for (const std::int64_t size : {1, 63, 64, 65, 4'097, 30'000, 55'711}) {
      all_reduce(world_group(), slice(pieces, 0, at, at + size), ReduceOp::mean);
      at += size;
    }
    require(at == count, "the split");
    require(same_bits(values_of<float>(full), values_of<float>(pieces)), "the same bits");
  }));
}

TEST_P(ProcessGroups, GatherAndScatterInPlace) {
  expect_success(run_ranks(3, GetParam(), [](int rank) {
    const Tensor full = tensor_of(std::vector<float>(6, static_cast<float>(rank + 1)), DType::float32);
    all_gather(world_group(), full, slice(full, 0, 2 * rank, 2 * rank + 2));
    require(values_of<float>(full) == std::vector<float>({1, 1, 2, 2, 3, 3}), "gathered");
    reduce_scatter(world_group(), slice(full, 0, 2 * rank, 2 * rank + 2), full, ReduceOp::sum);
    require(values_of<float>(full)[static_cast<std::size_t>(2 * rank)] == static_cast<float>(3 * (rank + 1)),
            "scattered");
    for (int root = 0; root < 3; ++root) {
      const auto mine = static_cast<float>(rank + 1);
      const Tensor all = tensor_of(std::vector<float>(6, mine), DType::float32);
      const bool is_root = rank == root;
      gather(world_group(), is_root ? all : Tensor(), slice(all, 0, 2 * rank, 2 * rank + 2), root);
      require(!is_root || values_of<float>(all) == std::vector<float>({1, 1, 2, 2, 3, 3}), "gathered to a root");
      const Tensor one =
          is_root ? slice(all, 0, 2 * rank, 2 * rank + 2) : tensor_of(std::vector<float>(2), DType::float32);
      scatter(world_group(), one, is_root ? all : Tensor(), root);
      require(values_of<float>(one) == std::vector<float>({mine, mine}), "scattered from a root");
    }
  }));
}

TEST_P(ProcessGroups, PropagateNaN) {
  expect_success(run_ranks(3, GetParam(), [](int rank) {
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::sum}) {
      for (const int nan_rank : {0, 1, 2}) {
        std::vector<float> values{1.0f, static_cast<float>(rank)};
        if (rank == nan_rank) values[0] = std::numeric_limits<float>::quiet_NaN();
        const Tensor tensor = tensor_of(values, DType::float32);
        all_reduce(world_group(), tensor, op);
        const std::vector<float> got = values_of<float>(tensor);
        require(got[0] != got[0] && got[1] == got[1], str(name_of(op), " with rank ", nan_rank));
      }
    }
  }));
}

TEST_P(ProcessGroups, CountTheSameBytesInLogAndTransport) {
  expect_success(run_ranks(4, GetParam(), [](int rank) {
    ProcessGroup& group = world_group();
    RankContext::current().scenario_line = 77;
    const Tensor small = empty({10}, DType::float32, {}), large = empty({400'000}, DType::float32, {});
    const Tensor all_small = empty({40}, DType::float32, {}), all_large = empty({1'600'000}, DType::float32, {});
    {
      const PhaseScope phase(Phase::backward);
      all_reduce(group, small, ReduceOp::sum, {.family = Family::data_parallel, .owner = "net.fc1"});
      all_reduce(group, large, ReduceOp::sum, {.family = Family::data_parallel});
    }
    for (const auto& [shard, full] : {std::pair{small, all_small}, std::pair{large, all_large}}) {
      all_gather(group, full, shard);
      reduce_scatter(group, shard, full, ReduceOp::sum);
      all_to_all(group, empty({full.num_elements()}, DType::float32, {}), full);
      broadcast(group, shard, 2);
      gather(group, rank == 1 ? full : Tensor(), shard, 1);
      scatter(group, shard, rank == 3 ? full : Tensor(), 3);
    }
    barrier(group);
    comm::exchange(group, std::string(100'000, 'x'));
    all_reduce(group, large, ReduceOp::sum, {.family = Family::uncounted});
    require(log().size() == 15, str("entries ", log().size()));
    std::int64_t sum = 0;
    for (const LogEntry& entry : log()) sum += entry.bytes;
    require(sum == transport_bytes(), str("log ", sum, " transport ", transport_bytes()));
    const LogEntry first = log().front();
    require(first.operation == Operation::all_reduce && first.family == Family::data_parallel &&
                first.phase == Phase::backward && first.owner == "net.fc1" && first.bytes == 40 &&
                first.scenario_line == 77 && first.sequence == 0 && first.group_size == 4 && first.axis.empty(),
            "the first entry");
    require(log()[2].phase == Phase::other && log()[2].bytes == 160 && log()[2].sequence == 2, "the third");
    require(current_phase() == Phase::other, "phase restored");
    require(group.sequence() == 17, "sequence");
    barrier(group_of({3, 2, 1, 0}));
    require(log().back().group_id != first.group_id && log()[2].group_id == first.group_id, "the ids of the groups");
  }));
}

// The transport counts the bytes that it copies, and not the bytes that it should copy.
TEST_P(ProcessGroups, CountOnlyCopiedBytes) {
  struct Armed {
    Armed() { arm_defect(Defect::transport_tail_left_out); }
    ~Armed() { arm_defect(Defect::none); }
  };
  const Armed armed;
  expect_success(run_ranks(3, GetParam(), [](int rank) {
    ProcessGroup& group = world_group();
    std::int64_t logged = 0, moved = 0;
    const auto differs = [&](const char* operation, std::int64_t count) {
      const std::int64_t bytes = log().back().bytes, done = transport_bytes() - moved;
      require(done < bytes,
              str(operation, " of ", count, " elements on rank ", rank, ": log ", bytes, ", moved ", done));
      logged += bytes;
      moved += done;
    };
    for (const std::int64_t count : {std::int64_t{1}, std::int64_t{10}, std::int64_t{10'000}, std::int64_t{300'000}}) {
      const Tensor shard = empty({count}, DType::float32, {}), full = empty({3 * count}, DType::float32, {});
      // Another offset from a cache line. Large buffers of equal alignment would be copied in full cache lines.
      const Tensor shifted = slice(empty({count + 1}, DType::float32, {}), 0, 1, count + 1);
      all_reduce(group, shard, ReduceOp::sum);
      differs("all_reduce", count);
      broadcast(group, rank == 1 ? shifted : shard, 0);
      differs("broadcast", count);
      all_to_all(group, empty({3 * count}, DType::float32, {}), full);
      differs("all_to_all", count);
      gather(group, rank == 1 ? full : Tensor(), shard, 1);
      differs("gather", count);
      scatter(group, shard, rank == 2 ? full : Tensor(), 2);
      differs("scatter", count);
    }
  }));
}

TEST_P(ProcessGroups, ExchangeStringsOfAnyLength) {
  expect_success(run_ranks(3, GetParam(), [](int rank) {
    for (const std::size_t unit : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{100'000}}) {
      for (int round = 0; round < 20; ++round) {
        const std::vector<std::string> all = comm::exchange(
            world_group(), std::string(unit * static_cast<std::size_t>(rank), static_cast<char>('a' + rank)));
        for (int from = 0; from < 3; ++from)
          require(all[static_cast<std::size_t>(from)] ==
                      std::string(unit * static_cast<std::size_t>(from), static_cast<char>('a' + from)),
                  str("from ", from, " of unit ", unit));
      }
    }
  }));
}

// The largest supported world.
TEST(Groups, WorkWith128Ranks) {
  expect_success(run_ranks(
      128, Kind::threads,
      [](int rank) {
        const Tensor tensor = tensor_of(std::vector<std::int64_t>{rank, 1}, DType::int64);
        all_reduce(world_group(), tensor, ReduceOp::sum);
        require(values_of<std::int64_t>(tensor) == std::vector<std::int64_t>({128 * 127 / 2, 128}), "sum");
        require(comm::exchange(world_group(), str(rank))[100] == "100", "exchange");
      },
      30.0));
}

TEST(Groups, AnUndefinedCallIsOver) {
  const Work none;
  none.wait();
  none.synchronize();
  EXPECT_FALSE(none.defined());
}

TEST(Groups, ACallKeepsItsMemoryUntilItIsOver) {
  expect_success(run_ranks(2, Kind::threads, [](int rank) {
    for (const bool waits : {true, false}) {
      Tensor input = tensor_of(std::vector<float>(100, static_cast<float>(rank)), DType::float32);
      Tensor output = empty({200}, DType::float32, {});
      const std::array memory = {std::weak_ptr(input.storage()->memory_ptr()),
                                 std::weak_ptr(output.storage()->memory_ptr())};
      const Work work = all_gather(world_group(), output, input, {.async = true});
      input = output = Tensor();
      for (const auto& each : memory) require(!each.expired(), "memory of a call that is not over");
      if (waits) {
        work.wait();
      } else {
        work.synchronize();
      }
      for (const auto& each : memory) require(each.expired(), "memory of a call that is over");
    }
  }));
}

TEST(Groups, NeedAMebibyteBesideTheStructuresOfTheRanks) {
  const std::size_t least = control_bytes_for(2) - (std::size_t{255} << 20), page = 4096;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(page, (least / page + 1) * page),
                                                           &std::free);
  auto* const bytes = static_cast<std::byte*>(memory.get());
  EXPECT_THROW(initialize_control(bytes, least - 1, 2, false), Error);
  EXPECT_EQ(initialize_control(bytes, least, 2, false).world_size, 2);
}

TEST(Groups, ASingleRankNeedsNoSharedMemory) {
  RankContext context(0, 1);
  const RankScope scope(context);
  const Tensor tensor = tensor_of(std::vector<float>{1, 2, 3}, DType::float32);
  all_reduce(world_group(), tensor, ReduceOp::mean, {.family = Family::data_parallel});
  const Tensor output = empty({3}, DType::float32, {});
  all_gather(world_group(), output, tensor);
  EXPECT_EQ(values_of<float>(output), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(comm::exchange(world_group(), "me"), (std::vector<std::string>{"me"}));
  EXPECT_EQ(log().size(), 2u);
  EXPECT_EQ(log()[0].bytes, 12);
  EXPECT_EQ(transport_bytes(), 24);
  EXPECT_EQ(Communicator::current().world().world_size, 1);
  RankContext second(1, 2);
  const RankScope second_scope(second);
  EXPECT_THROW(world_group(), Error);
}

// The ring of slots continues past a call that has not been waited for.
TEST(Groups, ContinuePastAnUnfinishedCall) {
  for (const Kind kind : {Kind::threads, Kind::processes}) {
    expect_success(run_ranks(3, kind, [](int rank) {
      ProcessGroup& group = world_group();
      const Tensor early = tensor_of(std::vector<float>(6000, static_cast<float>(rank)), DType::float32);
      const Work work = all_reduce(group, early, ReduceOp::sum, {.async = true});
      for (int i = 0; i < 40; ++i) {
        const Tensor output = empty({6}, DType::float32, {});
        all_gather(group, output, tensor_of(std::vector<float>(2, static_cast<float>(i)), DType::float32));
        require(values_of<float>(output) == std::vector<float>(6, static_cast<float>(i)), str("gather ", i));
      }
      work.wait();
      require(values_of<float>(early) == std::vector<float>(6000, 3.0f), "the sum of the early call");
    }));
  }
}

// The sixteenth call after an unfinished one waits for its place. A worker of a stream does not finish the call for it.
TEST(Groups, MoveNoDataOfAnUnfinishedCallBesideTheRank) {
  for (const Kind kind : {Kind::threads, Kind::processes}) {
    expect_success(run_ranks(2, kind, [](int rank) {
      ProcessGroup& group = world_group();
      const device::Device sim{device::Kind::sim, 0};
      const float mine = static_cast<float>(rank + 1);
      const Tensor early = tensor_of(std::vector<float>(100'000, mine), DType::float32);
      const Work work = all_reduce(group, early, ReduceOp::sum, {.async = true});
      std::vector<Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < 16; ++i) {
        tensors.push_back(full({3}, 1.0, DType::float32, sim));
        works.push_back(all_reduce(group, tensors.back(), ReduceOp::sum, {.async = true}));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      float seen = 0;  // a launch on another stream than that of the call, which stays unfinished
      device::launch(device::current_stream(early.device()), "look",
                     {device::Access{&early.storage()->memory(), 0, sizeof seen, device::Mode::read}},
                     [&](const device::Pointers& p) { std::memcpy(&seen, p.at(0), sizeof seen); });
      require(seen == mine, "the data has moved before the wait");
      barrier(group_of({1, 0}));  // then either rank may move it
      work.wait();
      for (const Work& each : works) each.synchronize();
      require(values_of<float>(early) == std::vector<float>(100'000, 3.0f), "the sum of the early call");
      for (const Tensor& each : tensors) require(values_of<float>(each) == std::vector<float>(3, 2.0f), "a later sum");
    }));
  }
}

TEST(Groups, BenchComparesWorldsByAccessedBytes) {
  EXPECT_EQ(touched_bytes(Operation::all_reduce, 8, 100), 1600);     // eight read and written
  EXPECT_EQ(touched_bytes(Operation::all_to_all, 2, 100), 400);      // two read, two written
  EXPECT_EQ(touched_bytes(Operation::all_gather, 4, 100), 500);      // four quarters read, four full outputs written
  EXPECT_EQ(touched_bytes(Operation::reduce_scatter, 4, 100), 500);  // the reverse
  EXPECT_EQ(touched_bytes(Operation::broadcast, 8, 100), 800);       // one read, seven written
  EXPECT_EQ(bytes_that_touch(Operation::all_gather, 2, 9 << 20), 3 << 20);
  EXPECT_EQ(bytes_that_touch(Operation::broadcast, 2, 8 << 20), 4 << 20);
  EXPECT_THROW(touched_bytes(Operation::send, 2, 100), Error);
}

TEST(Groups, BenchTimesEveryOperation) {
  expect_success(run_ranks(2, Kind::processes, [](int) {
    device::set_order_check(false);
    for (const Operation operation : {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter,
                                      Operation::all_to_all, Operation::broadcast}) {
      const BenchTimings timings = time_collective({.operation = operation, .bytes = 4096, .rounds = 20});
      require(timings.microseconds.size() == 20, "rounds");
      require(timings.at(0.1) <= timings.median() && timings.median() <= timings.at(0.9) && timings.median() > 0,
              "order");
    }
    require(log().empty(), "uncounted");
  }));
}

}  // namespace
}  // namespace lockstep::comm
