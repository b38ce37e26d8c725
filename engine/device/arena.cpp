#include "engine/device/arena.hpp"

#include <algorithm>
#include <cerrno>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/capabilities.hpp"
#include "engine/device/protection.hpp"

namespace lockstep::device {

namespace {

constexpr auto is_shared = [](const Capabilities& of) { return of.shared_with_peers; };
constexpr auto num_shared_kinds = static_cast<int>(std::ranges::count_if(capabilities, is_shared));
// The place of a kind among those that are shared.
constexpr int place_of(Kind kind) {
  return static_cast<int>(
      std::count_if(capabilities.begin(), capabilities.begin() + static_cast<int>(kind), is_shared));
}
constexpr std::size_t page_bytes = 4096;
// The gap between two regions is unmapped, so that an access past the end of a region faults.
constexpr std::size_t guard_bytes = std::size_t{64} << 10;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The thread sanitizer limits the address space to about 1.4 TiB.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t max_arena_bytes = std::size_t{1} << 30;
#else
constexpr std::size_t max_arena_bytes = ~std::size_t{0};
#endif

[[noreturn]] void fail(const char* action, std::size_t bytes, int world_size) {
  const int reason = errno;
  throw resource_error(str("the shared memory of ", world_size, " ranks: ", action, " of ", bytes, " bytes"), reason);
}

}  // namespace

struct HostWorld::Sizes {
  std::size_t arena = 0, control = 0, num_arenas = 0;
  std::size_t of_file() const { return bounded_product(num_arenas, arena) + control; }
  std::size_t of_addresses() const { return bounded_product(num_arenas, arena + guard_bytes) + control + guard_bytes; }
};

HostWorld::Sizes HostWorld::sizes_of(int world_size, std::size_t arena_bytes, std::size_t control_bytes) {
  if (world_size < 1) {
    throw Error(str("cannot create a world of ", world_size, " ranks"), "give at least one rank");
  }
  Sizes sizes;
  sizes.arena = round_up(arena_bytes < max_arena_bytes ? arena_bytes : max_arena_bytes, page_bytes);
  sizes.control = round_up(control_bytes, page_bytes);
  sizes.num_arenas = static_cast<std::size_t>(num_shared_kinds) * static_cast<std::size_t>(world_size);
  return sizes;
}

int HostWorld::make_file(int world_size, std::size_t arena_bytes, std::size_t control_bytes) {
  const Sizes sizes = sizes_of(world_size, arena_bytes, control_bytes);
  const int file = ::memfd_create("lockstep-world", MFD_CLOEXEC);
  if (file < 0) fail("the memory file", sizes.of_addresses(), world_size);
  if (::ftruncate(file, static_cast<off_t>(sizes.of_file())) != 0) {
    const int reason = errno;
    ::close(file);
    errno = reason;
    fail("sizing the memory file", sizes.of_addresses(), world_size);
  }
  return file;
}

std::unique_ptr<HostWorld> HostWorld::map_file(int file, int world_size, std::size_t arena_bytes,
                                               std::size_t control_bytes) {
  return map(file, world_size, sizes_of(world_size, arena_bytes, control_bytes), -1);
}

std::unique_ptr<HostWorld> HostWorld::create(int world_size, Sharing sharing, std::size_t arena_bytes,
                                             std::size_t control_bytes, int only_rank) {
  // The descriptor is closed once the file is mapped.
  struct File {
    int descriptor = -1;
    ~File() {
      if (descriptor >= 0) ::close(descriptor);
    }
  } file;
  if (sharing == Sharing::processes) file.descriptor = make_file(world_size, arena_bytes, control_bytes);
  return map(file.descriptor, world_size, sizes_of(world_size, arena_bytes, control_bytes), only_rank);
}

// One sparse file holds all regions. Without a file, ranks are threads.
std::unique_ptr<HostWorld> HostWorld::map(int file, int world_size, const Sizes& sizes, int only_rank) {
  std::unique_ptr<HostWorld> world(new HostWorld);
  const bool shared = file >= 0;
  world->sharing_ = shared ? Sharing::processes : Sharing::threads;
  world->total_ = sizes.of_addresses();
  void* base = ::mmap(nullptr, world->total_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) fail("reserving", world->total_, world_size);
  world->base_ = static_cast<std::byte*>(base);

  std::size_t offset = 0, file_offset = 0;
  // Ranks that are threads share private mappings. The control region is always MAP_SHARED, because the launcher that
  // forked the ranks reads it.
  const auto map_region = [&](std::size_t bytes, bool shared_region, bool used) {
    std::byte* base_of_region = world->base_ + offset;
    const int flags =
        MAP_FIXED | MAP_NORESERVE | (shared_region ? MAP_SHARED : MAP_PRIVATE) | (shared ? 0 : MAP_ANONYMOUS);
    if (used) {
      void* mapped =
          ::mmap(base_of_region, bytes, PROT_READ | PROT_WRITE, flags, file, static_cast<off_t>(file_offset));
      if (mapped == MAP_FAILED) fail("mapping", bytes, world_size);
    }
    offset += bytes + guard_bytes;
    if (shared) file_offset += bytes;
    return Region{base_of_region, bytes};
  };
  const auto is_used = [&](int rank) { return only_rank < 0 || rank == only_rank; };
  world->control_ = map_region(sizes.control, true, true);
  world->world_size_ = world_size;
  for (int kind = 0; kind < num_shared_kinds; ++kind)
    for (int rank = 0; rank < world_size; ++rank)
      world->arenas_.push_back(map_region(sizes.arena, shared, is_used(rank)));
  return world;
}

HostWorld::Region HostWorld::arena(Kind kind, int rank) const {
  if (!capabilities_of(kind).shared_with_peers) return {};
  return arena(place_of(kind) * world_size_ + rank);
}

int HostWorld::arena_with(int rank, const void* pointer) const {
  for (int number = rank; number < num_arenas(); number += world_size_)
    if (arena(number).contains(pointer)) return number;
  return -1;
}

HostWorld::~HostWorld() {
  if (base_ == nullptr) return;
  forget_protected(base_, total_);
  ::munmap(base_, total_);
}

}  // namespace lockstep::device
