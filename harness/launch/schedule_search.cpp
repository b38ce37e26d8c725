#include "harness/launch/schedule_search.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/core/error.hpp"

namespace lockstep::launch {

namespace {

using Kind = ScheduleRequest::Kind;
using schedule::Switch;

constexpr const char* forms =
    "write random:SEED, pct:DEPTH,SEED, exhaustive:N, or replay:FILE with a file that a failed run has written";

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(str("--schedule ", text, ": ", why), forms);
}

std::uint64_t number_from(const std::string& whole, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty())
    refuse(whole, str("`", std::string(text), "` is no number from 0"));
  return value;
}

// The switches that may follow the last one of a run, by which it was `switches`.
std::vector<Switch> moves_after(const schedule::Record& record, const std::vector<Switch>& switches) {
  std::vector<Switch> moves;
  bool is_after = switches.empty();
  for (std::uint64_t i = 0; i < record.num_kept; ++i) {
    const schedule::Record::Decision& one = record.decisions[i];
    if (!is_after) {
      is_after = one.own_step == switches.back().own_step && record.name(one.actor) == switches.back().actor;
      continue;
    }
    for (std::size_t actor = 0; actor < record.num_actors; ++actor)
      if (actor != one.fallback && one.can_run(actor))
        moves.push_back({record.name(one.actor), one.own_step, record.name(actor)});
  }
  return moves;
}

}  // namespace

ScheduleRequest request_from_text(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon), rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  ScheduleRequest request;
  if (kind == "random") {
    request.kind = Kind::random;
    request.seed = number_from(text, rest);
  } else if (kind == "pct") {
    request.kind = Kind::pct;
    const std::size_t comma = rest.find(',');
    if (comma == std::string::npos) refuse(text, "pct has a depth and a seed");
    const std::uint64_t depth = number_from(text, std::string_view(rest).substr(0, comma));
    if (depth < 1 || depth > 1000) refuse(text, "the depth is 1 to 1000");
    request.depth = static_cast<int>(depth);
    request.seed = number_from(text, std::string_view(rest).substr(comma + 1));
  } else if (kind == "exhaustive") {
    request.kind = Kind::exhaustive;
    const std::uint64_t bound = number_from(text, rest);
    if (bound < 1 || bound > 1'000'000) refuse(text, "the number of schedules is 1 to 1000000");
    request.bound = static_cast<std::int64_t>(bound);
  } else if (kind == "replay" || text.find_first_of("/.") != std::string::npos) {
    request.kind = Kind::replay;
    request.file = kind == "replay" ? rest : text;
    if (request.file.empty()) refuse(text, "the file has no name");
  } else {
    refuse(text, "there is no such policy");
  }
  return request;
}

// ---- search

ScheduleSearch::ScheduleSearch(ScheduleRequest request, std::int64_t count)
    : request_(std::move(request)), count_(request_.kind == Kind::replay ? 1 : count) {}

std::optional<ScheduleSpec> ScheduleSearch::next() {
  if (request_.kind == Kind::exhaustive) return next_exhaustive();
  const bool needs_steps = request_.kind == Kind::pct;
  if (num_run_ == count_ + (needs_steps ? 1 : 0)) return {};
  last_ = {};
  const auto index = static_cast<std::uint64_t>(num_run_++);
  if (request_.kind == Kind::random) {
    last_.kind = SchedulePolicy::random;
    last_.seed = request_.seed + index;
  } else if (request_.kind == Kind::replay) {
    last_.switches = request_.switches;
  } else if (index > 0) {
    last_.kind = SchedulePolicy::pct;
    last_.seed = request_.seed + index - 1;
    last_.depth = request_.depth;
    last_.steps = steps_;
  }
  return last_;
}

std::optional<ScheduleSpec> ScheduleSearch::next_exhaustive() {
  if (num_run_ == request_.bound) return {};
  last_ = {};
  if (num_run_ > 0) {
    while (!frontier_.empty() && frontier_.front().next == frontier_.front().more.size()) frontier_.pop_front();
    if (frontier_.empty()) return {};
    Branch& branch = frontier_.front();
    last_.switches = branch.switches;
    last_.switches.push_back(branch.more[branch.next++]);
  }
  ++num_run_;
  return last_;
}

void ScheduleSearch::ran(const schedule::Record& record) {
  if (num_run_ == 1) steps_ = record.num_decisions;
  if (request_.kind != Kind::exhaustive) return;
  frontier_.push_back({last_.switches, moves_after(record, last_.switches), 0});
}

std::string ScheduleSearch::text() const {
  switch (last_.kind) {
    case SchedulePolicy::random:
      return str("random:", last_.seed);
    case SchedulePolicy::pct:
      return str("pct:", last_.depth, ",", last_.seed);
    case SchedulePolicy::replay:
      break;
  }
  if (last_.switches.empty()) return "no switches";
  std::string all;
  for (const Switch& each : last_.switches) all += str(all.empty() ? "" : ", ", to_text(each));
  return all;
}

// ---- shrinking

SwitchShrinker::SwitchShrinker(std::vector<Switch> failing, int max_runs)
    : switches_(std::move(failing)), max_runs_(max_runs) {}

std::optional<std::vector<Switch>> SwitchShrinker::candidate() {
  if (num_run_ == max_runs_ || switches_.empty()) return {};
  if (!tried_none_) {
    candidate_.clear();
  } else {
    if (part_ >= parts_) {  // every part is needed
      if (parts_ >= switches_.size()) return {};
      parts_ = std::min(2 * parts_, switches_.size());
      part_ = 0;
    }
    parts_ = std::min(parts_, switches_.size());
    const std::size_t begin = switches_.size() * part_ / parts_, end = switches_.size() * (part_ + 1) / parts_;
    candidate_ = switches_;
    candidate_.erase(candidate_.begin() + static_cast<std::ptrdiff_t>(begin),
                     candidate_.begin() + static_cast<std::ptrdiff_t>(end));
    ++part_;
    if (candidate_.empty()) return candidate();  // a single switch: the schedule without switches does not fail
  }
  ++num_run_;
  return candidate_;
}

void SwitchShrinker::judged(bool fails, const schedule::Record& record) {
  const bool was_first = !std::exchange(tried_none_, true);
  if (!fails) return;
  // Some switches of the candidate may have had no effect.
  std::vector<Switch> effective = record.switches();
  const bool is_complete = record.num_kept == record.num_decisions;
  switches_ = is_complete && effective.size() < candidate_.size() ? std::move(effective) : candidate_;
  if (was_first) return;
  parts_ = std::max<std::size_t>(parts_ - 1, 2);
  part_ = 0;  // parts that were needed beside the one left out may not be needed any more
}

}  // namespace lockstep::launch
