// Explains a flight recording: the ranks that ended, the collective on which ranks diverged, and the ranks that wait.
#include <algorithm>
#include <map>
#include <utility>

#include "engine/comm/messages.hpp"
#include "engine/comm/recorder.hpp"
#include "engine/core/text.hpp"

namespace lockstep::comm {

namespace {

// "Rank 2", "Ranks 0, 1".
std::string capitalized_ranks_text(const std::vector<int>& ranks) {
  std::string text = named_ranks_text(ranks);
  text[0] = 'R';
  return text;
}

bool is_pending(const RecordedCollective& call) { return call.state != CollectiveState::done; }

std::string recorded_call_text(const RecordedCollective& call) {
  std::string out = call.operation;
  if (call.operation == "exchange")
    out += str(" of ", call.bytes, " bytes");
  else if (call.operation != "barrier")
    out += str(" of ", call.bytes, " bytes of ", call.dtype);
  if (!call.owner.empty()) out += str(" for ", call.owner);
  if (call.scenario_line > 0) out += str(" at line ", call.scenario_line);
  out += str(" (#", call.sequence, " of group ", ranks_text(call.members),
             call.axis.empty() ? "" : str(", axis ", call.axis), ")");
  return out;
}

// The properties of a call that must agree between its members.
std::string signature(const RecordedCollective& call) {
  if (call.operation == "exchange" || call.operation == "barrier") return call.operation;
  if (call.operation == "send" || call.operation == "receive")
    return str("transfer of ", call.bytes, " bytes of ", call.dtype);
  // The root's bytes are those of all members.
  if (call.operation == "gather" || call.operation == "scatter") return str(call.operation, " of ", call.dtype);
  return str(call.operation, " of ", call.bytes, " bytes of ", call.dtype);
}

// The recorded calls of one collective, by rank.
using Calls = std::map<int, const RecordedCollective*>;

struct Recording {
  explicit Recording(const std::vector<RankHistory>& all) {
    for (const RankHistory& story : all) {
      stories[story.rank] = &story;
      for (const RecordedCollective& call : story.collectives)
        collectives[{call.group_id, call.sequence}][story.rank] = &call;
    }
  }
  std::map<int, const RankHistory*> stories;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Calls> collectives;  // by group and sequence number
};

std::string explain_ends(const std::vector<RankHistory>& stories) {
  std::string out;
  std::vector<int> succeeded;
  for (const RankHistory& story : stories) {
    if (!story.ended) continue;
    if (!story.failed && !story.died) {
      succeeded.push_back(story.rank);
      continue;
    }
    out +=
        str("Rank ", story.rank, story.died ? " died" : " failed", story.why.empty() ? "" : str(": ", story.why), ".");
    out += story.collectives.empty() ? str(" It had called no collective.\n")
                                     : str(" It last called ", recorded_call_text(story.collectives.back()), ".\n");
  }
  if (!succeeded.empty()) out += str(capitalized_ranks_text(succeeded), " finished all steps.\n");
  return out;
}

// The collectives for which ranks issued different calls, the earliest first.
std::vector<const Calls*> find_divergences(const Recording& recording) {
  std::multimap<std::int64_t, const Calls*> by_time;
  for (const auto& [id, calls] : recording.collectives) {
    const std::string first = signature(*calls.begin()->second);
    std::int64_t issued_ns = 0;
    bool differs = false;
    for (const auto& [rank, call] : calls) {
      differs |= signature(*call) != first;
      issued_ns = std::max(issued_ns, call->issued_ns);
    }
    if (differs) by_time.emplace(issued_ns, &calls);
  }
  std::vector<const Calls*> found;
  for (const auto& [ns, calls] : by_time) found.push_back(calls);
  return found;
}

std::string explain_divergence(const Calls& calls, bool is_first) {
  std::map<std::string, std::vector<int>> ranks_by_call;
  for (const auto& [rank, call] : calls) ranks_by_call[recorded_call_text(*call)].push_back(rank);
  std::string list;
  for (const auto& [text, ranks] : ranks_by_call)
    list += str(list.empty() ? "" : "; ", named_ranks_text(ranks), " called ", text);
  return str(is_first ? "The ranks diverged here: " : "Later they diverged here, too: ", list, ".\n");
}

// The last call of a rank that others wait for.
std::string explain_missing_rank(const RankHistory& story) {
  const std::string rank = str(" Rank ", story.rank);
  if (story.collectives.empty()) return str(rank, " has called no collective.");
  const RecordedCollective& last = story.collectives.back();
  if (is_pending(last)) return str(rank, " is itself in ", recorded_call_text(last), ".");
  return str(rank, " last finished ", recorded_call_text(last),
             story.ended ? "." : " and has called no collective since.");
}

// Whether the call failed and the rank did more after it, such as a step that expects the error. A rank that was killed
// had gone on, too: a call that it was killed in has not failed.
bool went_on(const Recording& recording, int rank, const RecordedCollective& call) {
  if (call.state != CollectiveState::failed) return false;
  const RankHistory& story = *recording.stories.at(rank);
  return &call != &story.collectives.back() || (story.ended && !story.failed);
}

// Whether the rank has called the collective with these recorded calls. Its own recording may not reach back so far.
bool has_called(const Calls& calls, int rank) {
  return calls.contains(rank) || std::any_of(calls.begin(), calls.end(), [rank](const auto& each) {
           const std::vector<int>& arrived = each.second->arrived;
           return std::find(arrived.begin(), arrived.end(), rank) != arrived.end();
         });
}

// The ranks in a pending collective, and the members that have not called it. "" if it is not pending.
std::string explain_waits(const Recording& recording, const Calls& calls) {
  std::vector<int> waiting, missing;
  const RecordedCollective* sample = nullptr;
  for (const auto& [rank, call] : calls) {
    if (!is_pending(*call) || went_on(recording, rank, *call)) continue;
    waiting.push_back(rank);
    if (sample == nullptr) sample = call;
  }
  if (sample == nullptr) return "";
  for (const int member : sample->members)
    if (!has_called(calls, member)) missing.push_back(member);
  const std::string ranks = capitalized_ranks_text(waiting);
  const bool one = waiting.size() == 1;
  if (missing.empty())
    return str(ranks, one ? " has" : " have", " called but not finished ", recorded_call_text(*sample),
               "; every member had called it.\n");
  std::string out = str(ranks, one ? " waits" : " wait", " in ", recorded_call_text(*sample), " for ",
                        named_ranks_text(missing), ".");
  for (const int rank : missing) {
    const auto found = recording.stories.find(rank);
    if (found == recording.stories.end()) continue;
    const RankHistory& story = *found->second;
    if (story.ended && (story.failed || story.died)) continue;  // explain_ends() has described it
    out += explain_missing_rank(story);
  }
  return out + "\n";
}

}  // namespace

std::string last_call_text(const RankHistory& story) {
  if (story.collectives.empty()) return "before any collective";
  const RecordedCollective& last = story.collectives.back();
  const bool has_gone_on = last.state == CollectiveState::failed && story.ended && !story.failed;
  return str(is_pending(last) && !has_gone_on ? "in " : "after ", recorded_call_text(last));
}

std::string explain(const std::vector<RankHistory>& stories) {
  if (stories.empty()) return "The recording holds no rank.\n";
  const Recording recording(stories);
  std::string out = explain_ends(stories);
  const std::vector<const Calls*> diverged = find_divergences(recording);
  for (const Calls* calls : diverged) out += explain_divergence(*calls, calls == diverged.front());
  for (const auto& [id, calls] : recording.collectives)
    if (std::find(diverged.begin(), diverged.end(), &calls) == diverged.end()) out += explain_waits(recording, calls);
  if (!out.empty()) return out;
  std::size_t total = 0;
  for (const RankHistory& story : stories) total += story.collectives.size();
  return str("No rank failed or waits; ", total, " collectives were recorded, all finished.\n");
}

}  // namespace lockstep::comm
