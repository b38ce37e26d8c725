#include "engine/comm/recorder.hpp"

#include <algorithm>
#include <cstring>

#include "engine/comm/communicator.hpp"
#include "engine/comm/control.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

void prepare_world(device::HostWorld& world) {
  const device::HostWorld::Region area = world.control();
  initialize_control(area.base, area.bytes, world.world_size(), world.sharing() == device::Sharing::processes);
}

std::size_t control_bytes(int world_size) { return control_bytes_for(world_size); }

void record_location(std::string_view step, std::string_view file, int line, int column) {
  auto& location = Communicator::current().state()->control().location;
  copy_text(location.step, step);
  copy_text(location.file, file);
  location.line = line;
  location.column = column;
}

void announce_death(device::HostWorld& world, int rank, const std::string& why) {
  WorldControl& control = control_of(world);
  LOCKSTEP_CHECK(rank >= 0 && rank < control.world_size, "rank ", rank, " of ", control.world_size);
  RankControl& dead = control.rank(rank);
  RankEnd none = RankEnd::none;
  if (dead.end.load() != none) return;  // it announced its end before its process ended
  dead.end_reason.try_set(why);
  dead.end.compare_exchange_strong(none, RankEnd::died);
  std::uint32_t searcher = static_cast<std::uint32_t>(rank) + 1;
  control.deadlock_searcher.compare_exchange_strong(searcher, 0);
  notify_all(control);
}

void announce_abort(device::HostWorld& world, const std::string& why) {
  WorldControl& control = control_of(world);
  control.abort.try_set(why);
  notify_all(control);
}

namespace {

std::vector<int> arrived_members(GroupControl& group, std::uint64_t sequence) {
  const std::uint32_t arrival = static_cast<std::uint32_t>(sequence / ring_slots) + 1;
  const MemberEntry* const entries = group.slot(sequence).entries();
  std::vector<int> ranks;
  for (int member = 0; member < group.size; ++member)
    if (entries[member].arrival.load(std::memory_order_acquire) == arrival) ranks.push_back(group.members()[member]);
  return ranks;
}

}  // namespace

std::vector<RankHistory> read_recorder(const device::HostWorld& world) {
  WorldControl& control = control_of(world);
  std::vector<RankHistory> stories;
  for (int rank = 0; rank < control.world_size; ++rank) {
    const RankControl& source = control.rank(rank);
    RankHistory story;
    story.rank = rank;
    const RankEnd end = source.end.load(std::memory_order_acquire);
    story.ended = end != RankEnd::none;
    story.failed = end == RankEnd::failed;
    story.died = end == RankEnd::died;
    story.why = source.end_reason.read();
    // A hung rank may be writing these texts, so they may lack their terminating zero.
    story.step.assign(source.location.step, strnlen(source.location.step, sizeof source.location.step - 1));
    story.file.assign(source.location.file, strnlen(source.location.file, sizeof source.location.file - 1));
    story.line = source.location.line;
    story.column = source.location.column;
    const std::uint64_t count = source.num_records.load(std::memory_order_acquire);
    // A rank that runs, or was killed, may have begun to overwrite the oldest entry.
    const std::uint64_t whole = story.ended && !story.died ? recorder_entries : recorder_entries - 1;
    const std::uint64_t first = count > whole ? count - whole : 0;
    for (std::uint64_t i = first; i < count; ++i) {
      const Record& record = source.records[i % recorder_entries];
      GroupControl& group = control.group(record.group);
      RecordedCollective call;
      call.group_id = group.id;
      call.sequence = record.sequence;
      call.operation = name_of_kind(record.kind);
      call.dtype = name_of(static_cast<DType>(record.dtype));
      call.family = name_of(static_cast<Family>(record.family));
      call.phase = name_of(static_cast<Phase>(record.phase));
      call.axis = record.axis;
      call.owner = record.owner;
      call.state = record.state.load(std::memory_order_acquire);
      // Texts and conclusions need all members of a call that is under way, and of the last one.
      const bool needs_all = call.state != CollectiveState::done || i + 1 == count;
      call.members.assign(group.members(), group.members() + (needs_all ? group.size : std::min(group.size, 64)));
      if (call.state != CollectiveState::done) call.arrived = arrived_members(group, record.sequence);
      call.bytes = record.bytes;
      call.scenario_line = record.scenario_line;
      call.issued_ns = record.issued_ns;
      story.collectives.push_back(std::move(call));
    }
    stories.push_back(std::move(story));
  }
  return stories;
}

}  // namespace lockstep::comm
