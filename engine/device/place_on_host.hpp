// Which of the ranks of its host a rank is. A service of its context; the communicator sets it where the ranks of a
// case live on several hosts, and the launcher where ranks are threads. To be set before the rank opens a device.
#pragma once

#include "engine/core/rank_context.hpp"

namespace lockstep::device {

struct PlaceOnHost {
  explicit PlaceOnHost(const RankContext& context) : index(context.rank()), num_ranks(context.world_size()) {}
  int index;      // number of lower ranks on the same host
  int num_ranks;  // of the case on this host
  bool ranks_are_threads = false;
  int num_ranks_at_once = 0;  // at most, of all cases that run on this host at the same time; 0: those of this case
};

}  // namespace lockstep::device
