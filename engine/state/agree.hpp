// Agreement of all ranks on the result of one stage of a save or load: an error on one rank is an error on every rank.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep::state {

// Runs `stage` on this rank and returns the texts that it gave on all ranks, in rank order. All ranks call it together
// with the same operation ("save_checkpoint `run/step_100`"). If the stage throws on a rank, throws Error on every
// rank, with the operation, the ranks that failed and their messages. Throws CollectiveError if a peer ends.
std::vector<std::string> agree(const std::string& operation, const std::function<std::string()>& stage);

}  // namespace lockstep::state
