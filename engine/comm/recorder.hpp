// The flight recorder: the last 2,000 collectives of each rank, in memory that the launcher owns, so that the history
// of a killed or hung rank survives. The launcher reads it and writes a dump; `lockstep explain-hang` explains the
// dump.
//
//   std::vector<RankHistory> stories = read_recorder(world);   // launcher, after the ranks ended
//   std::string explanation = explain(stories);
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
  std::vector<int> members;  // world ranks; of a call that is done, unless it is the last, at most the first 64
  std::vector<int> arrived;  // members that have called it, also those that do not keep it any more; [] if it is done
  std::int64_t bytes = 0;    // of the larger of input and output
  int scenario_line = 0;     // 0: unknown
  CollectiveState state = CollectiveState::issued;
  std::int64_t issued_ns = 0;  // monotonic clock of the machine
};

// The recorded history of one rank.
struct RankHistory {
  int rank = 0;
  bool ended = false, failed = false, died = false;
  std::string why;  // reason of the failure or death
  // The last location that the rank recorded with record_location(); empty if it recorded none.
  std::string step, file;
  int line = 0, column = 0;
  std::vector<RecordedCollective> collectives;  // oldest first
};

// ---- launcher side ----
// Bytes of the control area with which a world of this size must be created (sparse: only accessed pages use memory).
std::size_t control_bytes(int world_size);
// Initializes the control area. The launcher calls it once per world, before ranks start.
void prepare_world(device::HostWorld& world);
// The process of a rank is gone: wakes all ranks and ends every wait for this one. Does nothing if the rank has already
// announced its end.
void announce_death(device::HostWorld& world, int rank, const std::string& why);
// The case is stopped, for example at its time limit: ends every wait of every rank. The first reason wins.
void announce_abort(device::HostWorld& world, const std::string& why);
// The history of every rank, in rank order.
std::vector<RankHistory> read_recorder(const device::HostWorld& world);

// ---- rank side ----
// Records the step that the current rank runs, so that the launcher can report it after a crash or a hang. Takes a few
// nanoseconds. Longer texts are truncated.
void record_location(std::string_view step, std::string_view file, int line, int column);

// ---- texts ----
// The last call of one rank, for a message: "in all_reduce of 16 bytes ...", "after all_gather ...", "before any
// collective".
std::string last_call_text(const RankHistory& story);
// One JSON line per rank.
std::string to_text(const std::vector<RankHistory>& stories);
// The inverse of to_text(). Throws Error on malformed text.
std::vector<RankHistory> histories_from_text(const std::string& text);
// A paragraph for users: the ranks that failed, the first collective on which ranks diverged, the ranks that wait, and
// the last calls of the ranks they wait for.
std::string explain(const std::vector<RankHistory>& stories);

}  // namespace lockstep::comm
