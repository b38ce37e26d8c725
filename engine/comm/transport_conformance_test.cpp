// The promises of transport.hpp, for every transport.
//
// To add a transport: give it a row in `transports` below. A row says how ranks that use it are run. Hosts are forked
// processes with a world, a link and a ferry of their own. Over MPI the suite needs two processes:
// `mpirun -n 2 comm_tests --gtest_filter='TransportPromises*Mpi*'`.
#include <algorithm>
#include <csignal>
#include <optional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/comm/communicator.hpp"
#include "engine/comm/staging.hpp"
#include "engine/comm/test_gpu.hpp"
#include "engine/comm/test_hosts.hpp"
#include "engine/comm/test_mpi.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/comm/test_references.hpp"
#include "engine/comm/transport.hpp"

namespace lockstep::comm {
namespace {

using namespace testing_ranks;
using namespace testing_references;
using testing::AllOf;
using testing::HasSubstr;

// ---- the transports ----

enum class On {
  threads,
  processes,
  hosts,
  hosts_of_mpi,
  gpu_threads,
  gpu_processes,
  gpus,
  gpus_of_processes,
  gpu_hosts,
  gpu_hosts_of_mpi
};

struct Row {
  const char* name;
  TransportKind kind;  // that must move the data
  On on;
  std::vector<int> host_of;  // per rank

  int size() const { return static_cast<int>(host_of.size()); }
  bool moves_strings() const { return kind == TransportKind::staged; }  // of exchanges, and no tensors
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

const std::vector<Row> transports = {
    {"SharedMemoryThreads", TransportKind::shared_memory, On::threads, {0, 0, 0, 0}},
    {"SharedMemoryProcesses", TransportKind::shared_memory, On::processes, {0, 0, 0}},
    {"StagedTwo", TransportKind::staged, On::processes, {0, 0}},
    {"StagedFive", TransportKind::staged, On::processes, {0, 0, 0, 0, 0}},
    {"SocketsOneAndOne", TransportKind::between_hosts, On::hosts, {0, 1}},
    {"SocketsTwoAndTwo", TransportKind::between_hosts, On::hosts, {0, 0, 1, 1}},
    {"SocketsInterleaved", TransportKind::between_hosts, On::hosts, {0, 1, 0, 1}},
    {"SocketsThreeHosts", TransportKind::between_hosts, On::hosts, {0, 0, 1, 2, 2}},
    {"SocketsFour", TransportKind::between_hosts, On::hosts, {0, 1, 2, 3}},
    {"SocketsFourAndTwo", TransportKind::between_hosts, On::hosts, {0, 0, 0, 0, 1, 1}},
    {"OneDeviceThreads", TransportKind::one_device, On::gpu_threads, {0, 0, 0, 0}},
    {"OneDeviceProcesses", TransportKind::one_device, On::gpu_processes, {0, 0, 0}},
    {"NcclTwo", TransportKind::nccl, On::gpus, {0, 0}},
    {"NcclFive", TransportKind::nccl, On::gpus, {0, 0, 0, 0, 0}},
    {"NcclProcesses", TransportKind::nccl, On::gpus_of_processes, {0, 0, 0}},
    {"GpusOfTwoHosts", TransportKind::between_hosts, On::gpu_hosts, {0, 0, 1, 1}},
    {"GpusOfThreeHosts", TransportKind::between_hosts, On::gpu_hosts, {0, 1, 2}},
};

const std::vector<Row> transports_of_two_processes = {
    {"MpiOneAndOne", TransportKind::between_hosts, On::hosts_of_mpi, {0, 1}},
    {"MpiTwoAndTwo", TransportKind::between_hosts, On::hosts_of_mpi, {0, 0, 1, 1}},
    {"MpiGpusOfTwoHosts", TransportKind::between_hosts, On::gpu_hosts_of_mpi, {0, 0, 1, 1}},
};

// Where the tensors of the running row are.
device::Device place;

template <class T>
Tensor placed(const std::vector<T>& values, DType dtype) {
  return tensor_of(values, dtype, place);
}

// A call returns before a device has run it.
void wait_for_device() { device::current_stream(place).synchronize(); }

std::vector<std::string> run_on_gpu_at_place(const Row& row, Kind kind, const Body& body, double deadline) {
  place = testing_gpu::gpu;
  const bool has_gpu_each = row.on == On::gpus || row.on == On::gpus_of_processes;
  std::vector<std::string> failures =
      has_gpu_each ? testing_gpu::run_on_gpus(
                         row.size(), [&](int rank, testing_nccl::RecordingNccl&) { body(rank); }, deadline, kind)
                   : testing_gpu::run_on_gpu(row.size(), kind, body, deadline);
  place = {};
  return failures;
}

// Returns the failure of each rank that this process runs; "" for others.
std::vector<std::string> run_on(const Row& row, const Body& body, double deadline = 10.0) {
  std::optional<testing_gpu::GpuOfEachRank> gpus;
  if (row.on == On::gpu_hosts || row.on == On::gpu_hosts_of_mpi) gpus.emplace();
  place = gpus ? testing_gpu::gpu : device::Device{};
  switch (row.on) {
    case On::threads:
      return run_ranks(row.size(), Kind::threads, body, deadline);
    case On::processes:
      return run_ranks(row.size(), Kind::processes, body, deadline);
    case On::gpu_threads:
      return run_on_gpu_at_place(row, Kind::threads, body, deadline);
    case On::gpus:
      return run_on_gpu_at_place(row, Kind::threads, body, deadline);
    case On::gpu_processes:
    case On::gpus_of_processes:
      return run_on_gpu_at_place(row, Kind::processes, body, deadline);
    case On::hosts:
    case On::gpu_hosts:
      return testing_hosts::run_hosts(row.host_of, body, {}, deadline);
    case On::hosts_of_mpi:
    case On::gpu_hosts_of_mpi:
      break;
  }
  static std::uint64_t case_number = 0;
  Link& link = testing_mpi::link_of_two();
  // No message of this case may arrive while the other host still serves the last one.
  link.send(1 - link.host(), Channel::launcher, "ready");
  for (Message message; !link.poll(Channel::launcher, message);) usleep(100);
  return testing_hosts::run_host(link, {link.host(), 2, row.host_of}, body, deadline, ++case_number);
}

bool is_run_here(const Row& row, std::size_t rank) {
  const bool over_mpi = row.on == On::hosts_of_mpi || row.on == On::gpu_hosts_of_mpi;
  return !over_mpi || row.host_of[rank] == testing_mpi::link_of_two().host();
}

class TransportPromises : public testing::TestWithParam<Row> {
 protected:
  void expect_success(const Body& body) const {
    const std::vector<std::string> failures = run_on(row, body);
    for (std::size_t rank = 0; rank < failures.size(); ++rank) EXPECT_EQ(failures[rank], "") << "rank " << rank;
  }
  // Rank 1 fails with a text like `of_rank_1`, and all others with one text like `of_others`. A rank that calls after
  // the group has failed says so before the text.
  void expect_failures(const testing::Matcher<std::string>& of_rank_1, const testing::Matcher<std::string>& of_others,
                       const Body& body, double deadline = 10.0) const {
    const std::vector<std::string> failures = run_on(row, body, deadline);
    std::set<std::string> others;
    for (std::size_t rank = 0; rank < failures.size(); ++rank) {
      if (!is_run_here(row, rank)) continue;
      EXPECT_THAT(failures[rank], rank == 1 ? of_rank_1 : of_others) << "rank " << rank;
      if (rank != 1) others.insert(failures[rank]);
    }
    const auto is_shorter = [](const std::string& a, const std::string& b) { return a.size() < b.size(); };
    const auto text = std::min_element(others.begin(), others.end(), is_shorter);
    for (const std::string& other : others) EXPECT_THAT(other, testing::EndsWith(*text));
  }

  const Row row = GetParam();
};

// ---- collectives on tensors ----

struct Request {
  Operation operation = Operation::barrier;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  std::int64_t count = 0;  // elements of a shard
  int root = 0;
};

bool has_input(const Request& request, int rank) {
  return request.operation != Operation::scatter || rank == request.root;
}
bool has_output(const Request& request, int rank) {
  return request.operation != Operation::gather || rank == request.root;
}
std::int64_t output_count(const Request& request, int size) {
  switch (request.operation) {
    case Operation::all_gather:
    case Operation::all_to_all:
    case Operation::gather:
      return request.count * size;
    default:
      return request.count;
  }
}

void call_on_tensors(const Request& request, const Tensor& output, const Tensor& input) {
  ProcessGroup& group = world_group();
  switch (request.operation) {
    case Operation::all_reduce:
      all_reduce(group, output, request.op);
      break;
    case Operation::reduce_scatter:
      reduce_scatter(group, output, input, request.op);
      break;
    case Operation::all_gather:
      all_gather(group, output, input);
      break;
    case Operation::all_to_all:
      all_to_all(group, output, input);
      break;
    case Operation::broadcast:
      broadcast(group, output, request.root);
      break;
    case Operation::gather:
      gather(group, output, input, request.root);
      break;
    case Operation::scatter:
      scatter(group, output, input, request.root);
      break;
    default:
      throw InternalError("not an operation of the suite");
  }
}

bool works_in_place(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::broadcast;
}

// Runs collectives of one rank and compares their results with references.
class Caller {
 public:
  Caller(const Row& row, int rank) : row_(row), rank_(rank), moved_before_(transport_bytes()) {}

  template <class T>
  void expect(const Request& request, std::vector<T> input, const std::vector<T>& expected) {
    const int size = row_.size();
    const bool in = has_input(request, rank_), out = has_output(request, rank_);
    std::vector<T> output(static_cast<std::size_t>(output_count(request, size)));
    if (works_in_place(request.operation)) output = input;
    const Tensor to = out ? placed(output, request.dtype) : Tensor();
    call_on_tensors(request, to, in ? placed(input, request.dtype) : Tensor());
    wait_for_device();
    if (out) output = values_of<T>(to);
    const std::string what =
        str(name_of(request.operation), " ", name_of(request.op), " of ", request.count, " ", name_of(request.dtype));
    if (request.count > 0) check_transport(what);
    if (out) require(same_bits(output, expected), what + ": other bits than the reference");
    const std::size_t elements = std::max(in ? input.size() : 0, out ? output.size() : 0);
    counted_ += static_cast<std::int64_t>(elements * sizeof(T));
  }

  void check_bytes() const {
    const std::int64_t moved = transport_bytes() - moved_before_;
    require(moved == counted_, str("moved ", moved, " bytes in place of ", counted_));
  }

 private:
  // The slot of the last collective keeps its transport until it is used again.
  void check_transport(const std::string& what) const {
    const Endpoint& endpoint = CollectiveIssuer::endpoint_of(world_group());
    require(endpoint.control->slot(endpoint.sequence - 1).transport == row_.kind, what + " took another transport");
  }

  const Row& row_;
  int rank_;
  std::int64_t moved_before_, counted_ = 0;
};

std::vector<ReduceOp> ops_of(DType dtype) {
  std::vector<ReduceOp> ops = {ReduceOp::max, ReduceOp::min};
  if (dtype != DType::boolean) ops.insert(ops.end(), {ReduceOp::sum, ReduceOp::product});
  if (is_floating(dtype)) ops.push_back(ReduceOp::mean);
  return ops;
}

// Every operation on shards of `count` elements.
template <class T>
void check_operations(Caller& caller, int rank, int size, std::int64_t count, DType dtype,
                      const std::vector<ReduceOp>& ops) {
  const auto me = static_cast<std::size_t>(rank);
  const int root = size - 1;
  std::vector<std::vector<T>> each, each_all;
  for (int r = 0; r < size; ++r) {
    each.push_back(values_for<T>(r, count));
    each_all.push_back(values_for<T>(r, count * size));
  }
  for (const ReduceOp op : ops) {
    caller.expect({Operation::all_reduce, dtype, op, count}, each[me], reduced(op, each));
    caller.expect({Operation::reduce_scatter, dtype, op, count}, each_all[me],
                  shard_of(reduced(op, each_all), rank, count));
  }
  caller.expect({Operation::all_gather, dtype, ReduceOp::sum, count}, each[me], concatenated<T>(size, count));
  std::vector<T> column;
  for (int r = 0; r < size; ++r) {
    const std::vector<T> piece = shard_of(each_all[static_cast<std::size_t>(r)], rank, count);
    column.insert(column.end(), piece.begin(), piece.end());
  }
  caller.expect({Operation::all_to_all, dtype, ReduceOp::sum, count}, each_all[me], column);
  caller.expect({Operation::broadcast, dtype, ReduceOp::sum, count, root}, each[me],
                each[static_cast<std::size_t>(root)]);
  caller.expect({Operation::gather, dtype, ReduceOp::sum, count, root}, each[me], concatenated<T>(size, count));
  caller.expect({Operation::scatter, dtype, ReduceOp::sum, count, root}, each_all[me],
                shard_of(each_all[static_cast<std::size_t>(root)], rank, count));
}

// ---- the promises ----

TEST_P(TransportPromises, StringsArriveWhole) {
  if (!row.moves_strings()) GTEST_SKIP() << "this transport moves tensors";
  expect_success([this](int rank) {
    const auto string_of = [](int from, std::int64_t unit) {
      std::string text(static_cast<std::size_t>(unit * (from + 1)), 'a');
      for (std::size_t i = 0; i < text.size(); ++i)
        text[i] = static_cast<char>('a' + (i + i / longest_piece + static_cast<std::size_t>(from)) % 26);
      return text;
    };
    const std::int64_t piece = longest_piece;
    for (const std::int64_t unit : {INT64_C(0), INT64_C(1), piece / 2, piece - 1, piece, piece + 1, 5 * piece}) {
      const std::vector<std::string> all = comm::exchange(world_group(), string_of(rank, unit));
      require(all.size() == static_cast<std::size_t>(row.size()), str(all.size(), " strings"));
      for (int from = 0; from < row.size(); ++from)
        require(all[static_cast<std::size_t>(from)] == string_of(from, unit), str("unit ", unit, " from ", from));
    }
  });
}

TEST_P(TransportPromises, ResultsHaveTheBitsOfTheReference) {
  if (row.moves_strings()) GTEST_SKIP() << "this transport moves no tensors";
  expect_success([this](int rank) {
    Caller caller(row, rank);
    const auto check = [&]<class T>(T, std::int64_t count, DType dtype) {
      check_operations<T>(caller, rank, row.size(), count, dtype, ops_of(dtype));
    };
    for (const std::int64_t count : {0, 1, 7, 1000}) {
      check(float{}, count, DType::float32);
      check(double{}, count, DType::float64);
      check(Half{}, count, DType::float16);
      check(BFloat16{}, count, DType::bfloat16);
      check(std::int64_t{}, count, DType::int64);
      check(std::int32_t{}, count, DType::int32);
      check(std::uint8_t{}, count, DType::boolean);
    }
    caller.check_bytes();
  });
}

// Larger than a piece of any transport, and with an odd rest.
TEST_P(TransportPromises, LargeResultsHaveTheBitsOfTheReference) {
  if (row.moves_strings()) GTEST_SKIP() << "this transport moves no tensors";
  expect_success([this](int rank) {
    Caller caller(row, rank);
    check_operations<float>(caller, rank, row.size(), 300'001, DType::float32, {ReduceOp::sum});
    check_operations<BFloat16>(caller, rank, row.size(), 70'001, DType::bfloat16, {ReduceOp::mean});
    caller.check_bytes();
  });
}

TEST_P(TransportPromises, SendsReachTheirReceives) {
  if (row.moves_strings()) GTEST_SKIP() << "this transport moves no tensors";
  expect_success([this](int rank) {
    for (const std::int64_t count : {0, 1, 5000, 200'003}) {
      for (int from = 0; from < row.size(); ++from) {
        const int to = (from + 1) % row.size();
        const std::vector<float> values = values_for<float>(from, count);
        if (rank == from) {
          send(world_group(), placed(values, DType::float32), to);
          wait_for_device();
        }
        if (rank != to) continue;
        const Tensor received = empty({count}, DType::float32, place);
        receive(world_group(), received, from);
        require(same_bits(values_of<float>(received), values), str(count, " elements from ", from));
      }
    }
  });
}

TEST_P(TransportPromises, ManyCollectivesAreInProgressAtOnce) {
  if (row.moves_strings()) GTEST_SKIP() << "this transport moves no tensors";
  expect_success([this](int rank) {
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 3 * ring_slots; ++i) {
      tensors.push_back(placed(std::vector<float>(500 * static_cast<std::size_t>(i % 7), static_cast<float>(rank + i)),
                               DType::float32));
      works.push_back(all_reduce(world_group(), tensors.back(), ReduceOp::max, {.async = true}));
    }
    for (std::size_t i = works.size(); i-- > 0;) {
      works[i].synchronize();
      for (const float value : values_of<float>(tensors[i]))
        require(value == static_cast<float>(row.size() - 1 + static_cast<int>(i)), str("collective ", i));
    }
  });
}

// Rank 0 arrives, and then waits for something that its peers do only after the collective.
TEST_P(TransportPromises, OneSidedTransportsCompleteWithoutABusyMember) {
  if (!transport_of(row.kind).traits().one_sided) GTEST_SKIP() << "this transport is not one-sided";
  expect_success([this](int rank) {
    const Tensor sum = placed(std::vector<float>(100'000, 1.0f), DType::float32);
    const Tensor token = placed(std::vector<float>(1, 1.0f), DType::float32);
    const Work work = all_reduce(world_group(), sum, ReduceOp::sum, {.async = true});
    if (rank == 0) receive(world_group(), token, 1);
    work.synchronize();
    if (rank == 1) send(world_group(), token, 0);
    for (const float value : values_of<float>(sum)) require(value == static_cast<float>(row.size()), "a wrong sum");
  });
}

// The calls that need all members: of a transport of strings, exchanges.
void meet(const Row& row, std::int64_t count, const std::string& purpose = "state") {
  if (row.moves_strings()) {
    exchange(world_group(), std::string(static_cast<std::size_t>(count), 'x'), purpose);
    return;
  }
  all_reduce(world_group(), placed(std::vector<float>(static_cast<std::size_t>(count)), DType::float32), ReduceOp::sum);
  wait_for_device();
}

TEST_P(TransportPromises, CallsThatDoNotMatchAreNamed) {
  testing::Matcher<std::string> text = AllOf(HasSubstr("do not agree on the number of elements"),
                                             HasSubstr("rank 1 calls all_reduce(sum) of 5 float32"));
  if (row.moves_strings()) text = AllOf(HasSubstr("do not agree"), HasSubstr("rank 1"), HasSubstr("other"));
  expect_failures(text, text, [this](int rank) { meet(row, rank == 1 ? 5 : 4, rank == 1 ? "other" : "state"); });
}

// The calls before the one that fails complete on all members, however late one of them is.
TEST_P(TransportPromises, ARankThatFailsEndsTheWaitsOfItsPeers) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    expect_failures(HasSubstr("out of ideas"),
                    AllOf(HasSubstr("rank 1 failed: out of ideas"), testing::Not(HasSubstr("too early"))),
                    [this](int rank) {
                      try {
                        meet(row, 100'000);
                      } catch (const Error& error) {
                        throw Error("too early: " + error.message());
                      }
                      if (rank == 1) throw Error("out of ideas");
                      meet(row, 4);
                    });
  }
}

TEST_P(TransportPromises, ARankThatDiesEndsTheWaitsOfItsPeers) {
  if (row.on == On::threads || row.on == On::gpu_threads || row.on == On::gpus)
    GTEST_SKIP() << "a signal would end all ranks";
  expect_failures(HasSubstr("signal 9"), HasSubstr("rank 1 died"), [this](int rank) {
    meet(row, 4);
    if (rank == 1) ::raise(SIGKILL);
    meet(row, 4);
  });
}

TEST_P(TransportPromises, TheDeadlineEndsWaits) {
  expect_failures(
      HasSubstr("within 0.3 s"), HasSubstr("within 0.3 s"),
      [this](int rank) {
        meet(row, 4);
        if (rank == 1) usleep(1'500'000);
        meet(row, 4);
      },
      0.3);
}

TEST_P(TransportPromises, DeadlocksAreFound) {
  const auto text = AllOf(HasSubstr("deadlock"), HasSubstr("rank 0 waits for rank 1"));
  expect_failures(text, text, [this](int rank) {
    const Tensor x = placed(std::vector<float>(4), DType::float32);
    send(world_group(), x, (rank + 1) % row.size());
    receive(world_group(), x, (rank + row.size() - 1) % row.size());
    wait_for_device();
  });
}

TEST(Transports, AreChosenByWhatTheyCan) {
  EXPECT_EQ(choose_transport({}), TransportKind::shared_memory);
  EXPECT_EQ(choose_transport({.exchanges = true}), TransportKind::staged);
  EXPECT_EQ(choose_transport({.between_hosts = true}), TransportKind::between_hosts);
  EXPECT_EQ(choose_transport({.exchanges = true, .between_hosts = true}), TransportKind::staged);
  EXPECT_EQ(choose_transport({.one_sided = true}), TransportKind::shared_memory);
  EXPECT_EQ(choose_transport({.between_hosts = true, .one_sided = true}), TransportKind::between_hosts);
  EXPECT_EQ(choose_transport({.device_memory = true}), TransportKind::one_device);
  nccl::replace_calls(nullptr);
  EXPECT_THROW(choose_transport({.device_memory = true, .between_devices = true}), UnsupportedError);
  device::cuda::RecordingCalls calls(2);
  testing_nccl::RecordingNccl library(calls);
  nccl::replace_calls(&library);
  EXPECT_EQ(choose_transport({.device_memory = true, .between_devices = true}), TransportKind::nccl);
  nccl::restore_calls();
}

INSTANTIATE_TEST_SUITE_P(, TransportPromises,
                         testing::ValuesIn(testing_mpi::has_two_processes() ? transports_of_two_processes : transports),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace lockstep::comm
