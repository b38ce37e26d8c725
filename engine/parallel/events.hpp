// The events of the parallel APIs, in order, for tests of prefetching and overlap. Each rank keeps its first 100,000.
//
//   note_event(EventKind::unshard, group_name, module);
//   for (const ParallelEvent& event : events()) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::nn {
class Module;
}

namespace lockstep::parallel {

enum class EventKind : std::uint8_t {
  unshard,        // the all-gather of a group is issued
  reshard,        // the unsharded parameters of a group are freed
  reduce,         // the reduction of a group is issued
  pre_forward,    // a call enters the module of a group
  post_forward,   // the call leaves it
  pre_backward,   // backward reaches the outputs of the module
  post_backward,  // backward has left the inputs of the module
  recompute,      // an activation checkpoint runs its forward again
  wait_event,     // the copy-in stream waits for the post-optimizer event
  wait_stream     // the copy-in stream waits for the compute stream
};
inline constexpr int num_event_kinds = 10;
std::string_view name_of(EventKind kind);

struct ParallelEvent {
  EventKind kind = EventKind::unshard;
  std::string owner;  // the name that was given to the API, or the module's type; types of several are joined by +
  // The first module of the owner. Several models may have owners of one name.
  std::weak_ptr<nn::Module> module{};
};
void note_event(EventKind kind, std::string owner, std::weak_ptr<nn::Module> module);
// An observation window begins at events().size().
const std::vector<ParallelEvent>& events();
// A rank keeps this many events and drops later ones.
inline constexpr std::size_t most_events = 100'000;

}  // namespace lockstep::parallel
