#include "engine/comm/protocol.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/comm/messages.hpp"
#include "engine/comm/transport.hpp"
#include "engine/comm/wait_graph.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// How long a wait stays awake: well beyond the 30 to 60 us that waking a sleeper takes, else one late rank starts a
// cascade in which every rank sleeps. While ranks fit the cores, a wait spins first, as a peer on another core answers
// within a microsecond. The spin is short: the scheduler may have placed the peer on this very core, and then nothing
// comes before this rank yields.
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

void sleep_on(Bell& bell, std::uint32_t seen) {
  const timespec slice{0, slice_ns};
  syscall(SYS_futex, &bell.rings, FUTEX_WAIT, seen, &slice, nullptr, 0);
}

bool is_ready(const Issued& issued, Waiting for_what, std::uint64_t target) {
  Slot& slot = issued.slot();
  switch (for_what) {
    case Waiting::slot:
      return slot.generation.load(std::memory_order_acquire) == issued.generation();
    case Waiting::arrivals:
      return slot.stage.load(std::memory_order_acquire) != Stage::filling;
    case Waiting::data:
      return slot.stage.load(std::memory_order_acquire) == Stage::finished;
    case Waiting::round:
      return slot.rounds.load(std::memory_order_acquire) >= target;
    case Waiting::end_of_round:
      break;
  }
  return false;
}

[[noreturn]] void throw_poison(const GroupControl& group, const std::string& before = "") {
  const std::string text = before + group.poison.read();
  if (group.poisoned_by_end.load() != 0) throw PeerEndedError(text);
  throw CollectiveError(text);
}

// Whether a member has ended the round of this collective without issuing it.
bool left_out_by(const Issued& issued, int member) {
  return !issued.has_arrived(member) && issued.group->rounds_of(member).left_out(issued.round, issued.sequence);
}

// The clock of a wait starts when all members have begun.
bool is_past_deadline(const Issued& issued, std::int64_t start_ns) {
  const std::int64_t deadline_ns = issued.rank->deadline_ns.load();
  const std::int64_t now = now_ns();
  if (now - start_ns <= deadline_ns) return false;
  for (int member = 0; member < issued.group->size; ++member) {
    const std::int64_t begun = issued.rank->world->rank(issued.group->members()[member]).begun_ns.load();
    if (begun == 0 || now - begun <= deadline_ns) return false;
  }
  return true;
}

// What ends a wait as an error, looked at before each sleep.
void watch(Issued& issued, Waiting for_what, std::uint64_t target, std::int64_t start_ns) {
  RankState& rank = *issued.rank;
  tell_deferred(rank);
  if (rank.world->abort.any())
    throw PeerEndedError(
        str(call_text(*rank.world, issued.record()), ": the case was aborted: ", rank.world->abort.read()));
  // A worker of a stream that still waits when its rank has ended.
  if (rank.control().end.load(std::memory_order_acquire) != RankEnd::none)
    throw PeerEndedError(str(call_text(*rank.world, issued.record()), ": rank ", rank.rank, " has ended"));
  if (issued.group->poison.any()) throw_poison(*issued.group);
  for (int member = 0; member < issued.group->size; ++member) {
    if (member == issued.me) continue;
    if (for_what == Waiting::arrivals && left_out_by(issued, member)) fail(issued, left_out_text(issued, member));
    const RankEnd end = rank.world->rank(issued.group->members()[member]).end.load(std::memory_order_acquire);
    if (end == RankEnd::none) continue;
    // An ended rank that has arrived did its part: whoever waits computes the chunks. A dead one may have taken a
    // chunk with it.
    const bool missing = for_what == Waiting::slot || (for_what == Waiting::arrivals && !issued.has_arrived(member)) ||
                         (for_what == Waiting::round && end != RankEnd::ended) || end == RankEnd::died;
    // What ended the wait may have come before the end of the member.
    if (missing && !is_ready(issued, for_what, target)) fail(issued, ended_text(issued, member), Cause::peer_ended);
  }
  if (is_past_deadline(issued, start_ns)) fail(issued, deadline_text(issued, for_what, rank.deadline_ns.load()));
}

void open(Issued& issued) {
  Slot& slot = issued.slot();
  const Line* lines = slot.lines();
  const int size = issued.group->size;
  const bool is_exchange = lines[0].fingerprint.kind == exchange_kind;
  std::uint32_t staged = is_exchange && size > 1 ? 1 : 0;
  for (int member = 0; member < size; ++member) {
    const Fingerprint &mine = lines[member].fingerprint, &first = lines[0].fingerprint;
    if (!is_alike(mine, first) || mine.digest != first.digest) {
      slot.stage.store(Stage::mismatch);
      ring_all(*issued.rank->world);  // members that wait for something else have to tell
      return;
    }
    staged |= lines[member].arrival.load(std::memory_order_relaxed) & 1;
  }
  slot.staged = staged;
  if (staged == 0 && run_at_once(slot, size)) {
    slot.stage.store(Stage::finished);
  } else {
    slot.stage.store(Stage::open);
  }
  ring(slot.bell);
}

void note_state(Issued& issued, CollectiveState state) {
  if (issued.rank->control().num_records.load(std::memory_order_relaxed) - issued.record_number >= recorder_entries)
    return;
  Record& record = issued.record();
  if (state == CollectiveState::done || state == CollectiveState::failed) record.finished_ns = now_ns();
  record.state.store(state, std::memory_order_release);
}

void leave(Issued& issued) {
  Slot& slot = issued.slot();
  const auto size = static_cast<std::uint32_t>(issued.group->size);
  if (issued.counted) issued.rank->transport_bytes += slot.lines()[issued.me].moved.load(std::memory_order_relaxed);
  if (slot.left.fetch_add(1) + 1 < size) return;
  for (std::uint32_t member = 0; member < size; ++member)
    slot.lines()[member].moved.store(0, std::memory_order_relaxed);
  slot.arrived.store(0, std::memory_order_relaxed);
  slot.next_chunk.store(0, std::memory_order_relaxed);
  slot.done_chunks.store(0, std::memory_order_relaxed);
  slot.left.store(0, std::memory_order_relaxed);
  slot.rounds.store(0, std::memory_order_relaxed);
  slot.stage.store(Stage::filling, std::memory_order_relaxed);
  slot.generation.fetch_add(1);
  ring(slot.bell);
}

void run_once(Issued& issued) {
  Slot& slot = issued.slot();
  while (!issued.arrived.load(std::memory_order_relaxed) && !try_arrive(issued)) {
    if (issued.on_rank_thread) finish_predecessor(issued, true);
    wait_until(issued, Waiting::slot);
  }
  note_state(issued, CollectiveState::waiting);
  wait_until(issued, Waiting::arrivals);
  Stage stage = slot.stage.load(std::memory_order_acquire);
  if (stage == Stage::mismatch) fail_mismatch(issued);
  if (stage == Stage::open) {
    note_state(issued, CollectiveState::running);
    if (slot.staged != 0) {
      run_staged(issued);
    } else {
      reach_buffers(issued);
      if (run_chunks(slot, issued.group->size)) {
        slot.stage.store(Stage::finished);
        ring(slot.bell);
      }
      wait_until(issued, Waiting::data);
    }
  } else if (issued.exchanged != nullptr) {
    (*issued.exchanged)[0] = *issued.exchange_input;  // alone in the group: nothing was staged
  } else {
    reach_buffers(issued);  // others were faster this time
  }
  leave(issued);
  note_state(issued, CollectiveState::done);
}

}  // namespace

void wait_until(Issued& issued, Waiting for_what, std::uint64_t target) {
  if (is_ready(issued, for_what, target)) return;
  const WorldControl& world = *issued.rank->world;
  Bell& bell = issued.slot().bell;
  const bool fits = world.num_waiters.load(std::memory_order_relaxed) <= world.num_cores;
  const std::int64_t start = now_ns();
  std::int64_t waited = 0;
  if (fits) {
    for (; waited < spin_ns; waited = now_ns() - start) {
      for (int i = 0; i < 16; ++i) {
        if (is_ready(issued, for_what, target)) return;
        pause_core();
      }
    }
  }
  for (; waited < (fits ? fitting_awake_ns : crowded_awake_ns); waited = now_ns() - start) {
    sched_yield();
    if (is_ready(issued, for_what, target)) return;
  }
  const LongWait wait(issued, for_what, target);
  for (;;) {
    const std::uint32_t seen = bell.rings.load(std::memory_order_seq_cst);
    if (is_ready(issued, for_what, target)) return;
    watch(issued, for_what, target, start);
    look_for_deadlock(*issued.rank, now_ns() - start);
    bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!is_ready(issued, for_what, target)) sleep_on(bell, seen);
    bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

bool try_arrive(Issued& issued) {
  Slot& slot = issued.slot();
  if (slot.generation.load(std::memory_order_acquire) != issued.generation()) return false;
  Line& line = slot.lines()[issued.me];
  line.fingerprint = issued.fingerprint;
  line.input = issued.input;
  line.output = issued.output;
  line.record = static_cast<std::uint32_t>(issued.record_number);
  const std::uint32_t outside = lies_outside(issued) ? 1 : 0;
  line.arrival.store((issued.generation() + 1) << 1 | outside, std::memory_order_release);
  issued.arrived.store(true, std::memory_order_relaxed);
  if (slot.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(issued.group->size))
    open(issued);
  return true;
}

void run(Issued& issued) {
  if (!issued.ended.load(std::memory_order_acquire)) {
    issued.entered = true;
    try {
      run_once(issued);
      issued.ended.store(true, std::memory_order_release);
      return;
    } catch (const CollectiveError& error) {
      issued.failure = error.message();
      issued.failed_by_end = dynamic_cast<const PeerEndedError*>(&error) != nullptr;
    } catch (const std::exception& error) {
      // The peers wait for this rank's part: they must learn that it will not come.
      issued.failure = error.what();
      issued.group->poison.claim_and_fill(issued.failure);
      ring_all(*issued.rank->world);
    }
    note_state(issued, CollectiveState::failed);
    issued.ended.store(true, std::memory_order_release);
  }
  if (issued.failure.empty()) return;
  if (issued.failed_by_end) throw PeerEndedError(issued.failure);
  throw CollectiveError(issued.failure);
}

bool is_finished(const Issued& issued) {
  if (issued.ended.load(std::memory_order_acquire)) return true;
  return issued.arrived.load() && issued.slot().stage.load(std::memory_order_acquire) == Stage::finished;
}

void check_usable(const RankState& rank, const GroupControl& group, const std::string& call) {
  if (rank.world->abort.any()) throw PeerEndedError(str(call, ": the case was aborted: ", rank.world->abort.read()));
  if (group.poison.any())
    throw_poison(group,
                 str(call, ": group ", group_text(group), " is unusable since an earlier collective of it failed: "));
}

void fail(Issued& issued, const std::string& text, Cause cause) {
  GroupControl& group = *issued.group;
  if (group.poison.claim()) {
    group.poisoned_by_end.store(cause == Cause::peer_ended ? 1 : 0);
    group.poison.fill(text);
  }
  ring_all(*issued.rank->world);
  throw_poison(group);
}

}  // namespace lockstep::comm
