// A rank's outcome as bytes: how a rank process hands it to the launcher over a pipe or a socket.
//
//   write_all(pipe, to_bytes(outcome));
//   RankOutcome outcome = outcome_from_bytes(read_all(pipe));
//
// The bytes carry their own length and a checksum, so a rank that died while it wrote is told apart from one that
// handed in an outcome. Both ends are the same program: the format is not for files.
#pragma once

#include <string>
#include <string_view>

#include "harness/verdict/judge.hpp"

namespace lockstep::verdict {

std::string to_bytes(const RankOutcome& outcome);
// Throws Error for anything but the whole of what to_bytes gave (cut short, too long, altered).
RankOutcome outcome_from_bytes(std::string_view bytes);

}  // namespace lockstep::verdict
