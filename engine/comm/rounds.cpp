// end_round(): ends a round of collectives that members may have skipped (process_group.hpp).
#include <algorithm>

#include <time.h>

#include "engine/comm/communicator.hpp"
#include "engine/comm/messages.hpp"
#include "engine/comm/wait_graph.hpp"
#include "engine/core/error.hpp"
#include "engine/core/schedule.hpp"

namespace lockstep::comm {

namespace {

// Polls at growing intervals from 20 us to 2 ms and sleeps between them. Throws on an abort and after the deadline.
template <class Ready>
void poll(RankState& state, const std::string& operation, Ready&& ready) {
  const std::int64_t start = now_ns();
  int stalled_turns = 0;
  for (std::int64_t pause_ns = 20'000; !ready(); pause_ns = std::min<std::int64_t>(2 * pause_ns, 2'000'000)) {
    publish_deferred_texts(state);
    if (state.world->abort.is_set())
      throw PeerEndedError(str(operation, ": the case was aborted: ", state.world->abort.read()));
    if (now_ns() - start > state.deadline_ns.load())
      throw CollectiveError(
          str(operation, ": some rank did not end its backward within ", seconds_text(state.deadline_ns.load())));
    if (schedule::Actor* me = schedule::self()) [[unlikely]] {
      if (!me->wait_or_stall("the end of a round", [&] { return ready() || state.world->abort.is_set(); }))
        search_for_deadlock(state, ++stalled_turns);
      continue;
    }
    check_for_deadlock(state, now_ns() - start);
    const timespec pause{0, pause_ns};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

void end_round(ProcessGroup& group, bool compare, const std::string& owner) {
  Endpoint& endpoint = CollectiveIssuer::endpoint_of(group);
  GroupControl& control = *endpoint.control;
  const std::uint64_t number = ++endpoint.rounds;
  MemberRounds& mine = control.rounds_of(group.rank());
  mine.issued[number % MemberRounds::num_kept].store(endpoint.sequence, std::memory_order_relaxed);
  mine.ended.store(number, std::memory_order_release);
  Communicator::current().state()->plane->ended_round(control, group.rank(), number);
  if (!compare) return;

  RankState& state = *Communicator::current().state();
  const std::string operation = str("the end of a backward", owner.empty() ? "" : " of ", owner);
  bool differs = false;
  for (int member = 0; member < control.size; ++member) {
    if (member == group.rank()) continue;
    const MemberRounds& rounds = control.rounds_of(member);
    const RankControl& rank = state.world->rank(group.members()[static_cast<std::size_t>(member)]);
    const LongWait wait(state, control, group.rank(), member, number);
    poll(state, operation, [&] {
      return rounds.ended.load(std::memory_order_acquire) >= number || control.poison.is_set() ||
             rank.end.load(std::memory_order_acquire) != RankEnd::none;
    });
    if (control.poison.is_set()) break;
    if (rounds.has(number) &&
        rounds.issued[number % MemberRounds::num_kept].load(std::memory_order_relaxed) != endpoint.sequence)
      differs = true;
  }
  // A member that waits in a skipped collective fails with a text that names it and poisons the group.
  if (differs) {
    const LongWait wait(state);
    poll(state, operation, [&] { return control.poison.is_set(); });
  }
  if (control.poison.is_set()) throw CollectiveError(control.poison.read());
}

}  // namespace lockstep::comm
