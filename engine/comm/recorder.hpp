// The flight recorder: the last 2,000 collectives of each rank, in memory that the launcher owns, so that the story of
// a killed or hung rank survives it. The launcher reads it and writes a dump; `lockstep explain-hang` tells the story.
//
//   std::vector<RankStory> stories = read_recorder(world);   // launcher, after the ranks ended
//   std::string told = explain(stories);
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/arena.hpp"

namespace lockstep::comm {

enum class CollectiveState : std::uint8_t { issued, waiting, running, done, failed };

struct RecordedCollective {
  std::uint64_t group_id = 0;
  std::uint64_t sequence = 0;
  std::string operation, dtype, family, phase, axis, owner;
  std::vector<int> members;  // at most the first 64
  std::int64_t bytes = 0;
  int scenario_line = 0;
  CollectiveState state = CollectiveState::issued;
  std::int64_t issued_ns = 0, finished_ns = 0;  // monotonic clock of the machine
};
struct RankStory {
  int rank = 0;
  bool ended = false, failed = false, died = false;
  std::string why;  // of the failure or death
  // Where it was last (note_place), empty when it never said.
  std::string step, file;
  int line = 0, column = 0;
  std::vector<RecordedCollective> collectives;  // oldest first
};

// Bytes of control area that a world of so many ranks is to be created with (sparse: only touched pages cost).
std::size_t control_bytes(int world_size);
// The running rank says which step it is at, so that the launcher knows it of one that crashed or hangs. A few
// nanoseconds; longer texts are cut.
void note_place(std::string_view step, std::string_view file, int line, int column);

// Before ranks start: lays out the control area. Must be called once a world by the launcher.
void prepare_world(device::HostWorld& world);
// Launcher side: a rank's process is gone, or the case ran out of time; wakes and ends every wait.
void announce_death(device::HostWorld& world, int rank, const std::string& why);
void announce_abort(device::HostWorld& world, const std::string& why);
std::vector<RankStory> read_recorder(const device::HostWorld& world);
// Of one rank, for a message: "in all_reduce #3 of ... for 2.1 s", "after all_gather ...", "before any collective".
std::string last_words(const RankStory& story);
// JSON lines, one a rank; and back (throws Error on malformed text).
std::string to_text(const std::vector<RankStory>& stories);
std::vector<RankStory> stories_from_text(const std::string& text);
// Who waits for whom, where ranks parted, what each called last: a paragraph for people.
std::string explain(const std::vector<RankStory>& stories);

}  // namespace lockstep::comm
