// Ending a round of collectives that members may have left out (process_group.hpp).
#include <algorithm>

#include <time.h>

#include "engine/comm/communicator.hpp"
#include "engine/comm/wait_graph.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// Polls, asleep in between: awake for as long as collectives are, then at growing intervals.
template <class Ready>
void poll(RankState& state, const std::string& what, Ready&& ready) {
  const std::int64_t start = now_ns();
  for (std::int64_t pause_ns = 20'000; !ready(); pause_ns = std::min<std::int64_t>(2 * pause_ns, 2'000'000)) {
    tell_deferred(state);
    if (state.world->abort.any())
      throw PeerEndedError(str(what, ": the case was aborted: ", state.world->abort.read()));
    if (now_ns() - start > state.deadline_ns.load())
      throw CollectiveError(str(what, ": no end of the other ranks' backward within ",
                                static_cast<double>(state.deadline_ns.load()) * 1e-9, " s"));
    look_for_deadlock(state, now_ns() - start);
    const timespec pause{0, pause_ns};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

void end_round(ProcessGroup& group, bool compare, const std::string& owner) {
  Meeting& meeting = Engine::meeting_of(group);
  GroupControl& control = *meeting.control;
  const std::uint64_t number = ++meeting.rounds;
  Rounds& mine = control.rounds_of(group.rank());
  mine.issued[number % Rounds::kept].store(meeting.sequence, std::memory_order_relaxed);
  mine.ended.store(number, std::memory_order_release);
  if (!compare || control.size == 1) return;

  RankState& state = *Communicator::current().state();
  const std::string what = str("the end of a backward", owner.empty() ? "" : " of ", owner);
  int differs = -1;
  for (int member = 0; member < control.size; ++member) {
    if (member == group.rank()) continue;
    const Rounds& rounds = control.rounds_of(member);
    const RankControl& rank = state.world->rank(group.members()[static_cast<std::size_t>(member)]);
    const LongWait wait(state, control, group.rank(), member, number);
    poll(state, what, [&] {
      return rounds.ended.load(std::memory_order_acquire) >= number || control.poison.any() ||
             rank.end.load(std::memory_order_acquire) != RankEnd::none;
    });
    if (control.poison.any()) break;
    if (rounds.has(number) && rounds.issued[number % Rounds::kept].load(std::memory_order_relaxed) != meeting.sequence)
      differs = member;
  }
  // Whoever waits for what was left out tells what that is.
  if (differs >= 0) {
    const LongWait wait(state);
    poll(state, what, [&] { return control.poison.any(); });
  }
  if (control.poison.any()) throw CollectiveError(control.poison.read());
}

}  // namespace lockstep::comm
