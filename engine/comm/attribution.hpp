// The family and the owner of collectives that are issued by code which does not know its caller: redistribution,
// clipping, loss scaling. A scope sets both. Backward runs each recorded operation in the scope of its forward.
//
//   const comm::AttributionScope scope({comm::Family::tensor_parallel, "model.layers.0.in_proj"});
//   redistribute(x, placements);      // its collectives have this owner
#pragma once

#include <memory>
#include <string>

#include "engine/comm/process_group.hpp"

namespace lockstep::comm {

struct Attribution {
  Family family = Family::tensor_parallel;
  std::string owner;  // "model.module"; empty: none
};
using AttributionPtr = std::shared_ptr<const Attribution>;

// Of the innermost scope of this rank; null outside scopes, which means the default attribution.
const AttributionPtr& current_attribution();
// A synchronous call with the current attribution.
Call attributed_call();

class AttributionScope {
 public:
  explicit AttributionScope(Attribution attribution);
  explicit AttributionScope(AttributionPtr attribution);  // null: the default attribution
  ~AttributionScope();
  AttributionScope(const AttributionScope&) = delete;
  AttributionScope& operator=(const AttributionScope&) = delete;

 private:
  AttributionPtr previous_;
};

}  // namespace lockstep::comm
