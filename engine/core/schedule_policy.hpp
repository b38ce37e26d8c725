// Policies of a schedule (schedule.hpp): pure functions of the decisions so far, without threads.
//
//   random:SEED        each decision draws one of the actors that can run
//   pct:DEPTH,SEED     each actor has a random priority and the highest that can run does; at DEPTH - 1 random steps
//   the
//                      current actor falls below all others (Burckhardt et al., "A randomized scheduler with
//                      probabilistic guarantees of finding bugs", ASPLOS 2010: a bug that DEPTH ordering constraints
//                      show is found with probability 1 / (actors * steps^(DEPTH - 1)) per schedule)
//   switches           the fallback, except at the listed steps
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::schedule {

struct ActorName {
  int rank = 0;
  std::string thread;  // empty: the rank's own; otherwise the name of a stream, "sim/all_gather"
  friend auto operator<=>(const ActorName&, const ActorName&) = default;
};
std::string to_text(const ActorName& name);  // "rank 1 sim/all_gather"

// At its step `own_step` (from 1), `actor` hands over to `next`. A step counts the decision points of one actor, so
// that it means the same when switches of other actors are left out.
struct Switch {
  std::string actor;
  std::uint32_t own_step = 0;
  std::string next;
  friend bool operator==(const Switch&, const Switch&) = default;
};
std::string to_text(const Switch& change);  // "rank 0 #12 -> rank 1 sim/compute"
// Throws Error for a text that is none.
Switch switch_from_text(const std::string& text);

struct Moment {
  std::uint64_t step = 0;  // of all actors, from 1
  const ActorName* current = nullptr;
  std::uint32_t own_step = 0;
  std::span<const ActorName* const> able;  // at least one, in order
  std::size_t fallback = 0;                // index into `able`
  bool polls = false;                      // the current actor asks again and again for what others do
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::size_t choose(const Moment& moment) = 0;  // index into `able`
};

std::unique_ptr<Policy> random_policy(std::uint64_t seed);
// `steps`: of a run of the same case, from which the change points are drawn.
std::unique_ptr<Policy> pct_policy(int depth, std::uint64_t seed, std::uint64_t steps);
std::unique_ptr<Policy> replay_policy(const std::vector<Switch>& switches);

}  // namespace lockstep::schedule
