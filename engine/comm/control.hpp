// The control area: what the ranks of a case share beside their arenas. Laid out once by prepare_world() in
// HostWorld::control(), zero-initialised, mapped by every rank at the same address.
//
//   WorldControl   abort flag and text, counters, the table of groups, a bump allocator for what comes later
//   RankControl    one a rank: its end, and the flight recorder's ring
//   GroupControl   one a group, inserted without locks by whoever asks first: members, poison, a ring of slots
//   Slot           one collective under way: who has arrived, the claimed and finished chunks, a bell to sleep on
//   Line           what one member brought to a slot
//
// Everything here is plain memory with atomics; nothing owns anything, and a rank may die at any point of it. Readers
// of texts look at the atomic that announces them first.
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

// A word to sleep on and ring. The counter goes up at every change, so that no change is slept through.
struct Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;
};

// What all members must agree on, but for `count` of an exchange.
struct Fingerprint {
  std::uint8_t kind = 0;  // an Operation (receive counts as send), or `exchange_kind`
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t unused = 0;
  std::int32_t root = 0;
  std::int64_t count = 0;    // elements of one part: what one rank brings to a gather, keeps of a scatter
  std::uint64_t digest = 0;  // of the terms and the agreement, which the record holds apart
};
inline constexpr std::uint8_t exchange_kind = num_operations;

struct alignas(64) Line {
  Fingerprint fingerprint;
  const std::byte* input;
  std::byte* output;
  std::uint32_t record;  // number of the recorder's entry of this call, modulo 2^32
  // Twice the slot's generation plus 2 once the member has arrived in it; 1 more when a buffer of it lies where peers
  // cannot reach it.
  std::atomic<std::uint32_t> arrival;
  std::atomic<std::int64_t> moved;  // bytes that the transport has moved for this member
  std::uint64_t staging;            // offset of the member's staging memory in the control area, 0: none yet
};
static_assert(sizeof(Line) == 64);

enum class Stage : std::uint32_t { filling, open, finished, mismatch };

struct alignas(64) Slot {
  std::atomic<std::uint32_t> generation;  // how often the slot has been retired: slot s serves sequence g * ring + s
  std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<Stage> stage;
  Bell bell;
  std::uint32_t staged;  // set by the opener: some buffer lies outside
  alignas(64) std::atomic<std::uint32_t> next_chunk;
  alignas(64) std::atomic<std::uint32_t> done_chunks;
  std::atomic<std::uint32_t> left;
  std::atomic<std::uint64_t> rounds;  // arrivals at the meeting points within a staged collective
  Line* lines() { return reinterpret_cast<Line*>(this + 1); }
};

enum class Written : std::uint32_t { no, claimed, yes };

// A text written once: the first writer claims it.
template <std::size_t capacity>
struct OnceText {
  std::atomic<Written> written;
  char text[capacity];

  bool claim() {
    Written expected = Written::no;
    return written.compare_exchange_strong(expected, Written::claimed);
  }
  void fill(std::string_view value) {
    const std::size_t size = value.size() < capacity - 1 ? value.size() : capacity - 1;
    value.copy(text, size);
    text[size] = '\0';
    written.store(Written::yes);
  }
  bool claim_and_fill(std::string_view value) {
    if (!claim()) return false;
    fill(value);
    return true;
  }
  bool any() const { return written.load(std::memory_order_acquire) != Written::no; }
  std::string read() const;  // waits a little for a writer at work
};

// How far a member had issued the group's collectives when it ended each of its last rounds (process_group.hpp).
struct alignas(64) Rounds {
  static constexpr std::uint64_t kept = 7;
  std::atomic<std::uint64_t> ended;  // so many; number n is told in issued[n % kept]
  std::atomic<std::uint64_t> issued[kept];
  bool has(std::uint64_t number) const {
    const std::uint64_t last = ended.load(std::memory_order_acquire);
    return last >= number && last < number + kept;
  }
  // The member has ended the round `number` (0: none) without the collective of that sequence number.
  bool left_out(std::uint64_t number, std::uint64_t sequence) const {
    return number != 0 && has(number) && issued[number % kept].load(std::memory_order_relaxed) <= sequence;
  }
};

struct GroupControl {
  std::uint64_t id;       // digest of members and channel
  std::uint64_t channel;  // 0 for a group; a point-to-point channel's parent otherwise
  std::int32_t size;
  std::uint32_t slot_bytes;
  std::uint64_t rounds;  // offset from this structure, one a member
  std::uint64_t slots;   // offset from this structure
  // The poison tells of a member's end, not of a disagreement or deadline; set before `poison` is announced.
  std::atomic<std::uint32_t> poisoned_by_end;
  OnceText<16384> poison;
  std::int32_t* members() { return reinterpret_cast<std::int32_t*>(this + 1); }
  const std::int32_t* members() const { return reinterpret_cast<const std::int32_t*>(this + 1); }
  Rounds& rounds_of(int member) {
    return reinterpret_cast<Rounds*>(reinterpret_cast<std::byte*>(this) + rounds)[member];
  }
  Slot& slot(std::uint64_t sequence) {
    return *reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(this) + slots +
                                    element_offset(sequence % ring_slots, slot_bytes));
  }
};

// Whether a member has something to say about its agreement (Call::agreement_text), and when it comes to that.
enum class Tells : std::uint8_t { nothing, at_once, later };

// How the place of a call is compared between ranks.
enum class PlacedBy : std::uint8_t { nothing, phase, line, name };

// What members agree on beside the plain fields of Fingerprint (fingerprint.hpp); for messages.
struct Terms {
  std::uint8_t num_dims;
  std::int8_t dim;      // that parts are joined or cut along
  std::uint8_t device;  // a device::Kind
  PlacedBy placed_by;
  std::int64_t sizes[max_dims];  // the first `num_dims`, as the caller wrote them
  char place[96];                // "file:line", or the name that several places share; of calls that are placed so
};

// An entry of the flight recorder.
struct Record {
  std::uint64_t group;  // offset of the GroupControl in the control area
  std::uint64_t sequence;
  std::int64_t elements;  // of the larger of input and output
  std::int64_t bytes;
  std::int64_t issued_ns;
  std::int64_t finished_ns;
  std::atomic<CollectiveState> state;
  std::uint8_t kind;  // as in Fingerprint, but receive stays receive
  std::uint8_t dtype, op, family, phase;
  Tells tells;
  std::int32_t root;
  std::int32_t scenario_line;
  char axis[16];
  char owner[80];
  std::uint64_t terms_digest;
  std::uint64_t agreement;
  Terms terms;
};

// A thread of a rank that waits for peers (wait_graph.hpp).
struct WaitEntry {
  std::atomic<std::uint64_t> group;  // offset of the GroupControl in the control area, 0: free, 1: being written
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> round;   // 0: none
  std::atomic<std::uint64_t> target;  // of Waiting::round and Waiting::end_of_round
  std::atomic<std::uint64_t> record;
  std::atomic<std::uint32_t> what;   // a Waiting
  std::atomic<std::uint32_t> me;     // within the group
  std::atomic<std::int32_t> member;  // whom an end of a round is awaited from
};
inline constexpr int most_waits = 16;  // of one rank

enum class RankEnd : std::uint32_t { none, ended, failed, died };

struct alignas(64) RankControl {
  std::atomic<RankEnd> end;
  std::atomic<std::int64_t> begun_ns;  // when the rank had come to its program; 0: not yet
  OnceText<4096> why;
  std::atomic<std::uint32_t> waits;         // long ones that its threads are in
  std::atomic<std::uint64_t> wait_changes;  // goes up whenever one begins or ends
  std::atomic<std::uint64_t> stuck_at;      // `wait_changes` + 1 when no thread of the rank could go on without a peer
  WaitEntry waits_in[most_waits];
  std::atomic<std::uint64_t> agreement_of;  // sequence + 1 of the mismatch that agreement_text belongs to
  std::uint64_t agreement_group;
  char agreement_text[4096];
  // Where the rank is; written by it alone and read once it has ended or hangs.
  struct {
    char step[64];
    char file[192];
    std::int32_t line, column;
  } place;
  std::atomic<std::uint64_t> num_records;
  Record records[recorder_entries];
};

inline constexpr std::size_t group_table_entries = 8192;

struct alignas(64) WorldControl {
  std::uint64_t magic;
  std::int32_t world_size;
  std::int32_t num_cores;
  std::uint32_t processes;  // 1: ranks reach each other's arenas alone, not each other's other memory
  std::uint64_t bytes;      // of the control area
  std::uint64_t ranks;      // offset of the first RankControl
  std::atomic<std::uint64_t> next_free;
  std::atomic<std::int32_t> num_waiters;        // threads that may wait for others: ranks, and stream workers
  alignas(64) std::atomic<std::uint32_t> ends;  // goes up whenever a rank ends, dies, or something is aborted
  std::atomic<std::uint32_t> looker;            // 1 + the rank that looks for a deadlock now; 0: none does
  OnceText<16384> abort;
  std::atomic<std::uint64_t> groups[group_table_entries];  // offsets; open addressing by id

  std::byte* at(std::uint64_t offset) { return reinterpret_cast<std::byte*>(this) + offset; }
  const std::byte* at(std::uint64_t offset) const { return reinterpret_cast<const std::byte*>(this) + offset; }
  std::uint64_t offset_of(const void* pointer) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) -
                                      reinterpret_cast<const std::byte*>(this));
  }
  RankControl& rank(int r) { return reinterpret_cast<RankControl*>(at(ranks))[r]; }
  const RankControl& rank(int r) const { return reinterpret_cast<const RankControl*>(at(ranks))[r]; }
  GroupControl& group(std::uint64_t offset) { return *reinterpret_cast<GroupControl*>(at(offset)); }
  const GroupControl& group(std::uint64_t offset) const { return *reinterpret_cast<const GroupControl*>(at(offset)); }
};

// Bytes that a world of so many ranks needs: fixed parts, and room for groups and staging (sparse).
std::size_t control_bytes_for(int world_size);
// Lays out zeroed memory. Throws Error when it is too small.
WorldControl& lay_out(std::byte* memory, std::size_t bytes, int world_size, bool processes);
// The laid out area of a world; throws InternalError when prepare_world() was forgotten.
WorldControl& control_of(const device::HostWorld& world);

// Memory from the control area, zeroed, aligned to 64 bytes. Throws Error when it is used up.
std::uint64_t allocate_control(WorldControl& world, std::size_t bytes);
// The group of these members (and channel), made when it is not there yet. Lock-free.
GroupControl& find_or_insert_group(WorldControl& world, const std::vector<int>& members, std::uint64_t channel);

void ring(Bell& bell);
// Rings every bell of the world after an end or abort was noted.
void ring_all(WorldControl& world);

std::int64_t now_ns();

}  // namespace lockstep::comm
