// A plan as bytes: the form in which ranks hand it to each other (plan_board.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/plan/collectives.hpp"

namespace lockstep::run {

std::string bytes_of_plan(const std::vector<plan::Collective>& planned);

// The members of a collective; the texts refer to the bytes.
struct CollectiveView {
  std::string_view family, operation, axis, phase, owner;
  int group_size = 0, line = 0, turn = 0;
  std::int64_t bytes = 0;
  bool bytes_are_least = false;
};
// Calls `visit` for each collective until it returns false. False if it did, or if the bytes are no such form.
bool visit_plan(std::string_view bytes, const std::function<bool(const CollectiveView&)>& visit);
// Nothing if the bytes are no such form.
std::optional<std::vector<plan::Collective>> plan_from_bytes(std::string_view bytes);

}  // namespace lockstep::run
