#include "engine/comm/recorder.hpp"

#include <algorithm>
#include <cstring>

#include "engine/comm/communicator.hpp"
#include "engine/comm/control.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

void prepare_world(device::HostWorld& world) {
  const device::HostWorld::Area area = world.control();
  lay_out(area.base, area.bytes, world.world_size(), world.sharing() == device::Sharing::processes);
}

std::size_t control_bytes(int world_size) { return control_bytes_for(world_size); }

void note_place(std::string_view step, std::string_view file, int line, int column) {
  auto& place = Communicator::current().state()->control().place;
  const auto copy_text = [](char* to, std::size_t capacity, std::string_view text) {
    to[text.copy(to, capacity - 1)] = '\0';
  };
  copy_text(place.step, sizeof place.step, step);
  copy_text(place.file, sizeof place.file, file);
  place.line = line;
  place.column = column;
}

void announce_death(device::HostWorld& world, int rank, const std::string& why) {
  WorldControl& control = control_of(world);
  LOCKSTEP_CHECK(rank >= 0 && rank < control.world_size, "rank ", rank, " of ", control.world_size);
  RankControl& dead = control.rank(rank);
  RankEnd none = RankEnd::none;
  if (dead.end.load() != none) return;  // it had announced its end before its process went
  dead.why.claim_and_fill(why);
  dead.end.compare_exchange_strong(none, RankEnd::died);
  std::uint32_t looker = static_cast<std::uint32_t>(rank) + 1;
  control.looker.compare_exchange_strong(looker, 0);
  ring_all(control);
}

void announce_abort(device::HostWorld& world, const std::string& why) {
  WorldControl& control = control_of(world);
  control.abort.claim_and_fill(why);
  ring_all(control);
}

std::vector<RankStory> read_recorder(const device::HostWorld& world) {
  const WorldControl& control = control_of(world);
  std::vector<RankStory> stories;
  for (int rank = 0; rank < control.world_size; ++rank) {
    const RankControl& source = control.rank(rank);
    RankStory story;
    story.rank = rank;
    const RankEnd end = source.end.load(std::memory_order_acquire);
    story.ended = end != RankEnd::none;
    story.failed = end == RankEnd::failed;
    story.died = end == RankEnd::died;
    story.why = source.why.read();
    // A hung rank may be writing: the ends of the texts are ours.
    story.step.assign(source.place.step, strnlen(source.place.step, sizeof source.place.step - 1));
    story.file.assign(source.place.file, strnlen(source.place.file, sizeof source.place.file - 1));
    story.line = source.place.line;
    story.column = source.place.column;
    const std::uint64_t count = source.num_records.load(std::memory_order_acquire);
    const std::uint64_t first = count > recorder_entries ? count - recorder_entries : 0;
    for (std::uint64_t i = first; i < count; ++i) {
      const Record& record = source.records[i % recorder_entries];
      const GroupControl& group = control.group(record.group);
      RecordedCollective told;
      told.group_id = group.id;
      told.sequence = record.sequence;
      told.operation = record.kind == exchange_kind ? std::string("exchange")
                                                    : std::string(name_of(static_cast<Operation>(record.kind)));
      told.dtype = name_of(static_cast<DType>(record.dtype));
      told.family = name_of(static_cast<Family>(record.family));
      told.phase = name_of(static_cast<Phase>(record.phase));
      told.axis = record.axis;
      told.owner = record.owner;
      told.members.assign(group.members(), group.members() + std::min(group.size, 64));
      told.bytes = record.bytes;
      told.scenario_line = record.scenario_line;
      told.state = record.state.load(std::memory_order_acquire);
      told.issued_ns = record.issued_ns;
      told.finished_ns = record.finished_ns;
      story.collectives.push_back(std::move(told));
    }
    stories.push_back(std::move(story));
  }
  return stories;
}

}  // namespace lockstep::comm
