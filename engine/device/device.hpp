// Devices and the memory of a rank on them.
//
// A rank owns its device runtime, a service of its RankContext: the pools of each device, the streams (stream.hpp), the
// memory statistics by purpose, and the order check (order.hpp). All functions act on the current rank and run on its
// own thread.
//
// The device kinds:
//   cpu    runs everything inline.
//   sim    simulates an accelerator on the host, with separate pools and one worker thread per stream.
//   meta   has sizes without values: blocks without bytes, and launches that are checked and do not run.
//   cuda   is unsupported unless the build has its backend.
//
// Memory of cpu and sim is allocated from the rank's arenas, which the launcher maps before the ranks start. A pointer
// is valid in every rank, so collectives need no staging. Only launch() (stream.hpp) hands out raw pointers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::device {

enum class Kind : std::uint8_t { cpu, sim, meta, cuda };
inline constexpr int num_kinds = 4;

struct Device {
  Kind kind = Kind::cpu;
  int index = 0;  // for sim and cuda, by default the rank; 0 for cpu and meta
  friend bool operator==(const Device&, const Device&) = default;
};

std::string_view name_of(Kind kind);         // "cpu", "sim", "meta", "cuda"
std::string to_text(Device device);          // "sim:1"; without an index for cpu and meta
Kind kind_from_name(std::string_view name);  // throws Error for an unknown name
// Reads "cpu", "sim", "sim:1", "meta" or "cuda". Without an index the device is the current rank's (index 0 outside
// ranks). Throws Error for an unknown kind or a malformed index.
Device device_from_name(std::string_view name);
// Throws UnsupportedError if this build does not have the device (cuda without its backend).
void require_available(Kind kind);

// The purpose of a block of memory. Statistics are kept per purpose.
enum class Purpose : std::uint8_t { parameter, gradient, gathered, activation, optimizer, communication, other };
inline constexpr int num_purposes = 7;
std::string_view name_of(Purpose purpose);
Purpose purpose_from_name(std::string_view name);  // throws Error for an unknown name

// Sets the purpose of the blocks that this rank allocates within the scope. The innermost scope applies; without a
// scope the purpose is `activation`. `owner` becomes their label; it outlives the scope.
class PurposeScope {
 public:
  explicit PurposeScope(Purpose purpose, const std::string* owner = nullptr);
  ~PurposeScope();
  PurposeScope(const PurposeScope&) = delete;
  PurposeScope& operator=(const PurposeScope&) = delete;

 private:
  Purpose previous_;
  const std::string* previous_owner_;
};

class Runtime;       // a rank's device state (runtime.hpp)
struct OrderShadow;  // the accesses that the order check remembers for a block
class Pool;          // the allocator of a stream (pool.hpp)
struct PoolBlock;    // the block's entry in its pool
class Stream;

// A block of device memory, owned by MemoryPtr.
//
// The last owner frees it, in stream order: its bytes return to the pool of its allocation stream, the stream that was
// current when it was allocated. The order check counts this as a write on that stream. If the last owner is another
// thread (such as a worker whose launch captured the block), the bytes return at the rank's next allocation.
class Memory {
 public:
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Device device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  Purpose purpose() const { return purpose_; }
  std::uint64_t id() const { return id_; }
  // Memory of the host that copies to and from devices of a kind may use asynchronously (allocate_pinned).
  bool pinned() const { return pinned_for_.has_value(); }
  bool pinned_for(Kind kind) const { return pinned_for_ == kind; }
  std::string label;  // what it belongs to, such as "fc1.weight", for messages

 private:
  friend class Runtime;
  friend class PointerAccess;  // the only access to data_
  Memory() = default;
  Device device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;  // as requested; the statistics count these
  Purpose purpose_ = Purpose::other;
  std::optional<Kind> pinned_for_;
  bool counts_ = true;  // in the statistics
  std::uint64_t id_ = 0;
  PoolBlock* block_ = nullptr;
  Pool* pool_ = nullptr;  // of block_
  Stream* allocation_stream_ = nullptr;
  Runtime* runtime_ = nullptr;  // null once the rank's runtime is gone
  Memory* previous_ = nullptr;  // links the rank's live blocks, or its spare objects
  Memory* next_ = nullptr;
  std::unique_ptr<OrderShadow> shadow_;
};
using MemoryPtr = std::shared_ptr<Memory>;

// Allocates `bytes` (0 is allowed) on the device, aligned to 64 bytes, with undefined contents, from the pool of the
// device's current stream. Throws Error if the device is out of memory or the rank over its limit (with the sizes in
// use). A block on meta has no bytes, and counts in no statistics unless asked (stand_in_memory.hpp).
MemoryPtr allocate(Device device, std::size_t bytes);
MemoryPtr allocate(Device device, std::size_t bytes, Purpose purpose);
// The same on the host, in whole pages that copies to and from `user` may use asynchronously (stream.hpp, copy_bytes).
// They come from a pool of their own and stay pinned until the end of the rank. Throws also if the system refuses to
// pin them, and UnsupportedError for a device that the build lacks.
//
//   const MemoryPtr staging = allocate_pinned(device_from_name("sim"), 1 << 20);    // on cpu
MemoryPtr allocate_pinned(Device user, std::size_t bytes);
MemoryPtr allocate_pinned(Device user, std::size_t bytes, Purpose purpose);

// Changes the purpose of the block, for example of a result that is kept as a gradient. Recorded peaks do not change.
void repurpose(Memory& memory, Purpose purpose);

// Memory of the current rank over all devices, in bytes.
struct MemoryStats {
  std::array<std::int64_t, num_purposes> current{};
  std::array<std::int64_t, num_purposes> peak{};
  std::int64_t current_total = 0;
  std::int64_t peak_total = 0;
  std::int64_t num_allocations = 0;  // number of calls of allocate and allocate_pinned
  std::int64_t num_pool_misses = 0;  // number of these for which a pool had to grow; 0 in a steady training step
};
MemoryStats memory_stats();

// The peak of the bytes of some purposes, in sum, during the window's lifetime. Windows may nest and overlap.
class MemoryWindow {
 public:
  explicit MemoryWindow(unsigned purpose_mask = (1u << num_purposes) - 1);  // bit i: Purpose i
  ~MemoryWindow();
  MemoryWindow(const MemoryWindow&) = delete;
  MemoryWindow& operator=(const MemoryWindow&) = delete;
  std::int64_t peak_bytes() const;

 private:
  friend class Runtime;
  unsigned mask_;
  std::int64_t peak_ = 0;
};

}  // namespace lockstep::device
