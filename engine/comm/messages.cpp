#include "engine/comm/messages.hpp"

#include <utility>

#include "engine/comm/fingerprint.hpp"
#include "engine/core/text.hpp"

namespace lockstep::comm {

namespace {

const Record* last_record(const RankControl& rank) {
  const std::uint64_t count = rank.num_records.load(std::memory_order_acquire);
  return count == 0 ? nullptr : &rank.records[(count - 1) % recorder_entries];
}

std::string seconds_text(std::int64_t ns) {
  const std::int64_t tenths = (ns + 50'000'000) / 100'000'000;
  return tenths % 10 == 0 ? str(tenths / 10, " s") : str(tenths / 10, ".", tenths % 10, " s");
}

// "rank 2", "ranks 0, 1".
std::string name_ranks(const std::vector<int>& ranks) {
  const std::string list = ranks_text(ranks);
  return str(ranks.size() == 1 ? "rank " : "ranks ", list.substr(1, list.size() - 2));
}

// Members that say the same are named together, in group order.
class Sayings {
 public:
  void add(int rank, const std::string& what) {
    for (auto& [text, ranks] : sayings_) {
      if (text != what) continue;
      ranks.push_back(rank);
      return;
    }
    sayings_.emplace_back(what, std::vector<int>{rank});
  }
  std::string text(const char* verb) const { return text(verb, verb); }
  // `verb_of_one` where a single rank does it.
  std::string text(const char* verb, const char* verb_of_one) const {
    std::string out;
    for (const auto& [what, ranks] : sayings_)
      out += str(out.empty() ? "" : "; ", name_ranks(ranks), ranks.size() == 1 ? verb_of_one : verb, what);
    return out;
  }
  bool empty() const { return sayings_.empty(); }
  std::size_t size() const { return sayings_.size(); }

 private:
  std::vector<std::pair<std::string, std::vector<int>>> sayings_;
};

std::string head(const Issued& issued) {
  const Record& record = issued.record();
  const char* axis = record.axis;
  return str(issued.fingerprint.kind == exchange_kind ? std::string_view("exchange")
                                                      : name_of(static_cast<Operation>(record.kind)),
             " #", issued.sequence, " of group ", group_text(*issued.group),
             axis[0] == '\0' ? "" : str(" (axis ", axis, ")"));
}

// The terms on which members differ: "the number of elements, the device (rank 0: cpu; rank 1: sim)". A difference of
// operation stands alone, as everything else differs with it.
std::string differences(const Issued& issued) {
  const Line* lines = issued.slot().lines();
  const Fingerprint& first = lines[0].fingerprint;
  std::string what;
  const auto name = [&](const std::string& property) { what += str(what.empty() ? "" : ", ", property); };
  const auto differs = [&](auto Fingerprint::*field) {
    for (int member = 1; member < issued.group->size; ++member)
      if (lines[member].fingerprint.*field != first.*field) return true;
    return false;
  };
  if (differs(&Fingerprint::kind)) return "the operation";
  const bool count = differs(&Fingerprint::count) && first.kind != exchange_kind;
  if (count) name("the number of elements");
  if (differs(&Fingerprint::dtype)) name("the type");
  if (differs(&Fingerprint::op)) name("the reduction");
  if (differs(&Fingerprint::root)) name("the root");
  for (const Term term : all_terms) {
    if (term == Term::shape && count) continue;
    Sayings values;
    for (int member = 0; member < issued.group->size; ++member)
      values.add(issued.group->members()[member], value_of(term, issued.record_of(member)));
    if (values.size() > 1) name(str(name_of(term), " (", values.text(": "), ")"));
  }
  if (agreements_differ(issued)) name("the module it is for, or its contents");
  // Texts that were too long for the recorder and differ beyond its end.
  return what.empty() ? "the place in the program" : what;
}

}  // namespace

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

std::string group_text(const GroupControl& group) {
  if (group.channel != 0) return str("[", group.members()[0], " -> ", group.members()[1], "]");
  return ranks_text(std::vector<int>(group.members(), group.members() + group.size));
}

std::string call_text(const WorldControl& world, const Record& record) {
  std::string out;
  if (record.kind == exchange_kind) {
    out = str("exchange of ", record.bytes, " bytes");
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

bool agreements_differ(const Issued& issued) {
  for (int member = 1; member < issued.group->size; ++member)
    if (issued.record_of(member).agreement != issued.record_of(0).agreement) return true;
  return false;
}

std::string mismatch_text(const Issued& issued) {
  const WorldControl& world = *issued.rank->world;
  Sayings calls, agreements;
  for (int member = 0; member < issued.group->size; ++member)
    calls.add(issued.group->members()[member], call_text(world, issued.record_of(member)));
  std::string text =
      str(head(issued), ": its members do not agree on ", differences(issued), ": ", calls.text(" call ", " calls "));
  if (agreements_differ(issued)) {
    for (int member = 0; member < issued.group->size; ++member) {
      const int rank = issued.group->members()[member];
      if (!has_told(issued, member)) continue;
      if (const char* told = world.rank(rank).agreement_text; told[0] != '\0') agreements.add(rank, told);
    }
    if (!agreements.empty()) text += str(". ", agreements.text(": "));
  }
  return text + ". No data was moved";
}

std::string deadline_text(const Issued& issued, Waiting for_what, std::int64_t deadline_ns) {
  const WorldControl& world = *issued.rank->world;
  std::vector<int> missing;
  Sayings waiting, last;
  const std::int64_t now = now_ns();
  for (int member = 0; member < issued.group->size; ++member) {
    const int rank = issued.group->members()[member];
    if (issued.has_arrived(member)) {
      waiting.add(rank, call_text(world, issued.record_of(member)));
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
  if (for_what == Waiting::slot)
    return str(head(issued), ": more than ", ring_slots,
               " collectives of this group are under way, and some rank did not finish the oldest", in,
               "; what the ranks called last: ", last.text(" "));
  if (missing.empty())
    return str(head(issued), ": all arrived, but the data was not moved", in, ": ", waiting.text(" call ", " calls "));
  return str(head(issued), ": ", name_ranks(missing), " did not arrive", in, ". Waiting: ", waiting.text(" in "),
             ". Called last: ", last.text(" "));
}

std::string left_out_text(const Issued& issued, int member) {
  const std::string what = issued.agreement_text ? str(" (", issued.agreement_text(), ")") : "";
  return str(head(issued), ": rank ", issued.group->members()[member],
             " has ended its backward without this call. Rank ", issued.rank->rank, " waits in ",
             call_text(*issued.rank->world, issued.record()), what);
}

std::string ended_text(const Issued& issued, int member) {
  const WorldControl& world = *issued.rank->world;
  const int rank = issued.group->members()[member];
  const RankControl& control = world.rank(rank);
  const RankEnd end = control.end.load();
  const std::string why = control.why.read();
  const Record* record = last_record(control);
  std::string text = str(head(issued), ": rank ", rank);
  if (end == RankEnd::ended) text += " has finished its steps without this call";
  if (end == RankEnd::failed) text += " failed";
  if (end == RankEnd::died) text += " died";
  if (!why.empty()) text += str(": ", why);
  text += str(". Rank ", issued.rank->rank, " waits in ", call_text(world, issued.record()));
  text += record == nullptr ? str("; rank ", rank, " called no collective")
                            : str("; rank ", rank, " called last: ", call_text(world, *record));
  return text;
}

}  // namespace lockstep::comm
