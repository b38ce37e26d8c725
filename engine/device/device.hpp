// Devices and the memory of a rank on them.
//
// A rank owns its device runtime (a service of its RankContext): the pools of each device, the streams (stream.hpp),
// the memory statistics by purpose, the order check (order.hpp). cpu runs everything inline; sim is an accelerator
// simulated on the host with its own pools and a worker thread a stream; meta has shapes only; cuda is built in or
// UNSUPPORTED.
//
// Memory of cpu and sim lies in the rank's arenas, which the launcher mapped before the ranks started: a pointer means
// the same in every rank, so collectives stage nothing. Raw pointers come from launch() (stream.hpp) alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::device {

enum class Kind : std::uint8_t { cpu, sim, meta, cuda };

struct Device {
  Kind kind = Kind::cpu;
  int index = 0;  // a rank's own for sim and cuda; 0 for cpu and meta
  friend bool operator==(const Device&, const Device&) = default;
};

std::string_view name_of(Kind kind);         // "cpu", "sim", "meta", "cuda"
std::string to_text(Device device);          // "sim:1"; without index for cpu and meta
Kind kind_from_name(std::string_view name);  // throws Error for an unknown one
// "cpu", "sim", "sim:1", "meta", "cuda"; without index the current rank's own (rank 0's when no rank runs).
Device device_from_name(std::string_view name);
// Throws UnsupportedError when this build lacks the device (cuda without its backend).
void require_available(Kind kind);

// What a block of memory is for. Statistics are kept by purpose.
enum class Purpose : std::uint8_t { parameter, gradient, gathered, activation, optimizer, communication, other };
inline constexpr int num_purposes = 7;
std::string_view name_of(Purpose purpose);
Purpose purpose_from_name(std::string_view name);

// The purpose of what this rank allocates within the scope (the innermost wins). Without one: activation.
class PurposeScope {
 public:
  explicit PurposeScope(Purpose purpose);
  ~PurposeScope();
  PurposeScope(const PurposeScope&) = delete;
  PurposeScope& operator=(const PurposeScope&) = delete;

 private:
  Purpose previous_;
};

class Runtime;       // everything a rank has of its devices (runtime.hpp)
struct OrderShadow;  // what the order check remembers of a block
struct PoolBlock;    // where a block lies in its pool
class Stream;

// A block of device memory. Freed, stream-ordered, when its last owner lets go: its bytes go back to the pool of the
// stream that was current when it was taken, and the order check counts that as a write on that stream. The last owner
// may be a worker thread (a launch that captured it); the block is then taken back at the rank's next allocation.
class Memory {
 public:
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Device device() const { return device_; }
  std::size_t bytes() const { return bytes_; }
  Purpose purpose() const { return purpose_; }
  std::uint64_t id() const { return id_; }
  bool pinned() const { return pinned_; }
  // A name for messages: "fc1.weight (gradient)".
  std::string label;

 private:
  friend class Runtime;
  friend class PointerAccess;  // the one door to data_
  Memory() = default;
  Device device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;  // as asked for; statistics count these
  Purpose purpose_ = Purpose::other;
  bool pinned_ = false;
  std::uint64_t id_ = 0;
  PoolBlock* block_ = nullptr;
  Stream* home_ = nullptr;
  Runtime* runtime_ = nullptr;  // null once the rank's runtime is gone
  Memory* previous_ = nullptr;  // the rank's living blocks, or its spare objects
  Memory* next_ = nullptr;
  std::unique_ptr<OrderShadow> shadow_;
};
using MemoryPtr = std::shared_ptr<Memory>;

// Memory for `bytes` on the device, aligned to 64 bytes, contents undefined; 0 bytes is fine. From the current rank's
// pool of the current stream. Throws Error when the device is full (with sizes) and for meta. `pinned` marks cpu memory
// that copies to and from sim may use asynchronously.
MemoryPtr allocate(Device device, std::size_t bytes, bool pinned = false);
MemoryPtr allocate(Device device, std::size_t bytes, Purpose purpose, bool pinned = false);

// From now on the block counts as of another purpose: a gradient that is kept, say, instead of copied. The peaks so far
// stay.
void repurpose(Memory& memory, Purpose purpose);

// Bytes of the current rank on all devices together (purposes) or one.
struct MemoryStats {
  std::array<std::int64_t, num_purposes> current{};
  std::array<std::int64_t, num_purposes> peak{};
  std::int64_t current_total = 0;
  std::int64_t peak_total = 0;
  std::int64_t num_allocations = 0;  // calls of allocate
  std::int64_t num_pool_misses = 0;  // of which the pool had to grow: 0 in a steady step
};
MemoryStats memory_stats();
void reset_peaks();

// Peak of the sum over some purposes while the window lives; windows may nest and overlap.
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
