// Shares one plan among the ranks of a case, so that the dry run is made once and not once per rank. The launcher makes
// a board per stage before it starts the ranks: memory that their processes share.
//
//   const PlanBoard::Taken taken = take_plan(board, digest, [&] { return plan_case(...); });
//
// The first rank that asks makes its plan and posts it together with the digest of its steps (control_digest.hpp). A
// rank with the same digest takes that plan. All others make their own: ranks that performed other steps or had other
// arguments, ranks that waited in vain, and all ranks if the plan is incomplete.
//
// A taken plan serves only to confirm a rank. A rank whose collectives differ from it makes its own plan and is judged
// by that (plan_check.cpp). What a board holds is checked when it is read, so that a rank that wrote into it by
// accident cannot harm the others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
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

  // Whether the caller is the first. It then calls post() or give_up().
  bool claim();
  void post(std::uint64_t digest, const std::vector<plan::Collective>& planned);
  void give_up();
  // The posted plan, if it belongs to this digest. Waits for the rank that makes it, at most `most_seconds`.
  std::optional<std::vector<plan::Collective>> read(std::uint64_t digest, double most_seconds);

 private:
  struct Head;
  Head* head_ = nullptr;
};

// The plan of a rank: from the board, or by `make`. Without a board always by `make`.
struct TakenPlan {
  PlanOutcome outcome;
  bool is_own = true;
};
TakenPlan take_plan(PlanBoard* board, std::uint64_t digest, const std::function<PlanOutcome()>& make);

// ---- the form on the board ----
std::vector<std::byte> bytes_of_plan(const std::vector<plan::Collective>& planned);
// Nothing if the bytes are no such form.
std::optional<std::vector<plan::Collective>> plan_from_bytes(const std::byte* bytes, std::size_t size);

}  // namespace lockstep::run
