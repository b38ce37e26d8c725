// The outcome of a rank as bytes, to send it from the rank's process to the launcher.
//
//   write_all(pipe, to_bytes(outcome));
//   RankOutcome outcome = outcome_from_bytes(read_all(pipe));
//
// The bytes include their length and a checksum, so that an outcome cut short by the death of its rank is recognized.
// Both ends are the same program; the format is not for files.
#pragma once

#include <string>
#include <string_view>

#include "harness/verdict/judge.hpp"

namespace lockstep::verdict {

std::string to_bytes(const RankOutcome& outcome);
// Throws Error unless `bytes` are exactly the result of to_bytes(): cut short, too long or altered bytes are refused.
RankOutcome outcome_from_bytes(std::string_view bytes);

}  // namespace lockstep::verdict
