// The queue of a CUDA stream, against the stand-in that records calls.
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "engine/device/cuda/streams.hpp"
#include "engine/device/order.hpp"
#include "engine/device/stream.hpp"
#include "engine/device/test_rank.hpp"
#include "engine/device/trace.hpp"

namespace lockstep::device::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr Device gpu{Kind::cuda, 0};

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

class CudaQueueTest : public testing::Test {
 protected:
  Stream& compute() { return current_stream(gpu); }
  Stream& side() { return stream(gpu, Role::all_gather); }
  static StreamHandle handle_of(const Stream& stream) { return stream.execution().stream; }

  // A launch whose kernel tells when the device runs it.
  void kernel(Stream& on, const std::string& word) {
    launch(on, "kernel", {}, [this, word](const Pointers& p) { enqueue(p, word); });
  }
  // A collective: it waits for the host before its transport enqueues work.
  void collective(Stream& on, const std::string& word, std::function<void()> agreement) {
    launch_deferred(
        on, "collective", {}, [agreement = std::move(agreement)](const Pointers&) { agreement(); },
        [this, word](const Pointers& p) { enqueue(p, word); });
  }
  void enqueue(const Pointers& p, const std::string& word) {
    cuda_.launch(p.execution().stream, [this, word] { story_.push_back(word); });
  }
  std::function<void()> until(const std::atomic<bool>& open) {
    return [&open] {
      while (!open) sleep_ms(1);
    };
  }

  std::vector<std::string> story_;  // what the device has run, in order; written under the lock of the stand-in
  RecordingCalls cuda_;
  StandIn stand_in_{cuda_};
  OneRank rank_;
};

TEST_F(CudaQueueTest, RunsThreeLaunchesOverTwoStreamsInOrder) {
  compute();
  cuda_.hold(handle_of(compute()));
  kernel(compute(), "first");
  side().wait(compute().record());
  kernel(side(), "second");
  compute().wait(side().record());
  kernel(compute(), "third");
  EXPECT_THAT(story_, ElementsAre());  // all are enqueued, and none has run
  EXPECT_EQ(cuda_.count("launch"), 3);
  EXPECT_EQ(cuda_.count("wait_event"), 2);
  cuda_.resume(handle_of(compute()));
  compute().synchronize();
  EXPECT_THAT(story_, ElementsAre("first", "second", "third"));
}

TEST_F(CudaQueueTest, EnqueuesOnTheThreadOfTheRankUnlessALaunchMayBlock) {
  std::thread::id thread;
  launch(compute(), "here", {}, [&](const Pointers&) { thread = std::this_thread::get_id(); });
  EXPECT_EQ(thread, std::this_thread::get_id());
  launch_deferred(
      compute(), "there", {}, [](const Pointers&) {}, [&](const Pointers&) { thread = std::this_thread::get_id(); });
  compute().synchronize();
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST_F(CudaQueueTest, QueuesLaterItemsBehindACollective) {
  std::atomic<bool> agreed = false;
  collective(side(), "gathered", until(agreed));
  kernel(side(), "copied out");
  compute().wait(side().record());
  kernel(compute(), "used");
  kernel(compute(), "used again");
  EXPECT_EQ(cuda_.count("launch"), 0);
  agreed = true;
  compute().synchronize();
  EXPECT_THAT(story_, ElementsAre("gathered", "copied out", "used", "used again"));
}

// Streams share channels of a GPU: a wait that is enqueued before the work that it waits for could stop that work.
TEST_F(CudaQueueTest, WaitsOnlyForEventsThatHaveBeenRecorded) {
  for (int step = 0; step < 20; ++step) {
    collective(side(), "gathered", [] { sleep_ms(1); });
    compute().wait(side().record());
    kernel(compute(), "used");
    side().wait(compute().record());
  }
  synchronize_all();
  EXPECT_EQ(story_.size(), 40U);
  std::map<std::string, bool> recorded;
  int num_waits = 0;
  for (const std::string& call : cuda_.log()) {
    const std::string event = call.substr(call.rfind(' ') + 1);
    if (call.starts_with("record_event")) recorded[event] = true;
    if (!call.starts_with("wait_event")) continue;
    ++num_waits;
    EXPECT_TRUE(recorded[event]) << call;
  }
  EXPECT_GE(num_waits, 20);
  EXPECT_EQ(cuda_.count("wait_word"), 0);
}

TEST_F(CudaQueueTest, WaitsForTheItemsBeforeTheEventAlone) {
  compute();
  cuda_.hold(handle_of(compute()));
  const MemoryPtr word = allocate_pinned(gpu, 8);
  kernel(compute(), "before");
  const Event event = compute().record();
  cuda_.resume(handle_of(compute()));
  event.synchronize();
  cuda_.hold(handle_of(compute()));
  kernel(compute(), "after");
  event.synchronize();  // the later kernel is held
  kernel(side(), "beside");
  side().wait(event);
  side().synchronize();
  EXPECT_THAT(story_, ElementsAre("before", "beside"));
  cuda_.resume(handle_of(compute()));
}

TEST_F(CudaQueueTest, KeepsTheMarksOfItemsThatTheStreamHasNotReached) {
  compute();
  cuda_.hold(handle_of(compute()));
  kernel(compute(), "first");
  const Event first = compute().record();
  kernel(compute(), "second");
  const Event second = compute().record();
  kernel(compute(), "later");
  cuda_.resume(handle_of(compute()));
  first.synchronize();
  const int marks = cuda_.count("record_event");
  EXPECT_EQ(marks, 2);
  second.synchronize();
  EXPECT_EQ(cuda_.count("record_event"), marks) << "a further mark waits for the later kernel, too";
}

TEST_F(CudaQueueTest, MarksAnItemOfTheWorkerWithoutAWait) {
  std::atomic<bool> agreed = false;
  collective(side(), "gathered", until(agreed));  // the worker may have begun it already
  kernel(side(), "before");
  const Event event = side().record();
  kernel(side(), "later");
  EXPECT_EQ(cuda_.count("record_event"), 0);
  agreed = true;
  for (int i = 0; i < 2000 && cuda_.count("launch") < 3; ++i) sleep_ms(1);
  const std::vector<std::string> log = cuda_.log();
  const auto at = [&log](const std::string& call, int nth) {
    int seen = 0;
    for (std::size_t i = 0; i < log.size(); ++i)
      if (log[i].starts_with(call) && ++seen == nth) return i;
    return log.size();
  };
  EXPECT_LT(at("launch", 2), at("record_event", 1));
  EXPECT_LT(at("record_event", 1), at("launch", 3));
}

TEST_F(CudaQueueTest, MakesNothingInASteadyStep) {
  const MemoryPtr host = allocate_pinned(gpu, 4096);
  const auto step = [&] {
    const MemoryPtr block = allocate(gpu, 4096), gathered = allocate(gpu, 8192);
    copy_bytes(compute(), full_access(block, Mode::write), full_access(host, Mode::read));
    side().wait(compute().record());
    collective(side(), "gathered", [] {});
    compute().wait(side().record());
    kernel(compute(), "used");
    copy_bytes(compute(), full_access(host, Mode::write), full_access(block, Mode::read));
    compute().record().synchronize();
  };
  for (int i = 0; i < 10; ++i) step();
  const auto made = [&] {
    std::map<std::string, int> of;
    for (const char* call : {"create_event", "create_stream", "allocate", "pin"}) of[call] = cuda_.count(call);
    return of;
  };
  const auto before = made();
  EXPECT_GT(before.at("pin"), 0) << "the pages of a pinned pool";
  for (int i = 0; i < 200; ++i) step();
  EXPECT_EQ(made(), before);
  EXPECT_GT(cuda_.count("record_event"), 400);
  EXPECT_EQ(cuda_.count("synchronize_stream"), 0);  // a step waits for events
}

TEST_F(CudaQueueTest, AsksNothingAboutItemsThatTheHostHasWaitedFor) {
  kernel(compute(), "first");
  compute().synchronize();
  compute().synchronize();
  side().wait(compute().record());
  kernel(side(), "second");
  side().synchronize();
  EXPECT_THAT(story_, ElementsAre("first", "second"));
  EXPECT_EQ(cuda_.count("synchronize_event"), 2);  // one per stream
  EXPECT_EQ(cuda_.count("wait_event"), 0);
}

TEST_F(CudaQueueTest, PassesAFailureToTheStreamsThatWaitForIt) {
  std::atomic<bool> agreed = false;
  collective(side(), "never", [&] {
    until(agreed)();
    throw CollectiveError("the ranks disagree");
  });
  compute().wait(side().record());
  kernel(compute(), "uses what is missing");
  agreed = true;
  EXPECT_THAT(message_of([&] { compute().synchronize(); }), HasSubstr("the ranks disagree"));
  EXPECT_THAT(message_of([&] { kernel(side(), "later"); }), HasSubstr("the ranks disagree"));
  EXPECT_THAT(story_, ElementsAre());
  clear_failures();
  kernel(compute(), "again");
  compute().synchronize();
  EXPECT_THAT(story_, ElementsAre("again"));
}

TEST_F(CudaQueueTest, KeepsTheMarksOfItemsBeforeAFailure) {
  kernel(compute(), "good");
  const Event good = compute().record();
  launch(compute(), "fails", {}, [](const Pointers&) { throw Error("on purpose"); });
  good.synchronize();
  EXPECT_THAT(message_of([&] { compute().synchronize(); }), HasSubstr("on purpose"));
  EXPECT_EQ(cuda_.count("synchronize_stream"), 0);
  EXPECT_EQ(cuda_.count("synchronize_event"), 1) << "of the first kernel";
  clear_failures();
  EXPECT_EQ(cuda_.count("synchronize_stream"), 1) << "the stream is used again";
  EXPECT_EQ(cuda_.count("synchronize_event"), 1) << "the stream is known to be empty";
}

TEST_F(CudaQueueTest, KeepsTheItemsBeforeAThreadThatCannotUseTheDevice) {
  kernel(compute(), "good");
  const Event good = compute().record();
  cuda_.fail("use_device", 1);  // by the thread of the queue
  collective(compute(), "never", [] {});
  EXPECT_THAT(message_of([&] { compute().synchronize(); }), HasSubstr("use_device: refused"));
  EXPECT_NO_THROW(good.synchronize());
  EXPECT_THAT(story_, ElementsAre("good"));
  clear_failures();
}

// After an error of a kernel CUDA refuses further calls, too.
TEST_F(CudaQueueTest, KeepsTheFirstFailure) {
  launch(compute(), "fails", {}, [](const Pointers&) { throw Error("on purpose"); });
  cuda_.fail("record_event", 1);
  const Event later = compute().record();
  EXPECT_EQ(cuda_.count("record_event"), 0);
  EXPECT_THAT(message_of([&] { later.synchronize(); }), HasSubstr("on purpose"));
  EXPECT_THAT(message_of([&] { compute().synchronize(); }), HasSubstr("on purpose"));
  clear_failures();
}

TEST_F(CudaQueueTest, TracesTheTimesOfTheDevice) {
  start_trace({});
  const auto slow = [this](const Pointers& p) { cuda_.launch(p.execution().stream, [] { sleep_ms(3); }); };
  launch(compute(), "first", {}, slow);
  compute().synchronize();
  cuda_.hold(handle_of(compute()));
  launch(compute(), "second", {}, slow);
  while (cuda_.count("launch") < 2) sleep_ms(1);  // until its body has run on the worker
  Trace seen = trace();
  ASSERT_EQ(seen.launches.size(), 2U);
  EXPECT_GE(seen.launches[0].end_ns, seen.launches[0].begin_ns + 2'000'000);
  EXPECT_EQ(seen.launches[1].end_ns, 0);  // the host has enqueued it, and the device has not run it
  cuda_.resume(handle_of(compute()));
  compute().synchronize();
  seen = trace();
  EXPECT_GE(seen.launches[1].begin_ns, seen.launches[0].end_ns);
  EXPECT_GE(seen.launches[1].end_ns, seen.launches[1].begin_ns + 2'000'000);
}

TEST_F(CudaQueueTest, ReturnsFromAWaitWhenTheStreamHasReachedTheItem) {
  for (const bool whole_stream : {true, false}) {
    cuda_.hold(handle_of(compute()));
    kernel(compute(), "late");
    const Event event = compute().record();
    EXPECT_EQ(story_.size(), whole_stream ? 0U : 1U);
    std::thread device([this, held = handle_of(compute())] {
      sleep_ms(10);
      cuda_.resume(held);
    });
    whole_stream ? compute().synchronize() : event.synchronize();
    EXPECT_EQ(story_.size(), whole_stream ? 1U : 2U);
    device.join();
  }
}

// Each call of CUDA is refused in turn, the first time and later. The error names the call, nothing hangs, and the end
// of the rank releases everything.
TEST(CudaFailures, NameTheCallAndReleaseEverything) {
  const auto program = [](RecordingCalls& cuda) {
    const OneRank rank;
    const MemoryPtr host = allocate_pinned(gpu, 64), block = allocate(gpu, 64);
    write_from_host(*block, 0, "text", 4);
    Stream &compute = current_stream(gpu), &side = stream(gpu, Role::all_gather);
    for (int i = 0; i < 3; ++i) {
      copy_bytes(compute, full_access(block, Mode::write), full_access(host, Mode::read));
      side.wait(compute.record());
      launch_deferred(
          side, "collective", {}, [](const Pointers&) { sleep_ms(1); },
          [&cuda](const Pointers& p) { cuda.launch(p.execution().stream, [] {}); });
      compute.wait(side.record());
      launch(compute, "kernel", {}, [&cuda](const Pointers& p) { cuda.launch(p.execution().stream, [] {}); });
      set_poison(i == 1);
    }
    std::string text(4, ' ');
    read_to_host(text.data(), *block, 0, 4);
    synchronize_all();
  };
  std::map<std::string, int> calls_of_program;
  {
    RecordingCalls cuda;
    const StandIn stand_in(cuda);
    program(cuda);
    calls_of_program = cuda.counts();
  }
  EXPECT_GE(calls_of_program.size(), 14U);
  int num_failures = 0;
  for (const auto& [call, count] : calls_of_program) {
    for (const int nth : {1, 2, 3}) {
      if (nth > count) continue;
      RecordingCalls cuda;
      const StandIn stand_in(cuda);
      cuda.fail(call, nth);
      const std::string message = message_of([&] { program(cuda); });
      // How often events are asked depends on the threads: a late call may be at the end, where errors are ignored.
      const bool may_be_late = call == "event_done" || call == "synchronize_event" || call == "create_event";
      if (message != "nothing was thrown" || !may_be_late) {
        EXPECT_THAT(message, HasSubstr(call + ": refused")) << nth;
      }
      num_failures += message != "nothing was thrown";
      EXPECT_EQ(cuda.num_live_events(), 0) << call << " " << nth;
      if (call != "event_done") {
        EXPECT_EQ(cuda.num_live_allocations(), 0) << call << " " << nth;
        EXPECT_EQ(cuda.num_pinned(), 0) << call << " " << nth;
      }
    }
  }
  EXPECT_GE(num_failures, 20);
}

TEST(CudaEnd, EndsWhileAQueueWaitsForACollective) {
  RecordingCalls cuda;
  const StandIn stand_in(cuda);
  std::atomic<bool> agreed = false, is_used = false;
  std::thread other;
  {
    const OneRank rank;
    Stream &compute = current_stream(gpu), &side = stream(gpu, Role::all_gather);
    launch_deferred(
        side, "collective", {},
        [&](const Pointers&) {
          while (!agreed) sleep_ms(1);
        },
        [](const Pointers&) {});
    compute.wait(side.record());
    launch(compute, "uses it", {}, [&](const Pointers&) { is_used = true; });
    other = std::thread([&] {
      sleep_ms(20);
      agreed = true;
    });
  }
  other.join();
  EXPECT_FALSE(is_used);
  EXPECT_EQ(cuda.num_live_allocations(), 0);
  EXPECT_EQ(cuda.num_live_events(), 0);
}

// Then nobody knows whether the stream still uses memory of the rank.
TEST(CudaEnd, KeepsTheMemoryOfAStreamWhoseEndItCannotAwait) {
  RecordingCalls cuda;
  const StandIn stand_in(cuda);
  {
    const OneRank rank;
    const MemoryPtr host = allocate_pinned(gpu, 8), block = allocate(gpu, 8);
    launch(current_stream(gpu), "kernel", {}, [](const Pointers&) {});
    cuda.fail("event_done", 1);
  }
  EXPECT_EQ(cuda.count("event_done"), 1);
  EXPECT_EQ(cuda.num_live_allocations(), 1);
  EXPECT_EQ(cuda.num_pinned(), 1);
  EXPECT_THAT(why_no_further_ranks(), HasSubstr("1 streams of ranks that have ended are in use"));
}

TEST(CudaEnd, LetsNoStreamWaitForALaunchThatNeverRuns) {
  RecordingCalls cuda;
  const StandIn stand_in(cuda);
  std::atomic<bool> agreed = false;
  std::thread other;
  {
    const OneRank rank;
    Stream &compute = current_stream(gpu), &side = stream(gpu, Role::all_gather);
    launch_deferred(
        side, "collective", {},
        [&](const Pointers&) {
          while (!agreed) sleep_ms(1);
        },
        [](const Pointers&) {});
    launch(side, "behind it", {}, [](const Pointers&) {});
    compute.wait(side.record());
    sleep_ms(20);  // the thread of the queue begins to wait
    other = std::thread([&] {
      sleep_ms(20);
      agreed = true;
    });
  }
  other.join();
  EXPECT_EQ(cuda.count("wait_event"), 0);
}

TEST(CudaEnd, ReturnsFromNoWaitForALaunchThatNeverRuns) {
  RecordingCalls cuda;
  const StandIn stand_in(cuda);
  std::atomic<bool> begun = false, agreed = false;
  std::string message;
  std::thread other;
  {
    const OneRank rank;
    Stream& side = stream(gpu, Role::all_gather);
    launch_deferred(
        side, "collective", {},
        [&](const Pointers&) {
          begun = true;
          while (!agreed) sleep_ms(1);
        },
        [](const Pointers&) {});
    launch(side, "behind it", {}, [](const Pointers&) {});
    while (!begun) sleep_ms(1);  // on the stream's own thread
    other = std::thread([&, event = side.record()] {
      message = message_of([&] { event.synchronize(); });
      agreed = true;
    });
    sleep_ms(20);  // the other thread begins to wait
  }
  other.join();
  EXPECT_THAT(message, HasSubstr("/all_gather ended before it ran the awaited launch"));
}

TEST(CudaEnd, GivesStreamsToTheNextRank) {
  RecordingCalls cuda;
  const StandIn stand_in(cuda);
  for (int i = 0; i < 5; ++i) {
    const OneRank rank;
    launch(stream(gpu, Role::copy_in), "kernel", {}, [](const Pointers&) {});
    synchronize_all();
  }
  EXPECT_EQ(cuda.count("create_stream"), 2);  // compute, copy_in
  EXPECT_EQ(why_no_further_ranks(), "");
}

TEST(CudaEnd, TellsWhyAProcessRunsNoFurtherRanks) {
  RecordingCalls cuda;
  const StandIn stand_in(cuda);
  EXPECT_EQ(why_no_further_ranks(), "");
  EXPECT_EQ(cuda.count("use_device"), 0) << "CUDA starts in ranks only";
  Event outlives;
  {
    const OneRank rank;
    outlives = current_stream(gpu).record();
    EXPECT_THAT(why_no_further_ranks(), HasSubstr("1 streams of ranks that have ended are in use"));
  }
  EXPECT_THAT(why_no_further_ranks(), HasSubstr("1 streams of ranks that have ended are in use"));
  outlives = Event();
  EXPECT_EQ(why_no_further_ranks(), "");
  cuda.fail("free_bytes", 1);  // as after an illegal access by a kernel
  EXPECT_THAT(why_no_further_ranks(), HasSubstr("free_bytes: refused"));
}

}  // namespace
}  // namespace lockstep::device::cuda
