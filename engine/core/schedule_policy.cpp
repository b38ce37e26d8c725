#include "engine/core/schedule_policy.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"

namespace lockstep::schedule {

namespace {

// SplitMix64: every seed gives a good sequence.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t state_;
};

class Random final : public Policy {
 public:
  explicit Random(std::uint64_t seed) : draws_(seed) {}
  std::size_t choose(const Moment& moment) override {
    return moment.able.size() == 1 ? 0 : static_cast<std::size_t>(draws_.below(moment.able.size()));
  }

 private:
  Draws draws_;
};

class Pct final : public Policy {
 public:
  Pct(int depth, std::uint64_t seed, std::uint64_t steps) : seed_(seed) {
    Draws draws(seed);
    for (int i = 1; i < depth; ++i) changes_.push_back(1 + draws.below(std::max<std::uint64_t>(steps, 1)));
    std::sort(changes_.begin(), changes_.end());
  }

  std::size_t choose(const Moment& moment) override {
    // Below all initial priorities, and the later the lower.
    for (; changed_ < changes_.size() && changes_[changed_] <= moment.step; ++changed_)
      priorities_[*moment.current] = below_all + changes_.size() - changed_;
    // Otherwise actors that poll in turn would keep all others from running.
    if (moment.polls) priorities_[*moment.current] = --last_poll_;
    std::size_t best = 0;
    for (std::size_t i = 1; i < moment.able.size(); ++i)
      if (priority(*moment.able[i]) > priority(*moment.able[best])) best = i;
    return best;
  }

 private:
  // An actor's first priority follows from its name, and not from when it is created.
  std::uint64_t priority(const ActorName& name) {
    const auto [at, is_new] = priorities_.try_emplace(name, 0);
    if (is_new)
      at->second = Draws(fnv1a(to_text(name)) ^ (seed_ * 0x9e3779b97f4a7c15u)).next() | (std::uint64_t{1} << 63);
    return at->second;
  }

  static constexpr std::uint64_t below_all = std::uint64_t{1} << 62;
  std::uint64_t seed_;
  std::uint64_t last_poll_ = below_all;  // the priority of the last actor that polled: the later, the lower
  std::vector<std::uint64_t> changes_;   // steps, in order
  std::size_t changed_ = 0;
  std::map<ActorName, std::uint64_t> priorities_;
};

class Replay final : public Policy {
 public:
  explicit Replay(const std::vector<Switch>& switches) {
    for (const Switch& each : switches) next_[{each.actor, each.own_step}] = each.next;
  }
  std::size_t choose(const Moment& moment) override {
    if (next_.empty()) return moment.fallback;
    const auto at = next_.find({to_text(*moment.current), moment.own_step});
    if (at == next_.end()) return moment.fallback;
    for (std::size_t i = 0; i < moment.able.size(); ++i)
      if (to_text(*moment.able[i]) == at->second) return i;
    return moment.fallback;
  }

 private:
  std::map<std::pair<std::string, std::uint32_t>, std::string> next_;
};

constexpr const char* arrow = " -> ";

}  // namespace

std::string to_text(const ActorName& name) {
  return str("rank ", name.rank, name.thread.empty() ? "" : " ", name.thread);
}

std::string to_text(const Switch& change) { return str(change.actor, " #", change.own_step, arrow, change.next); }

Switch switch_from_text(const std::string& text) {
  const std::size_t hash = text.rfind(" #"), to = text.find(arrow);
  if (hash != std::string::npos && to != std::string::npos && hash < to && text.starts_with("rank ")) {
    Switch change{text.substr(0, hash), 0, text.substr(to + 4)};
    const char *begin = text.data() + hash + 2, *end = text.data() + to;
    const auto [stop, error] = std::from_chars(begin, end, change.own_step);
    if (error == std::errc() && stop == end && change.next.starts_with("rank ")) return change;
  }
  throw Error(str("`", text, "` is no switch of a schedule"), "write `rank 0 #12 -> rank 1 sim/compute`");
}

std::unique_ptr<Policy> random_policy(std::uint64_t seed) { return std::make_unique<Random>(seed); }
std::unique_ptr<Policy> pct_policy(int depth, std::uint64_t seed, std::uint64_t steps) {
  return std::make_unique<Pct>(depth, seed, steps);
}
std::unique_ptr<Policy> replay_policy(const std::vector<Switch>& switches) {
  return std::make_unique<Replay>(switches);
}

}  // namespace lockstep::schedule
