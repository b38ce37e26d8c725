// Deferred calls: asynchronous collectives on inline streams that have not been waited for. No thread moves their data
// before Work::wait(). The functions here do the work that cannot be postponed until then.
#include <cstdint>
#include <vector>

#include "engine/comm/protocol.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

std::vector<std::shared_ptr<IssuedCollective>> deferred_calls(RankState& rank) {
  std::vector<std::shared_ptr<IssuedCollective>> calls;
  const std::lock_guard lock(rank.deferred.mutex);
  for (const std::weak_ptr<IssuedCollective>& each : rank.deferred.calls)
    if (std::shared_ptr<IssuedCollective> call = each.lock()) calls.push_back(std::move(call));
  return calls;
}

bool all_have_arrived(const IssuedCollective& issued) {
  if (!issued.arrived.load(std::memory_order_relaxed)) return false;
  const Stage stage = issued.slot().stage.load(std::memory_order_acquire);
  return stage == Stage::open || stage == Stage::finished;
}

}  // namespace

void add_deferred(const std::shared_ptr<IssuedCollective>& issued) {
  DeferredCalls& deferred = issued->rank->deferred;
  const std::lock_guard lock(deferred.mutex);
  std::erase_if(deferred.calls, [](const std::weak_ptr<IssuedCollective>& each) {
    const std::shared_ptr<IssuedCollective> call = each.lock();
    return call == nullptr || call->ended.load(std::memory_order_acquire);
  });
  deferred.calls.push_back(issued);
}

void publish_deferred_texts(RankState& rank) {
  for (const std::shared_ptr<IssuedCollective>& call : deferred_calls(rank)) {
    const std::lock_guard lock(rank.deferred.mutex);
    publish_if_mismatched(*call);
  }
}

void finish_predecessor(const IssuedCollective& issued, bool wait) {
  for (const std::shared_ptr<IssuedCollective>& call : deferred_calls(*issued.rank)) {
    if (call->group != issued.group || call->sequence + ring_slots != issued.sequence) continue;
    const bool moves_data = call->fingerprint.kind != static_cast<std::uint8_t>(Operation::barrier);
    if (!issued.on_rank_thread && moves_data) return;
    if (!wait && !all_have_arrived(*call)) return;
    try {
      run(*call);
    } catch (const Error&) {
      // The group is poisoned now: `issued` fails too, and a wait for the predecessor throws the same error again.
    }
    return;
  }
}

}  // namespace lockstep::comm
