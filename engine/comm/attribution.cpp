#include "engine/comm/attribution.hpp"

#include <utility>

#include "engine/comm/communicator.hpp"

namespace lockstep::comm {

const AttributionPtr& current_attribution() { return Communicator::current().attribution; }

Call attributed_call() {
  const AttributionPtr& attribution = current_attribution();
  Call call;
  call.family = attribution ? attribution->family : Attribution{}.family;
  if (attribution) call.owner = attribution->owner;
  return call;
}

AttributionScope::AttributionScope(Attribution attribution)
    : AttributionScope(std::make_shared<const Attribution>(std::move(attribution))) {}
AttributionScope::AttributionScope(AttributionPtr attribution)
    : previous_(std::exchange(Communicator::current().attribution, std::move(attribution))) {}
AttributionScope::~AttributionScope() { Communicator::current().attribution = std::move(previous_); }

}  // namespace lockstep::comm
