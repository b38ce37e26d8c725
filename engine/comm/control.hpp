// The control area: the memory that all ranks of a case share besides their arenas. prepare_world() initializes it once
// in HostWorld::control(). The area is zero-filled, and every rank maps it at the same address.
//
//   WorldControl   abort flag and text, counters, the table of groups, a bump allocator for later structures
//   HostsControl   only when ranks live on several hosts: which host runs each rank, and how to wake the ferry
//   RankControl    one per rank: how the rank ended, its waits, and the ring buffer of its flight recorder
//   GroupControl   one per member list: members, poison text, a ring of slots; inserted lock-free by the first member
//   Slot           one collective in progress: arrivals, claimed and finished chunks, an event count to sleep on
//   MemberEntry    one member's fingerprint and buffers in a slot
//
// All structures are plain memory with atomics. Nothing here owns memory, and a rank may die at any point. A text is
// published by an atomic; readers load that atomic first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/process_group.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/shape.hpp"
#include "engine/device/arena.hpp"

namespace lockstep::comm {

inline constexpr int ring_slots = 16;
inline constexpr int recorder_entries = 2000;
inline constexpr std::uint64_t world_magic = 0x6c6f636b73746570ull;

// An event count: a futex word to sleep on. notify() increments `epoch` at every change, so a sleeper that read the
// earlier epoch does not miss the change.
struct EventCount {
  std::atomic<std::uint32_t> epoch;
  std::atomic<std::uint32_t> sleepers;
};

// The fields on which all members must agree. Only in an exchange may `count` differ.
struct Fingerprint {
  std::uint8_t kind = 0;  // an Operation (receive is stored as send), `exchange_kind` or `preparation_kind`
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t device = 0;  // a device::Kind; the digest compares it
  std::int32_t root = 0;
  std::int64_t count = 0;    // elements of one shard: a rank's input of an all_gather, its output of a reduce_scatter
  std::uint64_t digest = 0;  // of Record::terms_digest and Record::content_digest
};
inline constexpr std::uint8_t exchange_kind = num_operations;
inline constexpr std::uint8_t preparation_kind = num_operations + 1;
// "all_reduce", "exchange", "preparation".
std::string_view name_of_kind(std::uint8_t kind);

struct alignas(64) MemberEntry {
  Fingerprint fingerprint;
  const std::byte* input;
  std::byte* output;
  std::uint32_t record;                   // index of this call in the member's flight recorder, modulo 2^32
  std::atomic<std::uint32_t> arrival;     // generation of the slot + 1 once the member has arrived
  std::atomic<std::int64_t> moved_bytes;  // that the transport has moved for this member
  std::uint64_t staging;                  // offset of the member's staging memory in the control area; 0 if none
};
static_assert(sizeof(MemberEntry) == 64);

// Refused: the group was poisoned when the last member arrived.
enum class Stage : std::uint32_t { filling, open, finished, mismatch, refused };

enum class TransportKind : std::uint32_t { shared_memory, staged, between_hosts, one_device, nccl };

struct alignas(64) Slot {
  static constexpr int max_gpus = 64;  // of one group
  // How many collectives the slot has completed. In generation g, slot s serves sequence number g * ring_slots + s.
  std::atomic<std::uint32_t> generation;
  std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<Stage> stage;
  EventCount changes;
  TransportKind transport;  // that moves the data; set by the last arriver
  alignas(64) std::atomic<std::uint32_t> next_chunk;
  alignas(64) std::atomic<std::uint32_t> done_chunks;
  std::atomic<std::uint32_t> left;
  std::atomic<std::uint64_t> barrier_arrivals;  // of the barriers between the pieces of a staged collective
  std::atomic<std::uint64_t> movers;            // a bit per member whose kernels may use the buffers of all
  std::atomic<std::uint32_t> is_abandoned;      // a member has failed in it, and may free its buffers
  char nccl_id[128];                            // of the communicator that the members are about to open
  std::uint8_t nccl_streams[max_gpus];          // of each member (NcclGroups::note_stream())
  MemberEntry* entries() { return reinterpret_cast<MemberEntry*>(this + 1); }
};

// Writes a text into the control area. A longer text is cut.
template <std::size_t capacity>
void copy_text(char (&to)[capacity], std::string_view text) {
  to[text.copy(to, capacity - 1)] = '\0';
}

// Truncates a text at its front, because paths and names of modules differ at their ends.
template <std::size_t capacity>
void copy_end(char (&to)[capacity], std::string_view text) {
  if (text.size() >= capacity) text.remove_prefix(text.size() - (capacity - 1));
  copy_text(to, text);
}

enum class TextState : std::uint32_t { empty, claimed, complete };

// A text that is written once. The first writer claims it.
template <std::size_t capacity>
struct WriteOnceText {
  std::atomic<TextState> state;
  char text[capacity];

  bool claim() {
    TextState expected = TextState::empty;
    return state.compare_exchange_strong(expected, TextState::claimed);
  }
  void fill(std::string_view value) {
    copy_text(text, value);
    state.store(TextState::complete);
  }
  // False when another writer was first.
  bool try_set(std::string_view value) {
    if (!claim()) return false;
    fill(value);
    return true;
  }
  bool is_set() const { return state.load() != TextState::empty; }
  std::string read() const;  // waits up to 0.1 s for a writer that has claimed the text
};

// How many of the group's collectives a member had issued at the end of each of its last rounds (end_round() in
// process_group.hpp).
struct alignas(64) MemberRounds {
  static constexpr std::uint64_t num_kept = 7;
  std::atomic<std::uint64_t> ended;             // number of ended rounds
  std::atomic<std::uint64_t> issued[num_kept];  // entry n % num_kept belongs to round n
  bool has(std::uint64_t number) const {
    const std::uint64_t last = ended.load(std::memory_order_acquire);
    return last >= number && last < number + num_kept;
  }
  // The member has ended round `number` (0: no round) without issuing the collective of that sequence number.
  bool has_skipped(std::uint64_t number, std::uint64_t sequence) const {
    return number != 0 && has(number) && issued[number % num_kept].load(std::memory_order_relaxed) <= sequence;
  }
};

struct GroupControl {
  std::uint64_t id;       // digest of members and channel
  std::uint64_t channel;  // 0 for a group; the id of the parent group for a point-to-point channel
  std::int32_t size;
  std::uint32_t slot_bytes;
  std::uint32_t spans_hosts;  // 1: some members live on another host than others
  std::uint64_t rounds;       // offset of the MemberRounds from this structure, one per member
  std::uint64_t slots;        // offset of the slots from this structure
  // The poison reports the end of a member, not a mismatch or a deadline. Set before `poison` is published.
  std::atomic<std::uint32_t> poisoned_by_end;
  WriteOnceText<16384> poison;
  // Of a group that spans hosts: the text that a rank of this host wants. The host of the first member decides.
  std::atomic<std::uint32_t> proposed_by_end;
  WriteOnceText<16384> proposed_poison;
  std::int32_t* members() { return reinterpret_cast<std::int32_t*>(this + 1); }
  const std::int32_t* members() const { return reinterpret_cast<const std::int32_t*>(this + 1); }
  MemberRounds& rounds_of(int member) {
    return reinterpret_cast<MemberRounds*>(reinterpret_cast<std::byte*>(this) + rounds)[member];
  }
  Slot& slot(std::uint64_t sequence) {
    return *reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(this) + slots +
                                    element_offset(sequence % ring_slots, slot_bytes));
  }
};

// When a member publishes the description of its content digest (Call) after a mismatch: never, at once because it
// waits in the call, or later because the call is asynchronous.
enum class ContentText : std::uint8_t { none, at_once, deferred };

// How the call sites of the members are compared: not at all, by phase, by phase and source line, or by shared name.
enum class CallSiteMatch : std::uint8_t { none, phase, line, name };

// The properties besides the plain fields of Fingerprint on which members must agree (fingerprint.hpp). Messages show
// them.
struct Terms {
  std::uint8_t num_dims;
  std::int8_t dim;      // the dim along which shards are concatenated or split
  std::uint8_t device;  // a device::Kind
  CallSiteMatch site_match;
  std::uint8_t sum_order;        // of a reduction: a SumOrder
  std::int64_t sizes[max_dims];  // the first `num_dims` hold the shape as the caller wrote it
  char call_site[96];            // "file:line", or the shared name; unused when site_match is none or phase
};

// An entry of the flight recorder.
struct Record {
  std::uint64_t group;  // offset of the GroupControl in the control area
  std::uint64_t sequence;
  std::int64_t elements;  // of the larger of input and output
  std::int64_t bytes;
  std::int64_t issued_ns;
  std::atomic<CollectiveState> state;
  std::uint8_t kind;  // as in Fingerprint, except that receive stays receive
  std::uint8_t dtype, op, family, phase;
  ContentText content_text;
  std::int32_t root;
  std::int32_t scenario_line;
  char axis[64];
  char owner[80];
  std::uint64_t terms_digest;
  std::uint64_t content_digest;  // of the call's content and, for collectives of a module, of its owner
  Terms terms;

  // Whether it is still that of this collective. The flight recorder keeps the last `recorder_entries` calls of a rank,
  // so that a later call has taken the place of an older one.
  bool is_of(std::uint64_t of_group, std::uint64_t of_sequence) const {
    return group == of_group && sequence == of_sequence;
  }
};

// A thread of a rank that waits for peers (wait_graph.hpp).
struct WaitEntry {
  std::atomic<std::uint64_t> group;  // offset of the GroupControl in the control area; 0: free; 1: being written
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> round;   // 0: none
  std::atomic<std::uint64_t> target;  // of WaitReason::staging_barrier and WaitReason::end_of_round
  std::atomic<std::uint64_t> record;
  std::atomic<std::uint32_t> reason;  // a WaitReason
  std::atomic<std::uint32_t> me;      // within the group
  std::atomic<std::int32_t> member;   // whose end of round is awaited
};
inline constexpr int max_waits = 16;  // of one rank

enum class RankEnd : std::uint32_t { none, ended, failed, died };

// Names a change in the control area that other hosts need (control_plane.hpp).
struct Notice {
  enum class Kind : std::uint32_t { arrival, staged_piece, end_of_round, content_text, poison };
  Kind kind;
  std::int32_t member;     // within the group
  std::uint64_t group;     // offset of the GroupControl
  std::uint64_t sequence;  // of the collective, or number of the round
  std::uint64_t piece;     // of poison: 1 if a further poison belongs to it
};
// The notices of a rank that the ferry has not taken. The rank's threads write, one at a time.
struct Outbox {
  static constexpr std::uint64_t capacity = 256;
  std::atomic<std::uint32_t> locked;
  std::atomic<std::uint64_t> written;
  std::atomic<std::uint64_t> taken;
  Notice notices[capacity];
};

// The memory of a rank on its accelerator, which the rank writes before it arrives at its first collective there.
struct DeviceArenaControl {
  std::uint64_t base;  // addresses in the rank's own process
  std::int64_t process;
  unsigned char handle[64];  // by which other processes map it
  char device_id[64];
  std::atomic<std::uint64_t> bytes;  // written last; 0: not yet
};

struct alignas(64) RankControl {
  std::atomic<RankEnd> end;
  std::atomic<std::int64_t> begun_ns;  // when the rank began its program; 0: not yet
  WriteOnceText<4096> end_reason;
  std::atomic<std::uint32_t> waits;         // number of LongWaits of its threads
  std::atomic<std::uint64_t> wait_changes;  // incremented whenever a LongWait begins or ends
  std::atomic<std::uint64_t> blocked_at;  // `wait_changes` + 1 when no thread of the rank could progress without a peer
  WaitEntry wait_entries[max_waits];
  // The description of the content digest, published after a mismatch.
  std::atomic<std::uint64_t> content_text_of;  // sequence number of the mismatched collective, plus 1
  std::uint64_t content_text_group;            // offset of its GroupControl
  char content_text[4096];
  // The step that the rank runs. Only the rank writes it; others read it after the rank has ended or while it hangs.
  struct {
    char step[64];
    char file[192];
    std::int32_t line, column;
  } location;
  DeviceArenaControl device_arena;
  Outbox outbox;
  std::atomic<std::uint64_t> num_records;
  Record records[recorder_entries];
};

// The last call that the rank has made; null: none.
inline const Record* last_record(const RankControl& rank) {
  const std::uint64_t count = rank.num_records.load(std::memory_order_acquire);
  return count == 0 ? nullptr : &rank.records[(count - 1) % recorder_entries];
}

// Follows in memory: the host of each rank.
struct alignas(64) HostsControl {
  std::int32_t host;  // that this area belongs to
  std::int32_t num_hosts;
  std::int32_t wake_descriptor;             // of the ferry
  std::atomic<std::uint32_t> ferry_sleeps;  // 1: a new notice must wake it
  std::int32_t* host_of() { return reinterpret_cast<std::int32_t*>(this + 1); }
};

inline constexpr std::size_t group_table_entries = 8192;

struct alignas(64) WorldControl {
  std::uint64_t magic;
  std::int32_t world_size;
  std::int32_t num_cores;
  std::uint32_t processes;  // 1: ranks are processes and can access only the arenas of each other
  std::uint64_t bytes;      // of the control area
  std::uint64_t ranks;      // offset of the first RankControl
  std::uint64_t hosts;      // offset of the HostsControl; 0: all ranks live on this host
  std::atomic<std::uint64_t> next_free;
  std::atomic<std::int32_t> num_waiters;         // threads that may wait for peers: one per rank, and stream workers
  alignas(64) std::atomic<std::uint32_t> ends;   // incremented at every end, death, failure or abort
  std::atomic<std::uint32_t> deadlock_searcher;  // 1 + the rank that searches for a deadlock; 0: none
  WriteOnceText<16384> abort;
  std::atomic<std::uint64_t> groups[group_table_entries];  // offsets; open addressing by id

  std::byte* at(std::uint64_t offset) { return reinterpret_cast<std::byte*>(this) + offset; }
  const std::byte* at(std::uint64_t offset) const { return reinterpret_cast<const std::byte*>(this) + offset; }
  std::uint64_t offset_of(const void* pointer) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) -
                                      reinterpret_cast<const std::byte*>(this));
  }
  RankControl& rank(int r) { return reinterpret_cast<RankControl*>(at(ranks))[r]; }
  const RankControl& rank(int r) const { return reinterpret_cast<const RankControl*>(at(ranks))[r]; }
  HostsControl* hosts_control() { return hosts == 0 ? nullptr : reinterpret_cast<HostsControl*>(at(hosts)); }
  bool is_local(int r) {
    HostsControl* const map = hosts_control();
    return map == nullptr || map->host_of()[r] == map->host;
  }
  GroupControl& group(std::uint64_t offset) { return *reinterpret_cast<GroupControl*>(at(offset)); }
  const GroupControl& group(std::uint64_t offset) const { return *reinterpret_cast<const GroupControl*>(at(offset)); }
};

// Bytes of the control area of a world: the fixed structures, and address space for groups and staging (sparse).
std::size_t control_bytes_for(int world_size);
// Initializes zero-filled memory. Throws Error when `bytes` is too small.
WorldControl& initialize_control(std::byte* memory, std::size_t bytes, int world_size, bool processes);
// The control area of a world. Throws InternalError when prepare_world() has not run.
WorldControl& control_of(const device::HostWorld& world);

// Allocates memory in the control area and returns its offset: zero-filled, aligned to 64 bytes. Throws Error when the
// area is used up.
std::uint64_t allocate_control(WorldControl& world, std::size_t bytes);
// The group of these members (and channel), created by the first caller. Lock-free. Throws Error when the table is
// full.
GroupControl& find_or_insert_group(WorldControl& world, const std::vector<int>& members, std::uint64_t channel);

// The group of this id; null if the area has none.
GroupControl* find_group(WorldControl& world, std::uint64_t id);

// Wakes the sleepers of one event count.
void notify(EventCount& changes);
// Wakes the sleepers of every slot of the world, after an end, a failure or an abort.
void notify_all(WorldControl& world);

std::int64_t now_ns();  // monotonic clock

}  // namespace lockstep::comm
