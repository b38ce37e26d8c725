#include "engine/comm/control.hpp"

#include <algorithm>
#include <climits>
#include <optional>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/comm/fingerprint.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {
constexpr std::size_t align_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Of the structures that every world has.
std::size_t fixed_bytes(int world_size) {
  return sizeof(WorldControl) + bounded_product(static_cast<std::size_t>(world_size), sizeof(RankControl));
}

std::uint64_t id_of(const std::vector<int>& members, std::uint64_t channel) {
  Digest digest;
  digest.add(channel);
  for (int member : members) digest.add(static_cast<std::uint64_t>(member));
  return digest.value();
}

bool is_same(const GroupControl& group, const std::vector<int>& members, std::uint64_t channel) {
  return group.channel == channel &&
         std::equal(members.begin(), members.end(), group.members(), group.members() + group.size);
}
}  // namespace

template <std::size_t capacity>
std::string WriteOnceText<capacity>::read() const {
  if (!is_set()) return "";
  for (int tries = 0; tries < 200; ++tries) {
    if (state.load(std::memory_order_acquire) == TextState::complete) return text;
    timespec pause{0, 500'000};
    nanosleep(&pause, nullptr);
  }
  return "the reason is missing: its writer did not finish";
}
template struct WriteOnceText<16384>;
template struct WriteOnceText<4096>;

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::size_t control_bytes_for(int world_size) { return fixed_bytes(world_size) + (std::size_t{256} << 20); }

WorldControl& initialize_control(std::byte* memory, std::size_t bytes, int world_size, bool processes) {
  const std::size_t fixed = fixed_bytes(world_size);
  if (fixed + (std::size_t{1} << 20) > bytes)
    throw Error(str("the control area of ", bytes, " bytes is too small for ", world_size, " ranks"),
                str("create the world with at least ", control_bytes_for(world_size), " bytes of it"));
  auto& world = *reinterpret_cast<WorldControl*>(memory);
  world.world_size = world_size;
  world.num_cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());  // that this process may use
  world.processes = processes ? 1 : 0;
  world.bytes = bytes;
  world.ranks = sizeof(WorldControl);
  world.next_free.store(fixed);
  world.num_waiters.store(world_size);
  world.magic = world_magic;
  return world;
}

WorldControl& control_of(const device::HostWorld& world) {
  auto& control = *reinterpret_cast<WorldControl*>(world.control().base);
  LOCKSTEP_CHECK(control.magic == world_magic, "prepare_world() has not laid out the control area of this world");
  return control;
}

std::uint64_t allocate_control(WorldControl& world, std::size_t bytes) {
  const std::uint64_t begin = world.next_free.fetch_add(align_up(bytes));
  if (begin + align_up(bytes) > world.bytes) {
    world.next_free.fetch_sub(align_up(bytes));
    throw Error(str("the control area (", world.bytes, " bytes) is used up by groups and staging"),
                "make fewer process groups");
  }
  return begin;
}

namespace {

// Allocates and fills the structure of a group. It becomes visible to others when its offset enters the table.
struct NewGroup {
  NewGroup(WorldControl& world, const std::vector<int>& members, std::uint64_t id, std::uint64_t channel) {
    const std::size_t rounds = align_up(sizeof(GroupControl) + bounded_product(members.size(), sizeof(std::int32_t)));
    const std::size_t head = rounds + bounded_product(members.size(), sizeof(MemberRounds));
    const std::size_t slot_bytes = sizeof(Slot) + bounded_product(members.size(), sizeof(MemberEntry));
    const std::size_t bytes = head + bounded_product(ring_slots, slot_bytes);
    begin = allocate_control(world, bytes);
    end = begin + align_up(bytes);
    GroupControl& group = world.group(begin);
    group.id = id;
    group.channel = channel;
    group.size = static_cast<std::int32_t>(members.size());
    group.rounds = rounds;
    group.slots = head;
    group.slot_bytes = static_cast<std::uint32_t>(slot_bytes);
    for (std::size_t i = 0; i < members.size(); ++i) group.members()[i] = members[i];
    HostsControl* const hosts = world.hosts_control();
    const auto lives_elsewhere = [&](int member) {
      return hosts->host_of()[member] != hosts->host_of()[members.front()];
    };
    group.spans_hosts = hosts != nullptr && std::any_of(members.begin(), members.end(), lives_elsewhere) ? 1 : 0;
  }
  // Frees an unused structure if nothing has been allocated since. Only its header has been written.
  void release(WorldControl& world) {
    std::byte* unused = world.at(begin);
    std::fill(unused, unused + world.group(begin).slots, std::byte{0});
    world.next_free.compare_exchange_strong(end, begin);
  }
  std::uint64_t begin, end;  // offsets in the control area
};

}  // namespace

GroupControl& find_or_insert_group(WorldControl& world, const std::vector<int>& members, std::uint64_t channel) {
  const std::uint64_t id = id_of(members, channel);
  std::optional<NewGroup> mine;
  for (std::size_t probe = 0; probe < group_table_entries; ++probe) {
    std::atomic<std::uint64_t>& entry = world.groups[(id + probe) % group_table_entries];
    std::uint64_t offset = entry.load(std::memory_order_acquire);
    if (offset == 0) {
      if (!mine) mine.emplace(world, members, id, channel);
      if (entry.compare_exchange_strong(offset, mine->begin)) return world.group(mine->begin);
    }
    // The entry of another rank, now at `offset`.
    if (is_same(world.group(offset), members, channel)) {
      if (mine) mine->release(world);
      return world.group(offset);
    }
  }
  throw Error(str("more than ", group_table_entries, " process groups in one case"), "make fewer process groups");
}

GroupControl* find_group(WorldControl& world, std::uint64_t id) {
  for (std::size_t probe = 0; probe < group_table_entries; ++probe) {
    const std::uint64_t offset = world.groups[(id + probe) % group_table_entries].load(std::memory_order_acquire);
    if (offset == 0) return nullptr;
    if (world.group(offset).id == id) return &world.group(offset);
  }
  return nullptr;
}

void notify(EventCount& changes) {
  changes.epoch.fetch_add(1, std::memory_order_seq_cst);
  if (changes.sleepers.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, &changes.epoch, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void notify_all(WorldControl& world) {
  world.ends.fetch_add(1);
  for (std::atomic<std::uint64_t>& entry : world.groups) {
    const std::uint64_t offset = entry.load(std::memory_order_acquire);
    if (offset == 0) continue;
    GroupControl& group = world.group(offset);
    for (std::uint64_t slot = 0; slot < ring_slots; ++slot) notify(group.slot(slot).changes);
  }
}

}  // namespace lockstep::comm
