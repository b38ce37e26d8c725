// A case that several hosts run: the exchange of its outcomes, and the ends of hosts. Internal to harness/launch.
//
// Every host runs its ranks, and sends their outcomes to host 0 when they have ended. Host 0 sends all outcomes to all
// hosts, so that all judge the same. A host that does not answer in time, or whose link ends, is lost: its ranks have
// the status `lost`, and the ranks of other hosts see them as dead.
//
// advance_exchange() alone changes RunningCase::exchange:
//
//   ranks_run --> parts (host 0) --> closing --> closed --> over
//             \-> result (others) -/
//
// The case is over only when all hosts have closed it: no message of the next case can then reach a ferry of this one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/launch/running_case.hpp"

namespace lockstep::launch {

inline constexpr std::int64_t grace_ns = 1'000'000'000;  // from the abort of a case to the kill of its processes

// Between the look at the waits of the ranks at the time-out and the abort of the case. Longer than hosts start and end
// a case apart.
inline constexpr std::int64_t before_abort_ns = 200'000'000;

// Gives the case its number and the hosts of its ranks. Throws Error for more ranks than there are.
void join_hosts(RunningCase& test_case);
bool has_local_ranks(const RunningCase& test_case);
// Once the world of the case is prepared: starts the ferry where ranks of several hosts are peers.
void begin_exchange(RunningCase& test_case);
// Descriptors that become readable when the exchange has something to do.
std::vector<int> descriptors_of_exchange(const RunningCase& test_case);
// Moves what ranks of different hosts tell each other. Returns for how many nanoseconds the caller may sleep.
std::int64_t progress_exchange(RunningCase& test_case);
// Moves the state of the case as far as it goes. Returns whether the ranks of this host must be killed now.
bool advance_exchange(RunningCase& test_case);
// The case ends at once, by a signal or because this host cannot start its ranks: the other hosts kill their ranks.
// They give `why` as the reason; empty: a signal.
void stop_other_hosts(RunningCase& test_case, std::string_view why = {});

// The flight recorder of the ranks of this host, with times of the clock of host 0. The world has only a part of what
// the others did.
std::vector<comm::RankHistory> local_stories(const RunningCase& test_case);

// The outcomes of these ranks as the text of a letter, and back. outcomes_from_text() throws Error for damaged bytes.
std::string text_of_outcomes(const std::vector<verdict::RankOutcome>& outcomes, const std::vector<int>& ranks);
std::vector<verdict::RankOutcome> outcomes_from_text(const std::string& text);

}  // namespace lockstep::launch
