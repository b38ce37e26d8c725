// Shares plans among the ranks of a scenario's cases, so that a dry run is made once and not once per rank and case.
// The launcher makes a board per scenario before it starts ranks: memory that their processes share.
//
//   const auto confirm = [&](const PlanBoard::Posted& plan) { return met(plan.conditions) && agrees(plan.planned); };
//   if (std::optional<PlanOutcome> own = make_unless_confirmed(board, digest, make, confirm)) judge by it
//
// A rank looks at the plans of ranks with the digest of its own steps (control_digest.hpp). If one of them holds under
// conditions that this rank's case meets (plan_conditions.hpp), and is the sequence of its own collectives, the rank is
// confirmed. Otherwise it makes its own plan, posts it for the others, and is judged by it. So a plan of another rank
// never fails a rank. It passes a rank only if both performed the same steps with the same arguments, and the rank
// issued exactly the collectives of that plan.
//
// What a board holds is checked when it is read: a rank that wrote into it by accident cannot harm the others. A rank
// that waits in vain for a plan makes its own, and no rank waits for that plan again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/plan/collectives.hpp"
#include "harness/run/trace/plan_case.hpp"
#include "harness/scenario/document.hpp"

namespace lockstep::run {

class PlanBoard {
 public:
  PlanBoard();  // throws ResourceError if the memory cannot be mapped
  ~PlanBoard();
  PlanBoard(const PlanBoard&) = delete;
  PlanBoard& operator=(const PlanBoard&) = delete;

  static constexpr int num_places = 1024;
  // A place for a plan. The rank that claims it calls post() or give_up(). Nothing: all places are taken.
  struct Place {
    int number = 0;        // in the order in which the places of a digest are looked at
    bool is_mine = false;  // claimed by this call; otherwise of another rank with this digest
  };
  // The next place from number `from` on that has this digest, or is free and thereby claimed.
  std::optional<Place> find(std::uint64_t digest, int from);
  // Keeps the plan of an outcome and its conditions. Gives up where the board has no room for them.
  void post(std::uint64_t digest, int place, const PlanOutcome& outcome);
  void give_up(std::uint64_t digest, int place);

  struct Posted {
    std::string_view conditions;
    std::string_view planned;  // in the form of bytes_of_plan()
  };
  // The plan of a place. Waits for the rank that makes it, at most `most_seconds`, then gives the place up.
  std::optional<Posted> read(std::uint64_t digest, int place, double most_seconds);

 private:
  struct Head;
  struct Slot;
  Head& head() const;
  Slot& slot(std::uint64_t digest, int place) const;
  static void set_state(Slot& slot, std::uint32_t state);
  // Room for a plan, or null.
  char* take_room(std::size_t bytes, std::uint32_t& offset) const;
  char* memory_ = nullptr;
};

// The boards of the scenarios whose cases a launcher has started last.
class PlanBoards {
 public:
  std::shared_ptr<PlanBoard> of(const std::shared_ptr<const scenario::Scenario>& scenario);

 private:
  static constexpr std::size_t most_kept = 8;
  std::deque<std::pair<std::shared_ptr<const scenario::Scenario>, std::shared_ptr<PlanBoard>>> latest_;
};

// The plan by which a rank is judged, made by `make`. Nothing if a posted plan has confirmed the rank: `confirm` says
// whether one does. Without a board a rank makes its own plan.
std::optional<PlanOutcome> make_unless_confirmed(PlanBoard* board, std::uint64_t digest,
                                                 const std::function<PlanOutcome()>& make,
                                                 const std::function<bool(const PlanBoard::Posted&)>& confirm);

}  // namespace lockstep::run
