// The story of a recorder, told: who ended how, who waits for whom, where ranks parted.
#include <algorithm>
#include <map>
#include <utility>

#include "engine/comm/messages.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/core/text.hpp"

namespace lockstep::comm {

namespace {

std::string name_ranks(const std::vector<int>& ranks) {
  const std::string list = ranks_text(ranks);
  return str(ranks.size() == 1 ? "rank " : "ranks ", list.substr(1, list.size() - 2));
}

bool is_pending(const RecordedCollective& c) { return c.state != CollectiveState::done; }

std::string tell(const RecordedCollective& c) {
  std::string out = c.operation;
  if (c.operation == "exchange")
    out += str(" of ", c.bytes, " bytes");
  else if (c.operation != "barrier")
    out += str(" of ", c.bytes, " bytes of ", c.dtype);
  if (!c.owner.empty()) out += str(" for ", c.owner);
  if (c.scenario_line > 0) out += str(" at line ", c.scenario_line);
  out += str(" (#", c.sequence, " of group ", ranks_text(c.members), c.axis.empty() ? "" : str(", axis ", c.axis), ")");
  return out;
}

using Place = std::pair<std::uint64_t, std::uint64_t>;  // group, sequence

// How a call looks to its peers; what must agree.
std::string signature(const RecordedCollective& c) {
  if (c.operation == "exchange" || c.operation == "barrier") return c.operation;
  if (c.operation == "send" || c.operation == "receive") return str("transfer of ", c.bytes, " bytes of ", c.dtype);
  return str(c.operation, " of ", c.bytes, " bytes of ", c.dtype);
}

std::string list_sayings(const std::map<std::string, std::vector<int>>& sayings, const char* verb) {
  std::string out;
  for (const auto& [what, ranks] : sayings) out += str(out.empty() ? "" : "; ", name_ranks(ranks), verb, what);
  return out;
}

std::string tell_ends(const std::vector<RankStory>& stories) {
  std::string out;
  std::vector<int> fine;
  for (const RankStory& story : stories) {
    if (!story.ended) continue;
    if (!story.failed && !story.died) {
      fine.push_back(story.rank);
      continue;
    }
    out +=
        str("Rank ", story.rank, story.died ? " died" : " failed", story.why.empty() ? "" : str(": ", story.why), ".");
    out += story.collectives.empty() ? str(" It had called no collective.\n")
                                     : str(" It last called ", tell(story.collectives.back()), ".\n");
  }
  if (!fine.empty()) {
    std::string named = name_ranks(fine);
    named[0] = 'R';
    out += str(named, " finished all steps.\n");
  }
  return out;
}

// The ranks' calls at one place of one group.
struct Meet {
  std::map<int, const RecordedCollective*> calls;
};

}  // namespace

std::string last_words(const RankStory& story) {
  if (story.collectives.empty()) return "before any collective";
  const RecordedCollective& last = story.collectives.back();
  return str(is_pending(last) ? "in " : "after ", tell(last));
}

std::string explain(const std::vector<RankStory>& stories) {
  std::string out = tell_ends(stories);
  std::map<Place, Meet> meets;
  std::map<int, const RankStory*> by_rank;
  for (const RankStory& story : stories) {
    by_rank[story.rank] = &story;
    for (const RecordedCollective& c : story.collectives) meets[{c.group_id, c.sequence}].calls[story.rank] = &c;
  }

  // Where ranks parted: the earliest meeting at which they called different things.
  const Meet* parted = nullptr;
  std::int64_t parted_ns = 0;
  for (const auto& [place, meet] : meets) {
    std::string first;
    std::int64_t issued = 0;
    bool differs = false;
    for (const auto& [rank, call] : meet.calls) {
      const std::string signed_as = signature(*call);
      if (first.empty()) first = signed_as;
      differs |= signed_as != first;
      issued = std::max(issued, call->issued_ns);
    }
    if (differs && (parted == nullptr || issued < parted_ns)) {
      parted = &meet;
      parted_ns = issued;
    }
  }
  if (parted != nullptr) {
    std::map<std::string, std::vector<int>> sayings;
    for (const auto& [rank, call] : parted->calls) sayings[tell(*call)].push_back(rank);
    out += str("The ranks parted here: ", list_sayings(sayings, " called "), ".\n");
  }

  // Who waits for whom: members that have not called what others have not finished.
  for (const auto& [place, meet] : meets) {
    std::vector<int> waiting, missing;
    const RecordedCollective* sample = nullptr;
    for (const auto& [rank, call] : meet.calls) {
      if (!is_pending(*call)) continue;
      waiting.push_back(rank);
      if (sample == nullptr) sample = call;
    }
    if (sample == nullptr || &meet == parted) continue;
    for (int member : sample->members)
      if (meet.calls.find(member) == meet.calls.end()) missing.push_back(member);
    std::string verb = waiting.size() == 1 ? " waits" : " wait";
    std::string named = name_ranks(waiting);
    named[0] = 'R';
    if (missing.empty()) {
      out += str(named, waiting.size() == 1 ? " has" : " have", " called but not finished ", tell(*sample),
                 "; every member had called it.\n");
      continue;
    }
    out += str(named, verb, " in ", tell(*sample), " for ", name_ranks(missing), ".");
    for (int rank : missing) {
      const auto found = by_rank.find(rank);
      if (found == by_rank.end() || (found->second->ended && (found->second->failed || found->second->died))) continue;
      const RankStory& story = *found->second;
      const RecordedCollective* last = story.collectives.empty() ? nullptr : &story.collectives.back();
      out += str(" Rank ", rank);
      if (last == nullptr) {
        out += " has called no collective.";
      } else if (is_pending(*last)) {
        out += str(" is itself in ", tell(*last), ".");
      } else {
        out += str(" last finished ", tell(*last), story.ended ? "." : " and was elsewhere since.");
      }
    }
    out += "\n";
  }
  if (stories.empty()) return "The recording holds no rank.\n";
  if (out.empty()) {
    std::size_t total = 0;
    for (const RankStory& story : stories) total += story.collectives.size();
    out = str("No rank failed or waits; ", total, " collectives were recorded, all finished.\n");
  }
  return out;
}

}  // namespace lockstep::comm
