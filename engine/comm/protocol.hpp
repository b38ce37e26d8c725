// The entry protocol of a collective, identical for all operations and sizes.
//
//   try_arrive   writes this member's entry into the slot of the sequence number and increments the count of arrivals.
//                The last member to arrive compares all entries. It then opens the slot (and computes a small
//                collective itself) or marks a mismatch. It refuses the slot of a poisoned group. Never blocks.
//   run          waits until the slot is open, claims chunks until none is left, waits for the last chunk, and leaves.
//                The last member to leave frees the slot.
//
// A slot serves the sequence numbers s, s + ring_slots, s + 2 * ring_slots, ... of its group. Every wait ends: by the
// awaited event, the abort flag, the poison of the group, the end or death of a missing member, or the deadline. The
// first rank that fails writes the text into the group's poison, so that every member throws the same text.
//
// A member that throws may free its buffers. So data does not begin to move in a poisoned group. Once it moves through
// shared memory, a poison of another collective of the group does not end it on any member. A death still does, and a
// member that fails because of it while the last one opens the slot does not wait for the copy of that one.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/comm/control_plane.hpp"
#include "engine/comm/device_memory.hpp"
#include "engine/comm/host_copies.hpp"
#include "engine/comm/nccl_groups.hpp"
#include "engine/comm/peer_mappings.hpp"
#include "engine/device/activity.hpp"

namespace lockstep::comm {

struct IssuedCollective;

// Asynchronous calls of a rank on inline streams: no thread runs them until they are waited for (deferred.cpp).
struct DeferredCalls {
  std::mutex mutex;  // guards the list, and the content text in the rank's control area
  std::vector<std::weak_ptr<IssuedCollective>> calls;
};

// State that all collectives of a rank share, including those on worker threads of streams. It outlives the
// communicator while such a worker still runs a collective.
struct RankState {
  WorldControl* world = nullptr;
  std::unique_ptr<ControlPlane> plane;
  device::Activity* activity = nullptr;  // outlives all threads of the rank
  int rank = 0;
  std::atomic<std::int64_t> deadline_ns{10'000'000'000};
  std::atomic<std::int64_t> transport_bytes{0};
  std::atomic<std::int64_t> next_deadlock_check_ns{0};
  std::uint64_t suspected_deadlock = 0;  // guarded by WorldControl::deadlock_searcher (wait_graph.cpp)
  std::int64_t suspected_since_ns = 0;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> private_control;  // the control area of a single rank without shared memory
  DeferredCalls deferred;
  std::unique_ptr<PeerMappings> peer_mappings;  // only when ranks are processes
  std::unique_ptr<DeviceMemory> device_memory;  // since the rank's first collective on an accelerator
  std::unique_ptr<NcclGroups> nccl_groups;      // likewise
  PinnedMemory pinned_memory;

  // On the rank's own thread, before its first collective on an accelerator of this kind.
  void open_accelerator(device::Kind kind) {
    if (device_memory != nullptr) return;
    device_memory = std::make_unique<DeviceMemory>(*world, rank, kind);
    nccl_groups = std::make_unique<NcclGroups>();
  }
  RankControl& control() const { return world->rank(rank); }
};

// A collective that this rank has issued.
struct IssuedCollective {
  std::shared_ptr<RankState> rank;
  GroupControl* group = nullptr;
  int me = 0;  // within the group
  std::uint64_t sequence = 0;
  std::uint64_t round = 0;  // the round it belongs to (end_round()); 0: none
  Fingerprint fingerprint;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // Of the device (scratch_bytes_of). Its bytes serve the later launches of the stream, too.
  std::byte* scratch = nullptr;
  device::Execution execution;              // of its stream
  std::vector<device::Execution> prepared;  // of a preparation: the streams that it opens
  std::uint64_t record_number = 0;
  bool counted = true;  // its bytes belong to transport_bytes()
  SumOrder sum_order = SumOrder::fixed;
  std::function<std::string()> content_text;
  std::vector<std::string>* exchange_output = nullptr;  // exchange only: the strings of all members
  const std::string* exchange_input = nullptr;

  bool on_rank_thread = true;      // run() is called on the rank's thread, not on a worker of the stream
  bool content_published = false;  // content_text has been published after a mismatch
  std::atomic<bool> arrived{false};
  std::atomic<bool> ended{false};
  std::string failure;         // set before `ended`; empty on success
  bool failed_by_end = false;  // the failure is a PeerEndedError

  Slot& slot() const { return group->slot(sequence); }
  std::uint32_t generation() const { return static_cast<std::uint32_t>(sequence / ring_slots); }
  // Valid until the rank has issued `recorder_entries` more collectives (is_kept_in()).
  Record& record() const { return rank->control().records[record_number % recorder_entries]; }
  // The record of a member that has arrived, for as long.
  Record& record_of(int member) const {
    RankControl& control = rank->world->rank(group->members()[member]);
    return control.records[slot().entries()[member].record % recorder_entries];
  }
  // Whether the flight recorder still keeps this collective in its record.
  bool is_kept_in(const Record& record) const { return record.is_of(rank->world->offset_of(group), sequence); }
  bool has_arrived(int member) const {
    return slot().entries()[member].arrival.load(std::memory_order_acquire) == generation() + 1;
  }
};

// False when the slot is still in use (`ring_slots` collectives are in progress); run() then arrives later.
bool try_arrive(IssuedCollective& issued);
// Completes the collective on this rank. Throws CollectiveError. A later call throws the same failure again, or returns
// after a success.
void run(IssuedCollective& issued);
// Throws CollectiveError when the case is aborted or the group poisoned.
void check_usable(const RankState& rank, const GroupControl& group, const std::string& call);

// The data of this member moves. Transports of device memory call it when the stream has come to the collective.
void note_moving(IssuedCollective& issued);

// Throws what ends a wait that began at `start_ns`, if anything does: for waits for a device.
void check_usable_still(IssuedCollective& issued, std::int64_t start_ns);

// Poisons the group (the first text wins), wakes its members, and throws the text of the poison.
[[noreturn]] void fail(IssuedCollective& issued, const std::string& text, Cause cause = Cause::own);

// After a mismatch (content_digests.cpp): waits for the members' content texts, then all members throw the same text.
[[noreturn]] void fail_mismatch(IssuedCollective& issued);
// The member has published its content text for this collective.
bool has_published(const IssuedCollective& issued, int member);
// Publishes the content text of a deferred call whose slot shows a mismatch. The caller holds DeferredCalls::mutex.
void publish_if_mismatched(IssuedCollective& issued);

// Adds an asynchronous call on an inline stream to the rank's deferred calls.
void add_deferred(const std::shared_ptr<IssuedCollective>& issued);
// Publishes the content texts of all mismatched deferred calls. The rank calls it while it waits for anything else.
void publish_deferred_texts(RankState& rank);
// Runs the deferred call that uses the slot of `issued` one generation earlier, if there is one. Otherwise this rank's
// work on it would run only in its Work::wait(), which the program may call after `issued`, and the slot would never
// become free. Unless `wait` is set, does nothing while a member of that call has not arrived. For a call that a worker
// runs, it ends asynchronous barriers only: data moves in the waits of the program.
void finish_predecessor(const IssuedCollective& issued, bool wait);

// The event that a rank waits for: a free slot, the arrival of all members, the data of the last chunk, `target`
// arrivals at the barriers of a staged collective, or the end of a member's round. wait_until() waits for any of
// them except the last. It throws CollectiveError at the end of a missing member, the deadline, an abort or a poison.
enum class WaitReason : std::uint32_t { slot, arrivals, data, staging_barrier, end_of_round };
void wait_until(IssuedCollective& issued, WaitReason reason, std::uint64_t target = 0);

}  // namespace lockstep::comm
