// The texts of failed collectives, written for people: what each rank called, who is missing, where it was last.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/protocol.hpp"

namespace lockstep::comm {

// "[0, 1, 3]"; long runs as "[0-127]".
std::string ranks_text(const std::vector<int>& ranks);
// Members, as ranks of the world; a channel as "0 -> 1".
std::string group_text(const GroupControl& group);
// "all_reduce(sum) of 12 float32 for fc1.weight at line 14".
std::string call_text(const WorldControl& world, const Record& record);

bool agreements_differ(const Issued& issued);
std::string mismatch_text(const Issued& issued);
std::string deadline_text(const Issued& issued, Waiting for_what, std::int64_t deadline_ns);
std::string left_out_text(const Issued& issued, int member);
std::string ended_text(const Issued& issued, int member);

}  // namespace lockstep::comm
