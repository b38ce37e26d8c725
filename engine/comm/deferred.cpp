// Deferred calls: issued on inline streams and not waited for yet. Their data moves when they are waited for, as nobody
// else is there to do it; what must not wait that long is done here.
#include <vector>

#include "engine/comm/protocol.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

std::vector<std::shared_ptr<Issued>> deferred_calls(RankState& rank) {
  std::vector<std::shared_ptr<Issued>> calls;
  const std::lock_guard lock(rank.deferred.mutex);
  for (const std::weak_ptr<Issued>& each : rank.deferred.calls)
    if (std::shared_ptr<Issued> call = each.lock()) calls.push_back(std::move(call));
  return calls;
}

bool all_have_arrived(const Issued& issued) {
  if (!issued.arrived.load(std::memory_order_relaxed)) return false;
  const Stage stage = issued.slot().stage.load(std::memory_order_acquire);
  return stage == Stage::open || stage == Stage::finished;
}

}  // namespace

void keep_deferred(const std::shared_ptr<Issued>& issued) {
  Deferred& deferred = issued->rank->deferred;
  const std::lock_guard lock(deferred.mutex);
  std::erase_if(deferred.calls, [](const std::weak_ptr<Issued>& each) {
    const std::shared_ptr<Issued> call = each.lock();
    return call == nullptr || call->ended.load(std::memory_order_acquire);
  });
  deferred.calls.push_back(issued);
}

void tell_deferred(RankState& rank) {
  for (const std::shared_ptr<Issued>& call : deferred_calls(rank)) {
    const std::lock_guard lock(rank.deferred.mutex);
    tell_if_mismatched(*call);
  }
}

void finish_predecessor(const Issued& issued, bool wait) {
  for (const std::shared_ptr<Issued>& call : deferred_calls(*issued.rank)) {
    if (call->group != issued.group || call->sequence + ring_slots != issued.sequence) continue;
    if (call->entered || (!wait && !all_have_arrived(*call))) return;
    try {
      run(*call);
    } catch (const Error&) {
      // The group is poisoned: this call fails by that, and whoever waits for the other is told again.
    }
    return;
  }
}

}  // namespace lockstep::comm
