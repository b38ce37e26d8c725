#include "engine/comm/nccl_stand_in.hpp"

#include <atomic>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm::nccl {
namespace {

using device::cuda::RecordingCalls;
using testing::HasSubstr;

template <class F>
std::string refusal(const F& body) {
  try {
    body();
  } catch (const ResourceError& refused) {
    return refused.message();
  }
  return "";
}

// A member with its GPU, stream, and two buffers of four numbers.
struct Member {
  Member(RecordingCalls& calls, StandIn& library, int which, int of, const UniqueId& id, int gpu)
      : cuda(calls), nccl(library) {
    cuda.use_device(gpu);
    stream = cuda.create_stream();
    in = static_cast<float*>(cuda.allocate(4 * sizeof(float)));
    out = static_cast<float*>(cuda.allocate(4 * sizeof(float)));
    handle = nccl.create(of, which, id);
  }
  RecordingCalls& cuda;
  StandIn& nccl;
  StreamHandle stream = nullptr;
  float *in = nullptr, *out = nullptr;
  Handle handle = nullptr;
};

// Two members in one process.
class StandInOfNccl : public testing::Test {
 protected:
  StandInOfNccl() { cuda_.be_lazy(); }
  RecordingCalls cuda_{2};
  StandIn nccl_{cuda_};
  const UniqueId id_ = nccl_.unique_id();
  Member a_{cuda_, nccl_, 0, 2, id_, 0};
  Member b_{cuda_, nccl_, 1, 2, id_, 1};
};

TEST(StandInOfNcclAlone, ACommunicatorIsReadyWhenAllMembersHaveCreatedIt) {
  RecordingCalls cuda(2);
  StandIn nccl(cuda);
  const UniqueId id = nccl.unique_id();
  const Member a(cuda, nccl, 0, 2, id, 0);
  EXPECT_FALSE(nccl.poll(a.handle));
  const Member b(cuda, nccl, 1, 2, id, 1);
  EXPECT_TRUE(nccl.poll(a.handle));
  EXPECT_TRUE(nccl.poll(b.handle));
}

TEST_F(StandInOfNccl, MovesAPartWhenBothStreamsHaveComeToIt) {
  cuda_.use_device(0);
  nccl_.send(a_.in, 8, 1, a_.handle, a_.stream);
  cuda_.use_device(1);
  nccl_.receive(b_.out, 8, 0, b_.handle, b_.stream);
  a_.in[1] = 7;  // before its stream has come to the send
  device::cuda::EventHandle const sent = cuda_.create_event(false);
  EXPECT_EQ(b_.out[1], 0);
  cuda_.use_device(0);
  device::cuda::EventHandle const posted = cuda_.create_event(false);
  cuda_.record_event(posted, a_.stream);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(cuda_.event_done(posted)) << "a send ends before its peer has received";
  cuda_.synchronize_stream(b_.stream);
  EXPECT_EQ(b_.out[1], 7);
  cuda_.synchronize_event(posted);
  cuda_.destroy_event(sent);
}

// In place, so that a member may not write its sum while others read its input.
TEST_F(StandInOfNccl, AddsFromTheLastMemberToTheFirst) {
  a_.in[0] = 1e8f;
  b_.in[0] = 1;
  const Sum sum{DType::float32, ReduceOp::mean};
  cuda_.use_device(0);
  nccl_.all_reduce(a_.in, a_.in, 4, sum, a_.handle, a_.stream);
  cuda_.use_device(1);
  nccl_.all_reduce(b_.in, b_.in, 4, sum, b_.handle, b_.stream);
  device::cuda::EventHandle const done = cuda_.create_event(false);
  cuda_.record_event(done, b_.stream);
  for (int i = 0; i < 20; ++i) cuda_.event_done(done);
  EXPECT_EQ(b_.in[0], 1) << "an input is overwritten that a peer has not read";
  cuda_.use_device(0);
  device::cuda::EventHandle const first = cuda_.create_event(false);
  cuda_.record_event(first, a_.stream);
  for (int i = 0; i < 20 && !cuda_.event_done(first); ++i) cuda_.event_done(done);
  cuda_.synchronize_stream(b_.stream);
  cuda_.synchronize_stream(a_.stream);
  EXPECT_EQ(a_.in[0], (1 + 1e8f) / 2);
  EXPECT_EQ(b_.in[0], a_.in[0]);
}

TEST_F(StandInOfNccl, RefusesMemoryOfTheHost) {
  float number = 0;
  EXPECT_THAT(refusal([&] { nccl_.send(&number, 4, 1, a_.handle, a_.stream); }),
              HasSubstr("not in memory of a device"));
  EXPECT_THAT(refusal([&] { nccl_.receive(a_.out, 32, 1, a_.handle, a_.stream); }),
              HasSubstr("not in memory of a device"));
}

TEST_F(StandInOfNccl, RefusesAStreamOfAnotherDevice) {
  EXPECT_THAT(refusal([&] { nccl_.send(a_.in, 4, 1, a_.handle, b_.stream); }), HasSubstr("a stream of device 1"));
}

TEST_F(StandInOfNccl, RefusesAMemberThatDoesNotExist) {
  EXPECT_THAT(refusal([&] { nccl_.send(a_.in, 4, 2, a_.handle, a_.stream); }), HasSubstr("member 2 of 2"));
}

TEST(StandInOfNcclAlone, RefusesTwoMembersOnOneDevice) {
  RecordingCalls cuda(2);
  StandIn nccl(cuda);
  const UniqueId id = nccl.unique_id();
  const Member a(cuda, nccl, 0, 2, id, 1), b(cuda, nccl, 1, 2, id, 1);
  EXPECT_THAT(refusal([&] { nccl.poll(a.handle); }), HasSubstr("members 0 and 1 both use device 1"));
}

TEST_F(StandInOfNccl, RefusesAnIdThatIsUsedTwice) {
  EXPECT_THAT(refusal([&] { nccl_.create(2, 1, id_); }), HasSubstr("has a member 1"));
}

TEST_F(StandInOfNccl, PartsOfDifferentSizesAreAnError) {
  cuda_.use_device(0);
  nccl_.send(a_.in, 8, 1, a_.handle, a_.stream);
  cuda_.use_device(1);
  nccl_.receive(b_.out, 4, 0, b_.handle, b_.stream);
  device::cuda::EventHandle const done = cuda_.create_event(false);
  cuda_.record_event(done, b_.stream);
  cuda_.use_device(0);
  device::cuda::EventHandle const sent = cuda_.create_event(false);
  cuda_.record_event(sent, a_.stream);
  for (int i = 0; i < 20 && !cuda_.event_done(done); ++i) cuda_.event_done(sent);
  EXPECT_THAT(refusal([&] { nccl_.poll(b_.handle); }), HasSubstr("member 0 gives 8 bytes to member 1, which takes 4"));
}

// The stream goes on, and the peer waits until its own communicator is aborted.
TEST_F(StandInOfNccl, AnAbortEndsTheWorkOfOneMember) {
  cuda_.use_device(0);
  nccl_.receive(a_.out, 8, 1, a_.handle, a_.stream);
  nccl_.abort(a_.handle);
  cuda_.synchronize_stream(a_.stream);
  cuda_.use_device(1);
  nccl_.send(b_.in, 8, 0, b_.handle, b_.stream);
  device::cuda::EventHandle const sent = cuda_.create_event(false);
  cuda_.record_event(sent, b_.stream);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(cuda_.event_done(sent));
  nccl_.abort(b_.handle);
  cuda_.synchronize_stream(b_.stream);
}

// Members in two processes: each has a stand-in of CUDA and of NCCL, and maps the memory of the other.
TEST(StandInOfNcclAlone, ConnectsProcesses) {
  auto* const shared =
      static_cast<std::atomic<int>*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  auto* const id = reinterpret_cast<UniqueId*>(shared + 16);
  RecordingCalls cuda(2);
  cuda.be_lazy();
  StandIn nccl(cuda);
  const auto exchange = [&](int me) {
    if (me == 0) *id = nccl.unique_id();
    if (me == 0) shared->store(1);
    while (shared->load() < 1) ::usleep(100);
    Member own(cuda, nccl, me, 2, *id, me);
    while (!nccl.poll(own.handle)) ::usleep(100);
    own.in[2] = static_cast<float>(me + 1);
    nccl.group_start();
    nccl.send(own.in, 16, 1 - me, own.handle, own.stream);
    nccl.receive(own.out, 16, 1 - me, own.handle, own.stream);
    nccl.group_end();
    cuda.synchronize_stream(own.stream);
    return own.out[2] == static_cast<float>(2 - me);
  };
  const pid_t child = ::fork();
  if (child == 0) ::_exit(exchange(1) ? 0 : 1);
  EXPECT_TRUE(exchange(0));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace lockstep::comm::nccl
