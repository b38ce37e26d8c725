#include "engine/comm/slot.hpp"

#include "engine/comm/device_memory.hpp"
#include "engine/comm/transport.hpp"
#include "engine/device/capabilities.hpp"

namespace lockstep::comm {

namespace {

int num_elsewhere(WorldControl& world, const GroupControl& group) {
  int count = 0;
  for (int member = 0; member < group.size; ++member) count += world.is_local(group.members()[member]) ? 0 : 1;
  return count;
}

// All have arrived: compares their calls, and opens the slot or marks the mismatch. Members that failed before may have
// freed their buffers, so a poisoned group refuses the slot.
void open(WorldControl& world, GroupControl& group, Slot& slot) {
  if (group.poison.is_set()) return refuse(slot);
  const MemberEntry* entries = slot.entries();
  const int size = group.size;
  const bool is_exchange = entries[0].fingerprint.kind == exchange_kind;
  for (int member = 0; member < size; ++member) {
    const Fingerprint &mine = entries[member].fingerprint, &first = entries[0].fingerprint;
    if (!fields_match(mine, first) || mine.digest != first.digest) {
      slot.stage.store(Stage::mismatch);
      notify_all(world);  // members that wait for another event must publish their texts
      return;
    }
  }
  const auto device = static_cast<device::Kind>(entries[0].fingerprint.device);
  // Between hosts, the members give copies on the host (host_copies.hpp).
  const bool is_on_device = !device::capabilities_of(device).runs_on_host && group.spans_hosts == 0;
  slot.transport = choose_transport({.exchanges = is_exchange,
                                     .between_hosts = group.spans_hosts != 0,
                                     .device_memory = is_on_device,
                                     .between_devices = is_on_device && !share_a_device(world, group.members(), size)});
  if (group.spans_hosts != 0) count_leavers(slot, size, num_elsewhere(world, group));  // these have slots of their own
  const bool moves_nothing = entries[0].fingerprint.kind == static_cast<std::uint8_t>(Operation::barrier);
  if (moves_nothing || (slot.transport == TransportKind::shared_memory && run_if_small(slot, size))) {
    slot.stage.store(Stage::finished);
  } else {
    slot.stage.store(Stage::open);
  }
  notify(slot.changes);
}

}  // namespace

bool fields_match(const Fingerprint& a, const Fingerprint& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         (a.count == b.count || a.kind == exchange_kind);
}

void count_arrival(WorldControl& world, GroupControl& group, std::uint64_t sequence) {
  Slot& slot = group.slot(sequence);
  // Sequentially consistent with the poison: see is_opening() in protocol.cpp.
  if (slot.arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(group.size)) open(world, group, slot);
}

void refuse(Slot& slot) {
  slot.stage.store(Stage::refused);
  notify(slot.changes);
}

void count_leavers(Slot& slot, int size, int count) {
  const auto members = static_cast<std::uint32_t>(size), leaving = static_cast<std::uint32_t>(count);
  if (slot.left.fetch_add(leaving) + leaving < members) return;
  for (std::uint32_t member = 0; member < members; ++member)
    slot.entries()[member].moved_bytes.store(0, std::memory_order_relaxed);
  slot.arrived.store(0, std::memory_order_relaxed);
  slot.next_chunk.store(0, std::memory_order_relaxed);
  slot.done_chunks.store(0, std::memory_order_relaxed);
  slot.left.store(0, std::memory_order_relaxed);
  slot.barrier_arrivals.store(0, std::memory_order_relaxed);
  slot.stage.store(Stage::filling, std::memory_order_relaxed);
  slot.generation.fetch_add(1);
  notify(slot.changes);
}

}  // namespace lockstep::comm
