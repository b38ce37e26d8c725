// The entry protocol of a collective, the same for all operations and sizes.
//
//   try_arrive   write my line into the slot of this sequence number and count up; the last arriver compares all lines
//                and opens the slot (small ones it computes at once) or marks a mismatch. Never blocks.
//   run          wait for the opening, claim chunks until none is left, wait for the last chunk, leave. The last to
//                leave retires the slot.
//
// A slot serves sequence numbers s, s + ring, s + 2 ring, ... of its group. Every wait ends by what it waits for, by
// the abort flag, by the poison of its group, by the end or death of a member that is missing, or by the deadline;
// whoever fails first writes the text into the group's poison, so that every member throws the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/control.hpp"
#include "engine/comm/reach.hpp"
#include "engine/device/activity.hpp"

namespace lockstep::comm {

struct Issued;

// Calls of a rank on inline streams that nobody is in until they are waited for (deferred.cpp).
struct Deferred {
  std::mutex mutex;  // of the list, and of what the rank tells in its control area
  std::vector<std::weak_ptr<Issued>> calls;
};

// What this rank's calls share, also on worker threads of streams; outlives the communicator when work is left over.
struct RankState {
  WorldControl* world = nullptr;
  device::Activity* activity = nullptr;     // outlives all threads of the rank
  const device::HostWorld* host = nullptr;  // null for a lone rank
  int rank = 0;
  std::atomic<std::int64_t> deadline_ns{10'000'000'000};
  std::atomic<std::int64_t> transport_bytes{0};
  std::atomic<std::int64_t> next_look_ns{0};  // for a deadlock
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> lone_memory;  // the control area of a lone rank
  Deferred deferred;
  std::unique_ptr<Reach> reach;  // of a rank that is a process

  RankControl& control() const { return world->rank(rank); }
  void note_begin() const {
    if (control().begun_ns.load(std::memory_order_relaxed) == 0) control().begun_ns.store(now_ns());
  }
};

// One collective as this rank issued it.
struct Issued {
  std::shared_ptr<RankState> rank;
  GroupControl* group = nullptr;
  int me = 0;  // within the group
  std::uint64_t sequence = 0;
  std::uint64_t round = 0;  // it belongs to, 0 for none
  Fingerprint fingerprint;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint64_t record_number = 0;
  bool counted = true;  // its bytes belong to transport_bytes()
  std::function<std::string()> agreement_text;
  std::vector<std::string>* exchanged = nullptr;  // of an exchange: where all strings go
  const std::string* exchange_input = nullptr;

  bool on_rank_thread = true;  // it is waited for there, not on a worker of its stream
  bool entered = false;        // somebody is or was in run()
  bool told = false;           // what the agreement stood for, after a mismatch
  std::atomic<bool> arrived{false};
  std::atomic<bool> ended{false};
  std::string failure;  // why it failed; set before `ended`
  bool failed_by_end = false;

  Slot& slot() const { return group->slot(sequence); }
  std::uint32_t generation() const { return static_cast<std::uint32_t>(sequence / ring_slots); }
  // Overwritten when the rank has issued many more since.
  Record& record() const { return rank->control().records[record_number % recorder_entries]; }
  // Of a member that has arrived.
  Record& record_of(int member) const {
    RankControl& control = rank->world->rank(group->members()[member]);
    return control.records[slot().lines()[member].record % recorder_entries];
  }
  bool has_arrived(int member) const {
    return (slot().lines()[member].arrival.load(std::memory_order_acquire) >> 1) == generation() + 1;
  }
};

// False when the slot is not free yet (more than a ring of collectives under way): run() arrives then.
bool try_arrive(Issued& issued);
// Throws CollectiveError; a second call after a failure throws again, after a success returns.
void run(Issued& issued);
// All chunks are done, whether or not this rank has noticed.
bool is_finished(const Issued& issued);
// Throws CollectiveError when the case is aborted or the group poisoned.
void check_usable(const RankState& rank, const GroupControl& group, const std::string& call);

// Poisons the group (the first text wins), wakes its members, and throws what the poison says.
enum class Cause { own, peer_ended };
[[noreturn]] void fail(Issued& issued, const std::string& text, Cause cause = Cause::own);

// The plain fields of the calls agree.
bool is_alike(const Fingerprint& a, const Fingerprint& b);
// After a mismatch (agreements.cpp): what agreements stood for is told, then all members throw the same text.
[[noreturn]] void fail_mismatch(Issued& issued);
bool has_told(const Issued& issued, int member);
void tell_if_mismatched(Issued& issued);  // a deferred call, under the lock of those

// A call on an inline stream that is waited for later; telling for all of these, while the rank waits for anything
// else.
void keep_deferred(const std::shared_ptr<Issued>& issued);
void tell_deferred(RankState& rank);
// The deferred call, if it was one, that had the slot of this one a ring ago: does this rank's part of it, when all
// have arrived or (`wait`) once they have; else that part would wait for a wait() that may come after this call only.
void finish_predecessor(const Issued& issued, bool wait);

// Waits for the slot to be free, for all members to have arrived, for the data to be there, or for so many arrivals at
// the meeting points of a staged collective. The end of a member that is missing, deadline, abort and poison end the
// wait as an error.
enum class Waiting : std::uint32_t { slot, arrivals, data, round, end_of_round };
void wait_until(Issued& issued, Waiting for_what, std::uint64_t target = 0);

}  // namespace lockstep::comm
