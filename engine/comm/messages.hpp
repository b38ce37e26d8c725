// The texts of failed collectives, for users: the call of each rank, the missing ranks, and their last calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/protocol.hpp"

namespace lockstep::comm {

// "[0, 1, 3]"; runs of more than four ranks as "[0-127]".
std::string ranks_text(const std::vector<int>& ranks);
// "rank 2", "ranks 0, 1".
std::string named_ranks_text(const std::vector<int>& ranks);
// "0.6 s", to a tenth.
std::string seconds_text(std::int64_t ns);
// The members as world ranks; a channel as "[0 -> 1]".
std::string group_text(const GroupControl& group);
// "all_reduce(sum) of 12 float32 for fc1.weight at line 14".
std::string call_text(const WorldControl& world, const Record& record);
// The operation of a member's call that the flight recorder does not keep any more. A receive has the fingerprint of
// its send.
std::string_view old_operation(const GroupControl& group, int member, const Fingerprint& fingerprint);
// A call that the flight recorder does not keep any more: its operation, and that no more is known.
std::string old_call_text(std::string_view operation);
// The call of this rank. If the flight recorder does not keep it any more, the text is its operation, and says so.
std::string own_call_text(const IssuedCollective& issued);

// The content digests of the members differ, or may differ because the flight recorder does not keep them any more. All
// members have arrived.
bool contents_differ(const IssuedCollective& issued);
// The members' calls do not match.
std::string mismatch_text(const IssuedCollective& issued);
// The awaited event has not happened within the deadline.
std::string deadline_text(const IssuedCollective& issued, WaitReason reason, std::int64_t deadline_ns);
// `member` has ended the round without issuing this collective.
std::string skipped_text(const IssuedCollective& issued, int member);
// `member` has ended, failed or died.
std::string ended_text(const IssuedCollective& issued, int member);

}  // namespace lockstep::comm
