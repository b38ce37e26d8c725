#include "engine/comm/protocol.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/comm/messages.hpp"
#include "engine/comm/slot.hpp"
#include "engine/comm/transport.hpp"
#include "engine/comm/wait_graph.hpp"
#include "engine/core/resources.hpp"
#include "engine/core/schedule.hpp"

namespace lockstep::comm {

namespace {

// A wait stays awake for much longer than the 30 to 60 us that it takes to wake a sleeper. Otherwise one late rank
// would start a cascade in which every rank sleeps. If there is a core per rank, a wait spins first, because a peer on
// another core answers within a microsecond. The spin is short, because the scheduler may have placed the peer on the
// same core, where it cannot run before this rank yields.
constexpr std::int64_t spin_ns = 2'000;
constexpr std::int64_t fitting_awake_ns = 200'000;
constexpr std::int64_t crowded_awake_ns = 50'000;
constexpr std::int64_t slice_ns = 40'000'000;

inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void sleep_on(EventCount& changes, std::uint32_t seen) {
  const timespec slice{0, slice_ns};
  syscall(SYS_futex, &changes.epoch, FUTEX_WAIT, seen, &slice, nullptr, 0);
}

bool is_ready(const IssuedCollective& issued, WaitReason reason, std::uint64_t target) {
  Slot& slot = issued.slot();
  switch (reason) {
    case WaitReason::slot:
      return slot.generation.load(std::memory_order_acquire) == issued.generation();
    case WaitReason::arrivals:
      return slot.stage.load(std::memory_order_acquire) != Stage::filling;
    case WaitReason::data:
      return slot.stage.load(std::memory_order_acquire) == Stage::finished;
    case WaitReason::staging_barrier:
      return slot.barrier_arrivals.load(std::memory_order_acquire) >= target;
    case WaitReason::end_of_round:
      break;
  }
  return false;
}

[[noreturn]] void throw_poison(const GroupControl& group, const std::string& before = "") {
  const std::string text = before + group.poison.read();
  if (group.poisoned_by_end.load() != 0) throw PeerEndedError(text);
  throw CollectiveError(text);
}

// The member has ended the round of this collective without issuing it.
bool skipped_by(const IssuedCollective& issued, int member) {
  return issued.group->rounds_of(member).has_skipped(issued.round, issued.sequence);
}

// The deadline counts from `start_ns` or from the moment when all members have begun, whichever is later.
bool is_past_deadline(const IssuedCollective& issued, std::int64_t start_ns) {
  const std::int64_t deadline_ns = issued.rank->deadline_ns.load();
  const std::int64_t now = now_ns();
  if (now - start_ns <= deadline_ns) return false;
  for (int member = 0; member < issued.group->size; ++member) {
    const std::int64_t begun = issued.rank->world->rank(issued.group->members()[member]).begun_ns.load();
    if (begun == 0 || now - begun <= deadline_ns) return false;
  }
  return true;
}

// All members have arrived, and the last one decides whether the data moves. It may not have seen a poison that was set
// meanwhile. A member that left before the decision could free a buffer that the others use.
bool is_opening(const IssuedCollective& issued, WaitReason reason) {
  return reason == WaitReason::arrivals &&
         issued.slot().arrived.load() == static_cast<std::uint32_t>(issued.group->size);
}

// The poison of the group ends the wait. Data that moves through shared memory needs no member that has failed in
// another collective, so only a failure in this one ends it.
bool ends_by_poison(const IssuedCollective& issued, WaitReason reason, std::uint64_t target) {
  if (!issued.group->poison.is_set() || is_opening(issued, reason) || is_ready(issued, reason, target)) return false;
  const Slot& slot = issued.slot();
  return reason != WaitReason::data || slot.transport != TransportKind::shared_memory || slot.is_abandoned.load() != 0;
}

// Throws if an error ends the wait. Called before each sleep.
void check_for_failure(IssuedCollective& issued, WaitReason reason, std::uint64_t target, std::int64_t start_ns) {
  RankState& rank = *issued.rank;
  publish_deferred_texts(rank);
  if (rank.world->abort.is_set())
    throw PeerEndedError(str(own_call_text(issued), ": the case was aborted: ", rank.world->abort.read()));
  // A stream's worker can still wait when its rank has ended.
  if (rank.control().end.load(std::memory_order_acquire) != RankEnd::none)
    throw PeerEndedError(str(own_call_text(issued), ": rank ", rank.rank, " has ended"));
  if (ends_by_poison(issued, reason, target)) throw_poison(*issued.group);
  for (int member = 0; member < issued.group->size; ++member) {
    if (skipped_by(issued, member)) fail(issued, skipped_text(issued, member));
    const RankEnd end = rank.world->rank(issued.group->members()[member]).end.load(std::memory_order_acquire);
    if (end == RankEnd::none) continue;
    // A rank that ended after it arrived is not needed: the waiting ranks compute the chunks. A rank that died may have
    // claimed a chunk and not finished it.
    const bool missing = reason == WaitReason::slot ||
                         (reason == WaitReason::arrivals && !issued.has_arrived(member)) ||
                         (reason == WaitReason::staging_barrier && end != RankEnd::ended) || end == RankEnd::died;
    // The awaited event may have happened before the member ended.
    if (missing && !is_ready(issued, reason, target)) fail(issued, ended_text(issued, member), Cause::peer_ended);
  }
  if (!is_past_deadline(issued, start_ns) || is_opening(issued, reason)) return;
  rank.plane->poison(*issued.group, deadline_text(issued, reason, rank.deadline_ns.load()), Cause::own);
  if (!is_opening(issued, reason)) throw_poison(*issued.group);
}

void note_state(IssuedCollective& issued, CollectiveState state) {
  const std::uint64_t later = issued.rank->control().num_records.load(std::memory_order_relaxed) - issued.record_number;
  // Beside another thread, the rank may be writing its next record into the entry.
  if (later > recorder_entries || (later == recorder_entries && !issued.on_rank_thread)) return;
  Record& record = issued.record();
  record.state.store(state, std::memory_order_release);
}

void leave(IssuedCollective& issued) {
  Slot& slot = issued.slot();
  if (issued.counted)
    issued.rank->transport_bytes += slot.entries()[issued.me].moved_bytes.load(std::memory_order_relaxed);
  count_leavers(slot, issued.group->size, 1);
}

void run_once(IssuedCollective& issued) {
  Slot& slot = issued.slot();
  note_state(issued, CollectiveState::waiting);
  while (!issued.arrived.load(std::memory_order_relaxed) && !try_arrive(issued)) {
    if (issued.on_rank_thread) finish_predecessor(issued, true);
    wait_until(issued, WaitReason::slot);
  }
  schedule::point();
  wait_until(issued, WaitReason::arrivals);
  Stage stage = slot.stage.load(std::memory_order_acquire);
  if (stage == Stage::mismatch) fail_mismatch(issued);
  if (stage == Stage::refused) throw_poison(*issued.group);
  if (stage == Stage::open) {
    const Transport& transport = transport_of(slot.transport);
    if (!transport.traits().device_memory) note_moving(issued);  // others say when their stream has come to it
    schedule::point();
    if (issued.fingerprint.kind == preparation_kind) {
      transport.prepare(issued);
    } else {
      transport.move(issued);
    }
  } else {
    map_peer_buffers(issued);  // the last arriver computed everything
  }
  leave(issued);
  note_state(issued, CollectiveState::done);
}

}  // namespace

namespace {

// The wait of an actor. Every change that may end it counts up the event count of the slot.
void wait_under_schedule(schedule::Actor& me, IssuedCollective& issued, WaitReason reason, std::uint64_t target) {
  const std::int64_t start = now_ns();
  const LongWait wait(issued, reason, target);
  const std::atomic<std::uint32_t>& epoch = issued.slot().changes.epoch;
  for (int stalled_turns = 0;;) {
    const std::uint32_t seen = epoch.load();
    if (is_ready(issued, reason, target)) return;
    check_for_failure(issued, reason, target, start);
    search_for_deadlock(*issued.rank, stalled_turns);
    const bool is_over = me.wait_or_stall("peers", [&] { return epoch.load() != seen; });
    stalled_turns = is_over ? 0 : stalled_turns + 1;
  }
}

}  // namespace

void wait_until(IssuedCollective& issued, WaitReason reason, std::uint64_t target) {
  if (is_ready(issued, reason, target)) return;
  if (schedule::Actor* me = schedule::self()) [[unlikely]]
    return wait_under_schedule(*me, issued, reason, target);
  const WorldControl& world = *issued.rank->world;
  EventCount& changes = issued.slot().changes;
  const bool fits = world.num_waiters.load(std::memory_order_relaxed) <= world.num_cores;
  const std::int64_t start = now_ns();
  std::int64_t waited = 0;
  if (fits) {
    for (; waited < spin_ns; waited = now_ns() - start) {
      for (int i = 0; i < 16; ++i) {
        if (is_ready(issued, reason, target)) return;
        pause_core();
      }
    }
  }
  for (; waited < (fits ? fitting_awake_ns : crowded_awake_ns); waited = now_ns() - start) {
    sched_yield();
    if (is_ready(issued, reason, target)) return;
  }
  const LongWait wait(issued, reason, target);
  for (;;) {
    const std::uint32_t seen = changes.epoch.load(std::memory_order_seq_cst);
    if (is_ready(issued, reason, target)) return;
    check_for_failure(issued, reason, target, start);
    check_for_deadlock(*issued.rank, now_ns() - start);
    changes.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!is_ready(issued, reason, target)) sleep_on(changes, seen);
    changes.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void note_moving(IssuedCollective& issued) { note_state(issued, CollectiveState::running); }

void check_usable_still(IssuedCollective& issued, std::int64_t start_ns) {
  check_for_failure(issued, WaitReason::data, 0, start_ns);
}

bool try_arrive(IssuedCollective& issued) {
  Slot& slot = issued.slot();
  if (slot.generation.load(std::memory_order_acquire) != issued.generation()) return false;
  MemberEntry& entry = slot.entries()[issued.me];
  entry.fingerprint = issued.fingerprint;
  entry.input = issued.input;
  entry.output = issued.output;
  entry.record = static_cast<std::uint32_t>(issued.record_number);
  if (issued.execution.stream != nullptr) issued.rank->nccl_groups->note_stream(issued, issued.execution.stream);
  entry.arrival.store(issued.generation() + 1, std::memory_order_release);
  issued.arrived.store(true, std::memory_order_relaxed);
  try {
    count_arrival(*issued.rank->world, *issued.group, issued.sequence);
  } catch (const std::exception& error) {  // such as: no transport can do it
    issued.rank->plane->poison(*issued.group, text_of(error), Cause::own);
    refuse(slot);
    throw;
  }
  issued.rank->plane->arrived(*issued.group, issued.me, issued.sequence);
  return true;
}

void run(IssuedCollective& issued) {
  if (!issued.ended.load(std::memory_order_acquire)) {
    try {
      run_once(issued);
      issued.ended.store(true, std::memory_order_release);
      return;
    } catch (const CollectiveError& error) {
      issued.failure = error.message();
      issued.failed_by_end = dynamic_cast<const PeerEndedError*>(&error) != nullptr;
    } catch (const std::exception& error) {
      // The peers wait for this rank's chunks and must learn that it has failed.
      issued.failure = text_of(error);
      issued.rank->plane->poison(*issued.group, issued.failure, Cause::own);
      if (issued.arrived.load()) issued.slot().is_abandoned.store(1);
    }
    // The recorder keeps showing the waits that only the abort of the case has ended.
    if (!issued.rank->world->abort.is_set()) note_state(issued, CollectiveState::failed);
    issued.ended.store(true, std::memory_order_release);
  }
  if (issued.failure.empty()) return;
  if (issued.failed_by_end) throw PeerEndedError(issued.failure);
  throw CollectiveError(issued.failure);
}

void check_usable(const RankState& rank, const GroupControl& group, const std::string& call) {
  if (rank.world->abort.is_set()) throw PeerEndedError(str(call, ": the case was aborted: ", rank.world->abort.read()));
  if (group.poison.is_set())
    throw_poison(group,
                 str(call, ": group ", group_text(group), " is unusable since an earlier collective of it failed: "));
}

void fail(IssuedCollective& issued, const std::string& text, Cause cause) {
  issued.rank->plane->poison(*issued.group, text, cause);
  throw_poison(*issued.group);
}

}  // namespace lockstep::comm
