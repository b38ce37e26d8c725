// What parallel APIs did, in order: what tests of prefetching and overlap look at. Kept a rank, the first 100,000.
//
//   note_event(EventKind::unshard, group_name);
//   for (const ParallelEvent& event : events()) ...
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::parallel {

enum class EventKind : std::uint8_t {
  unshard,        // the gather of a group is issued
  reshard,        // a group's whole parameters are freed
  reduce,         // the reduction of a group is issued
  pre_forward,    // a group's module is entered
  post_forward,   // and left
  pre_backward,   // backward reaches the group's outputs
  post_backward,  // and has left its inputs behind
  recompute,      // an activation checkpoint runs its forward again
  wait_event,     // the gather streams wait for the post-optimizer event
  wait_stream     // the gather streams wait for the whole compute stream
};
inline constexpr int num_event_kinds = 10;
std::string_view name_of(EventKind kind);

struct ParallelEvent {
  EventKind kind = EventKind::unshard;
  std::string owner;  // the name that the API was given for the module; of several, joined by +
};
void note_event(EventKind kind, std::string owner);
// Position for windows: events().size() before.
const std::vector<ParallelEvent>& events();

}  // namespace lockstep::parallel
