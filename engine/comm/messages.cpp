#include "engine/comm/messages.hpp"

#include <utility>

#include "engine/comm/fingerprint.hpp"
#include "engine/comm/wait_graph.hpp"
#include "engine/core/text.hpp"

namespace lockstep::comm {

namespace {

// Ranks grouped by a text that they share, in group order.
class RanksByText {
 public:
  void add(int rank, const std::string& text) {
    for (auto& [known, ranks] : entries_) {
      if (known != text) continue;
      ranks.push_back(rank);
      return;
    }
    entries_.emplace_back(text, std::vector<int>{rank});
  }
  // "rank 0: cpu; ranks 1, 2: sim" with `verb` ": ".
  std::string list(const char* verb) const { return list(verb, verb); }
  std::string list(const char* plural_verb, const char* singular_verb) const {
    std::string out;
    for (const auto& [text, ranks] : entries_)
      out +=
          str(out.empty() ? "" : "; ", named_ranks_text(ranks), ranks.size() == 1 ? singular_verb : plural_verb, text);
    return out;
  }
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }

 private:
  std::vector<std::pair<std::string, std::vector<int>>> entries_;
};

std::string head(const IssuedCollective& issued) {
  const Record& record = issued.record();
  const bool is_kept = issued.is_kept_in(record);
  const std::string axis = is_kept ? record.axis : "";
  const std::string_view operation =
      is_kept ? name_of_kind(record.kind) : old_operation(*issued.group, issued.me, issued.fingerprint);
  return str(operation, " #", issued.sequence, " of group ", group_text(*issued.group),
             axis.empty() ? "" : str(" (axis ", axis, ")"));
}

// The call of a member with this record and fingerprint.
std::string call_text_of(const IssuedCollective& issued, int member, const Record& record,
                         const Fingerprint& fingerprint) {
  if (issued.is_kept_in(record)) return call_text(*issued.rank->world, record);
  return old_call_text(old_operation(*issued.group, member, fingerprint));
}

std::string member_call_text(const IssuedCollective& issued, int member) {
  return call_text_of(issued, member, issued.record_of(member), issued.slot().entries()[member].fingerprint);
}

bool all_are_kept(const IssuedCollective& issued) {
  for (int member = 0; member < issued.group->size; ++member)
    if (!issued.is_kept_in(issued.record_of(member))) return false;
  return true;
}

// The properties that differ: "the number of elements, the device (rank 0: cpu; rank 1: sim)". If the operations
// differ, nothing else is listed, because all other properties differ with them.
std::string differences(const IssuedCollective& issued) {
  const MemberEntry* entries = issued.slot().entries();
  const Fingerprint& first = entries[0].fingerprint;
  std::string out;
  const auto name = [&](const std::string& property) { out += str(out.empty() ? "" : ", ", property); };
  const auto differs = [&](auto Fingerprint::*field) {
    for (int member = 1; member < issued.group->size; ++member)
      if (entries[member].fingerprint.*field != first.*field) return true;
    return false;
  };
  if (differs(&Fingerprint::kind)) return "the operation";
  const bool count = differs(&Fingerprint::count) && first.kind != exchange_kind;
  if (count) name("the number of elements");
  if (differs(&Fingerprint::dtype)) name("the type");
  if (differs(&Fingerprint::op)) name("the reduction");
  if (differs(&Fingerprint::root)) name("the root");
  if (!all_are_kept(issued)) return out.empty() ? "details that the flight recorder does not keep any more" : out;
  for (const Term term : all_terms) {
    if (term == Term::shape && count) continue;
    RanksByText values;
    for (int member = 0; member < issued.group->size; ++member)
      values.add(issued.group->members()[member], value_of(term, issued.record_of(member)));
    if (values.size() > 1) name(str(name_of(term), " (", values.list(": "), ")"));
  }
  if (contents_differ(issued)) name("the module it is for, or its contents");
  // Only truncated texts can differ without a visible difference.
  return out.empty() ? "a name that is cut here (of the mesh axis, the purpose or the place in the program)" : out;
}

}  // namespace

std::string seconds_text(std::int64_t ns) {
  const std::int64_t tenths = (ns + 50'000'000) / 100'000'000;
  return tenths % 10 == 0 ? str(tenths / 10, " s") : str(tenths / 10, ".", tenths % 10, " s");
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string out = "[";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (i > 0) out += ", ";
    if (end - i > 4) {
      out += str(ranks[i], "-", ranks[end - 1]);
    } else {
      end = i + 1;
      out += str(ranks[i]);
    }
    i = end;
  }
  return out + "]";
}

std::string named_ranks_text(const std::vector<int>& ranks) {
  const std::string list = ranks_text(ranks);
  return str(ranks.size() == 1 ? "rank " : "ranks ", list.substr(1, list.size() - 2));
}

std::string group_text(const GroupControl& group) {
  if (group.channel != 0) return str("[", group.members()[0], " -> ", group.members()[1], "]");
  return ranks_text(std::vector<int>(group.members(), group.members() + group.size));
}

std::string call_text(const WorldControl& world, const Record& record) {
  std::string out;
  if (record.kind == exchange_kind) {
    out = str("exchange of ", record.bytes, " bytes");
  } else if (record.kind == preparation_kind) {
    out = "preparation of collectives";
  } else {
    const auto kind = static_cast<Operation>(record.kind);
    out = name_of(kind);
    if (kind == Operation::all_reduce || kind == Operation::reduce_scatter)
      out += str("(", name_of(static_cast<ReduceOp>(record.op)), ")");
    if (kind != Operation::barrier)
      out += str(" of ", record.terms.num_dims == 1 ? str(record.elements) : shape_text(record.terms), " ",
                 name_of(static_cast<DType>(record.dtype)));
    if (has_dim(record) && record.terms.num_dims > 1) out += str(" along dim ", static_cast<int>(record.terms.dim));
    const GroupControl& group = world.group(record.group);
    if (kind == Operation::broadcast || kind == Operation::scatter) {
      const bool known = record.root >= 0 && record.root < group.size;
      out += str(" from rank ", known ? group.members()[record.root] : record.root);
    } else if (kind == Operation::gather) {
      const bool known = record.root >= 0 && record.root < group.size;
      out += str(" to rank ", known ? group.members()[record.root] : record.root);
    } else if (kind == Operation::send) {
      out += str(" to rank ", group.members()[1]);
    } else if (kind == Operation::receive) {
      out += str(" from rank ", group.members()[0]);
    }
  }
  if (record.owner[0] != '\0') out += str(" for ", static_cast<const char*>(record.owner));
  if (record.scenario_line > 0) out += str(" at line ", record.scenario_line);
  return out;
}

std::string_view old_operation(const GroupControl& group, int member, const Fingerprint& fingerprint) {
  const bool receives = group.channel != 0 && member == 1;
  return name_of_kind(receives ? static_cast<std::uint8_t>(Operation::receive) : fingerprint.kind);
}

std::string old_call_text(std::string_view operation) {
  return str(operation, " (no details: the flight recorder keeps the last ", recorder_entries,
             " calls of a rank, and this one is older)");
}

std::string own_call_text(const IssuedCollective& issued) {
  return call_text_of(issued, issued.me, issued.record(), issued.fingerprint);
}

bool contents_differ(const IssuedCollective& issued) {
  // Without the digests, texts tell whether the contents differ.
  if (!all_are_kept(issued)) return issued.content_text != nullptr;
  for (int member = 1; member < issued.group->size; ++member)
    if (issued.record_of(member).content_digest != issued.record_of(0).content_digest) return true;
  return false;
}

std::string mismatch_text(const IssuedCollective& issued) {
  const WorldControl& world = *issued.rank->world;
  RanksByText calls, contents;
  for (int member = 0; member < issued.group->size; ++member)
    calls.add(issued.group->members()[member], member_call_text(issued, member));
  std::string text =
      str(head(issued), ": its members do not agree on ", differences(issued), ": ", calls.list(" call ", " calls "));
  if (contents_differ(issued)) {
    for (int member = 0; member < issued.group->size; ++member) {
      const int rank = issued.group->members()[member];
      if (!has_published(issued, member)) continue;
      if (const char* text_of_rank = world.rank(rank).content_text; text_of_rank[0] != '\0')
        contents.add(rank, text_of_rank);
    }
    if (!contents.empty()) text += str(". ", contents.list(": "));
  }
  return text + ". No data was moved";
}

// The members whose streams have not come to the collective, if others have.
std::string late_streams_text(const IssuedCollective& issued) {
  if (issued.group->spans_hosts != 0) return "";  // the streams of other hosts are not known here
  std::vector<int> late;
  bool moves = false;
  for (int member = 0; member < issued.group->size; ++member) {
    const Record& record = issued.record_of(member);
    if (!issued.is_kept_in(record)) return "";
    const CollectiveState state = record.state.load(std::memory_order_acquire);
    moves |= state == CollectiveState::running || state == CollectiveState::done;
    if (state == CollectiveState::waiting) late.push_back(issued.group->members()[member]);
  }
  if (!moves || late.empty()) return "";
  return str(late.size() == 1 ? " The stream of " : " The streams of ", named_ranks_text(late),
             late.size() == 1 ? " has" : " have", " not come to it.");
}

std::string deadline_text(const IssuedCollective& issued, WaitReason reason, std::int64_t deadline_ns) {
  const WorldControl& world = *issued.rank->world;
  std::vector<int> missing;
  RanksByText waiting, last;
  const std::int64_t now = now_ns();
  for (int member = 0; member < issued.group->size; ++member) {
    const int rank = issued.group->members()[member];
    if (issued.has_arrived(member)) {
      waiting.add(rank, member_call_text(issued, member));
      continue;
    }
    missing.push_back(rank);
    const Record* record = last_record(world.rank(rank));
    last.add(rank, record == nullptr ? std::string("no collective at all")
                                     : str(call_text(world, *record), " (#", record->sequence, " of group ",
                                           group_text(world.group(record->group)), ", ",
                                           seconds_text(now - record->issued_ns), " ago)"));
  }
  const std::string in = str(" within ", seconds_text(deadline_ns));
  if (reason == WaitReason::slot)
    return str(head(issued), ": more than ", ring_slots,
               " collectives of this group are in progress, and some rank did not finish the oldest", in,
               ". Called last: ", last.list(" "));
  if (missing.empty())
    return str(head(issued), ": all arrived, but the data was not moved", in, ".", late_streams_text(issued), " Here ",
               waiting.list(" call ", " calls "));
  return str(head(issued), ": ", named_ranks_text(missing), " did not arrive", in, ". Waiting: ", waiting.list(" in "),
             ". Called last: ", last.list(" "));
}

std::string skipped_text(const IssuedCollective& issued, int member) {
  const std::string content = issued.content_text ? str(" (", issued.content_text(), ")") : "";
  return str(head(issued), ": rank ", issued.group->members()[member],
             " has ended its backward without this call. Rank ", issued.rank->rank, " waits in ", own_call_text(issued),
             content);
}

std::string ended_text(const IssuedCollective& issued, int member) {
  const WorldControl& world = *issued.rank->world;
  const int rank = issued.group->members()[member];
  const RankControl& control = world.rank(rank);
  const RankEnd end = control.end.load();
  const std::string why = control.end_reason.read();
  if (end == RankEnd::failed && names_deadlock_of(why, issued.rank->rank)) return why;
  const Record* record = last_record(control);
  std::string text = str(head(issued), ": rank ", rank);
  if (end == RankEnd::ended) text += " has finished its steps without this call";
  if (end == RankEnd::failed) text += " failed";
  if (end == RankEnd::died) text += " died";
  if (!why.empty()) text += str(": ", why);
  text += str(". Rank ", issued.rank->rank, " waits in ", own_call_text(issued));
  text += record == nullptr ? str("; rank ", rank, " called no collective")
                            : str("; rank ", rank, " called last: ", call_text(world, *record));
  return text;
}

}  // namespace lockstep::comm
