#include "engine/comm/fake_world.hpp"

#include <cerrno>

#include <sys/mman.h>

#include "engine/comm/control.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/private_arena.hpp"

namespace lockstep::comm {

namespace {

// Address space per rank of the world for the slots of groups that contain it. A group uses about 1.1 KiB per member.
constexpr std::size_t group_bytes_per_rank = std::size_t{64} << 10;

// A world of so few ranks has its control area in private memory, without most of the room for groups and staging.
constexpr int most_ranks_of_small = 64;
constexpr std::size_t left_out_of_small = std::size_t{224} << 20;

constexpr std::size_t arena_bytes = std::size_t{16} << 20;

int checked_rank(int rank, int world_size) {
  if (world_size < 1 || world_size > FakeWorld::max_world_size)
    throw Error(str("a fake world of ", world_size, " ranks"), str("give 1 to ", FakeWorld::max_world_size, " ranks"));
  if (rank < 0 || rank >= world_size)
    throw Error(str("rank ", rank, " of a fake world of ", world_size, " ranks"),
                str("give a rank from 0 to ", world_size - 1));
  return rank;
}

}  // namespace

FakeWorld::FakeWorld(int rank, int world_size) : context_(checked_rank(rank, world_size), world_size) {
  context_.service<FakePeers>().open(rank, world_size);
  // The kernel's limit on the heap of a rank counts addresses of private memory.
  context_.service<device::PrivateArena>().bytes = arena_bytes;
}

// A private mapping takes a fifth of the time of a shared one, which the kernel makes a file for. It counts toward the
// limit on the heap of a rank's process, so that a large world has a shared one.
void FakePeers::open(int rank, int world_size) {
  LOCKSTEP_CHECK(memory_ == nullptr, "the control area of a fake world is mapped once");
  const bool is_small = world_size <= most_ranks_of_small;
  bytes_ = control_bytes_for(world_size) + bounded_product(static_cast<std::size_t>(world_size), group_bytes_per_rank);
  if (is_small) bytes_ -= left_out_of_small;
  const int sharing = is_small ? MAP_PRIVATE : MAP_SHARED;
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw resource_error(str("reserving the control area of ", world_size, " ranks"), errno);
  memory_ = memory;
  control_ = &initialize_control(static_cast<std::byte*>(memory), bytes_, world_size, false);
  if (world_size > 1)
    control_->abort.try_set(str("rank ", rank, " of ", world_size,
                                " runs alone in a fake world, and no peer takes part in its collectives"));
}

FakePeers::~FakePeers() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

}  // namespace lockstep::comm
