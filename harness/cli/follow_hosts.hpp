// The run on a host other than host 0: it launches its ranks of the stages that host 0 names, until host 0 ends the
// run. It prints only why it ends without host 0, and writes no file besides those that its ranks write.
#pragma once

#include <cstdint>
#include <functional>

#include "harness/cli/stage_launch.hpp"

namespace lockstep::cli {

// Calls `perform` for each command. Returns the exit code that host 0 gives: 3 when host 0 is lost, 130 when it is
// lost or does not answer after a signal.
int follow_hosts(launch::Hosts& hosts, const std::function<void(const StageCommand&)>& perform);

// The numbers of Topic::unseen for the folders of options. The folder of a case has 0.
inline constexpr std::uint64_t unseen_trace_bits = 1, unseen_timeline = 2;

// Launches the stages of these cases. A host that does not see the folder of a case makes one of its own and tells
// host 0 (Topic::unseen), because only cases that exchange files between ranks notice. It also tells host 0 which
// folders of options it does not see.
int follow_cases(scenario::Library& library, const std::vector<scenario::Case>& cases, const RunCasesOptions& options);

}  // namespace lockstep::cli
