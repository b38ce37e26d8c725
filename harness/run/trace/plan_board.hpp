// Shares plans among the ranks of a case, so that a dry run is made once and not once per rank. The launcher makes a
// board per stage before it starts the ranks: memory that their processes share.
//
//   const auto confirmed = [&](std::string_view posted) { return plan_agrees(posted, log, left_out); };
//   if (std::optional<PlanOutcome> own = make_unless_confirmed(board, digest, make, confirmed)) judge by it
//
// A rank looks at the plans of ranks with the digest of its own steps (control_digest.hpp). If one of them is the
// sequence of its own collectives, the rank is confirmed. Otherwise it makes its own plan, posts it for the others, and
// is judged by it. So a plan of another rank never fails a rank. It passes a rank only if both performed the same steps
// with the same arguments, and the rank issued exactly the collectives of that plan.
//
// What a board holds is checked when it is read: a rank that wrote into it by accident cannot harm the others. A rank
// that waits in vain for a plan makes its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/plan/collectives.hpp"
#include "harness/run/trace/plan_case.hpp"

namespace lockstep::run {

class PlanBoard {
 public:
  PlanBoard();  // throws ResourceError if the memory cannot be mapped
  ~PlanBoard();
  PlanBoard(const PlanBoard&) = delete;
  PlanBoard& operator=(const PlanBoard&) = delete;

  static constexpr int num_places = 16;
  // A place for a plan. The rank that claims it calls post() or give_up(). Nothing: all places are taken.
  struct Place {
    int number = 0;
    bool is_mine = false;  // claimed by this call; otherwise of another rank with this digest
  };
  // The next place from number `from` on that has this digest, or is free and thereby claimed.
  std::optional<Place> find(std::uint64_t digest, int from);
  void post(int place, const std::vector<plan::Collective>& planned);
  void give_up(int place);
  // The plan of a place, in the form of bytes_of_plan(). Waits for the rank that makes it, at most `most_seconds`.
  std::optional<std::string_view> read(int place, double most_seconds);

 private:
  struct Slot;
  Slot& slot(int place) const;
  void set_state(int place, std::uint32_t state);
  char* memory_ = nullptr;
};

// The plan by which a rank is judged, made by `make`. Nothing if a posted plan has confirmed the rank: `confirm` says
// whether a plan in the form of bytes_of_plan() does. Without a board a rank makes its own plan.
std::optional<PlanOutcome> make_unless_confirmed(PlanBoard* board, std::uint64_t digest,
                                                 const std::function<PlanOutcome()>& make,
                                                 const std::function<bool(std::string_view posted)>& confirm);

}  // namespace lockstep::run
