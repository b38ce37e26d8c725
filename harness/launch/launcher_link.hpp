// The link between the launchers of the hosts, over a link between all processes of a run.
#pragma once

#include <memory>
#include <vector>

#include "engine/comm/link.hpp"

namespace lockstep::launch {

// Host h of the new link is the host `launchers[h]` of `processes`, which must outlive it and have this process among
// them. Messages of the others on a channel that is polled here are dropped.
std::unique_ptr<comm::Link> link_between(comm::Link& processes, std::vector<int> launchers);

}  // namespace lockstep::launch
