// expect_across. At the end of the case all ranks exchange once which of these checks they reached, with the hashes of
// the values. Each rank derives the same judgement from these reports. Where values differ that must be the same, a
// second exchange sends their contents, so that the message can name the elements.
#include <algorithm>
#include <map>
#include <set>

#include "engine/core/fnv.hpp"
#include "harness/run/checks/checks.hpp"
#include "harness/run/checks/host_values.hpp"

namespace lockstep::run {

namespace {

constexpr std::size_t max_content_bytes = 256 * 1024;  // of one value, in the second exchange

// The report of one rank on one check.
struct Report {
  std::vector<std::string> hashes;  // one per value
  bool same = true;                 // the check requires the same values on all members
  bool trivial = false;             // all values are zero or empty
  bool nan = false;
};
using Reports = std::vector<std::map<std::string, Report>>;  // by rank, then by the key of the check

// The values of this rank as bytes, by the key of the check.
using Wires = std::map<std::string, std::vector<std::string>>;

// The first difference between the values of a check: the index of the value, and the member whose value is not that of
// member 0.
struct FirstDifference {
  std::size_t value = 0;
  int member = 0;
};
using Differences = std::map<std::string, FirstDifference>;        // by the key of the check
using Contents = std::vector<std::map<std::string, std::string>>;  // of differing values: by rank, then by key

std::string hash_of(const std::string& bytes) {
  // A second hash with different mixing makes 128 bits.
  std::uint64_t second = 0x9e3779b97f4a7c15ull;
  for (const char byte : bytes) {
    second = (second + static_cast<unsigned char>(byte)) * 0xd6e8feb86659fd93ull;
    second ^= second >> 32;
  }
  return str(fnv1a(bytes), "-", second);
}

// ---- messages between ranks: fields with their sizes in front ----
void append_field(std::string& out, const std::string& field) { out += str(field.size(), ":", field); }

class FieldReader {
 public:
  explicit FieldReader(const std::string& text) : text_(text) {}
  bool more() const { return at_ < text_.size(); }
  std::string next() {
    const std::size_t colon = text_.find(':', at_);
    LOCKSTEP_CHECK(colon != std::string::npos, "a malformed message between checks");
    const std::size_t size = std::stoull(text_.substr(at_, colon - at_));
    at_ = colon + 1 + size;
    LOCKSTEP_CHECK(at_ <= text_.size(), "a malformed message between checks");
    return text_.substr(colon + 1, size);
  }

 private:
  const std::string& text_;
  std::size_t at_ = 0;
};

void append_report(std::string& out, const std::string& key, const Report& report) {
  append_field(out, key);
  append_field(out, str(report.same ? 1 : 0, report.trivial ? 1 : 0, report.nan ? 1 : 0));
  append_field(out, str(report.hashes.size()));
  for (const std::string& hash : report.hashes) append_field(out, hash);
}

std::map<std::string, Report> parse_reports(const std::string& text) {
  std::map<std::string, Report> reports;
  for (FieldReader reader(text); reader.more();) {
    const std::string key = reader.next();
    Report report;
    const std::string flags = reader.next();
    report.same = flags[0] == '1';
    report.trivial = flags[1] == '1';
    report.nan = flags[2] == '1';
    for (std::size_t left = std::stoull(reader.next()); left > 0; --left) report.hashes.push_back(reader.next());
    reports[key] = std::move(report);
  }
  return reports;
}

std::vector<int> members_of(const std::string& key) {
  std::vector<int> members;
  for (std::size_t at = key.rfind('|') + 1; at < key.size();) {
    const std::size_t comma = std::min(key.find(',', at), key.size());
    members.push_back(std::stoi(key.substr(at, comma - at)));
    at = comma + 1;
  }
  return members;
}

// Null: the rank did not reach the check.
const Report* report_of(const Reports& reports, int rank, const std::string& key) {
  const auto& own = reports[static_cast<std::size_t>(rank)];
  const auto at = own.find(key);
  return at == own.end() ? nullptr : &at->second;
}

// ---- values that must be the same ----
// A member with more or fewer values differs at least in the first one that only one of the two has. Nothing for a
// check that some member did not reach.
std::optional<FirstDifference> first_difference(const Reports& reports, const std::string& key,
                                                const std::vector<int>& members) {
  const Report* first = report_of(reports, members[0], key);
  for (std::size_t m = 1; first && m < members.size(); ++m) {
    const Report* other = report_of(reports, members[m], key);
    if (!other || !first->same || !other->same) return std::nullopt;
    const auto [at, there] =
        std::mismatch(first->hashes.begin(), first->hashes.end(), other->hashes.begin(), other->hashes.end());
    if (at != first->hashes.end() || there != other->hashes.end())
      return FirstDifference{static_cast<std::size_t>(at - first->hashes.begin()), members[m]};
  }
  return std::nullopt;
}

// The same on all ranks.
Differences differences_in(const Reports& reports) {
  std::set<std::string> keys;
  for (const auto& own : reports)
    for (const auto& [key, report] : own) keys.insert(key);
  Differences differences;
  for (const std::string& key : keys)
    if (const auto found = first_difference(reports, key, members_of(key))) differences[key] = *found;
  return differences;
}

// Collective. The two members of each difference send the contents of their values.
Contents exchange_contents(int rank, const Differences& differences, const Wires& wires) {
  std::string mine;
  for (const auto& [key, found] : differences) {
    if (rank != found.member && rank != members_of(key)[0]) continue;
    const auto own = wires.find(key);
    if (own == wires.end() || own->second.size() <= found.value) continue;
    append_field(mine, key);
    append_field(mine, own->second[found.value].substr(0, max_content_bytes));
  }
  const std::vector<std::string> texts = comm::exchange(comm::world_group(), mine, "values that differ across ranks");
  Contents contents(texts.size());
  for (std::size_t r = 0; r < texts.size(); ++r)
    for (FieldReader reader(texts[r]); reader.more();) {
      const std::string key = reader.next();
      contents[r][key] = reader.next();
    }
  return contents;
}

// A value in the form of to_wire, for a message: the type and sizes of a tensor; otherwise its text, behind its kind if
// the other value is of another kind.
std::string describe_wire(const std::string& wire, bool other_kind) {
  const std::size_t colon = wire.find(':');
  const std::string kind = wire.substr(0, colon), text = wire.substr(colon + 1, 80);
  if (kind.starts_with(tensor_on_wire)) return kind;
  return other_kind && kind != text ? str(kind, " ", text) : text;
}

// Describes how the contents of two ranks, in the form of to_wire, differ. `snapshot` is this rank's, for type and
// sizes.
std::string describe_difference(const Snapshot& snapshot, int rank_of_a, const std::string& a, int rank_of_b,
                                const std::string& b) {
  const std::size_t header = a.find(':');
  const bool other_kind = a.substr(0, header) != b.substr(0, b.find(':'));
  if (!snapshot.copy.defined() || other_kind)
    return str(describe_wire(a, other_kind), " and ", describe_wire(b, other_kind));
  const std::size_t width = size_of(snapshot.copy.dtype());
  const std::int64_t count = static_cast<std::int64_t>((std::min(a.size(), b.size()) - header - 1) / width);
  const bool complete = count == snapshot.copy.num_elements();
  const Dims sizes = complete ? snapshot.copy.sizes() : Dims{count};
  verdict::CompareOptions options;
  options.bits = true;
  const std::string before_a = str("rank ", rank_of_a, " has "), before_b = str("rank ", rank_of_b, " has ");
  options.before_actual = before_a;
  options.before_expected = before_b;
  const verdict::Comparison comparison =
      verdict::compare({snapshot.copy.dtype(), sizes, a.data() + header + 1, nullptr, 0},
                       {snapshot.copy.dtype(), sizes, b.data() + header + 1, nullptr, 0}, options);
  if (comparison.equal) return str("they differ past element ", count);
  return complete ? comparison.message : str("of the first ", count, " elements: ", comparison.message);
}

// ---- values that must differ ----
// The first two members with the same values.
std::optional<std::pair<int, int>> first_equal_members(const Reports& reports, const std::string& key,
                                                       const std::vector<int>& members) {
  for (std::size_t i = 0; i < members.size(); ++i)
    for (std::size_t k = i + 1; k < members.size(); ++k)
      if (report_of(reports, members[i], key)->hashes == report_of(reports, members[k], key)->hashes)
        return std::pair(members[i], members[k]);
  return std::nullopt;
}

// ---- judging one check: the failure, or empty when the check holds ----
std::string failure_of_same(const AcrossCheck& check, const Differences& differences, const Contents& contents) {
  const auto found = differences.find(check.key);
  if (found == differences.end()) return {};
  const auto [index, other] = found->second;
  const int first = check.members[0];
  const auto content_of = [&](int rank) {
    const auto& own = contents[static_cast<std::size_t>(rank)];
    const auto at = own.find(check.key);
    return at == own.end() ? std::string() : at->second;
  };
  const std::string a = content_of(first), b = content_of(other);
  const bool both_have_it = index < check.values.size() && !a.empty() && !b.empty();
  return str(both_have_it ? check.values[index].label : check.label, " of rank ", first, " and of rank ", other,
             " differ: ",
             both_have_it ? describe_difference(check.values[index], first, a, other, b) : "another number of values");
}

std::string failure_of_different(const AcrossCheck& check, const Reports& reports) {
  const auto pair = first_equal_members(reports, check.key, check.members);
  if (!pair) return {};
  return str(check.label, " of ranks ", pair->first, " and ", pair->second,
             " is the same, though no two ranks may agree");
}

std::string failure_of(const AcrossCheck& check, const Reports& reports, const Differences& differences,
                       const Contents& contents) {
  bool nan = false;
  for (int member : check.members) {
    const Report* report = report_of(reports, member, check.key);
    if (!report) return str(check.label, ": rank ", member, " of the mesh did not reach this check");
    nan = nan || report->nan;
  }
  for (int member : check.members)
    if (report_of(reports, member, check.key)->same != check.same)
      return str(check.label, ": rank ", member, " and this rank disagree on `same`");
  if (nan) return str(check.label, ": there is a not-a-number among the values");
  return check.same ? failure_of_same(check, differences, contents) : failure_of_different(check, reports);
}

// Counts a check that holds.
void count_evidence(const AcrossCheck& check, const Reports& reports, verdict::Evidence& evidence) {
  const bool trivial = std::all_of(check.members.begin(), check.members.end(),
                                   [&](int member) { return report_of(reports, member, check.key)->trivial; });
  if (trivial || check.members.size() < 2) {
    evidence.trivial += 1;
    return;
  }
  evidence.comparisons += 1;
  for (const Snapshot& value : check.values)
    if (!value.is_structure) evidence.elements += value.copy.defined() ? value.copy.num_elements() : 1;
  if (!check.same) return;
  evidence.same_bits += 1;
  evidence.bits_required += 1;
}

}  // namespace

void Checks::add_across(Site site, const std::string& label, const Value& value, std::vector<int> members, bool same) {
  AcrossCheck check{std::move(site), {}, label, std::move(members), same, {}};
  take_snapshots(label, value, true, check.values);
  std::string group;
  for (int member : check.members) group += str(group.empty() ? "" : ",", member);
  const std::string place = str(check.site.file, ":", check.site.line, ":", check.site.column, "|", group);
  check.key =
      str(check.site.file, ":", check.site.line, ":", check.site.column, "#", num_repetitions_[place]++, "|", group);
  across_.push_back(std::move(check));
}

void Checks::fail_across(const std::string& why, const Fail& fail) {
  for (const AcrossCheck& check : across_) fail(check.site, str("ranks could not be compared: ", why));
  across_.clear();
}

void Checks::judge_across(int rank, int world_size, verdict::Evidence& evidence, const Fail& fail) {
  std::string mine;
  Wires wires;
  for (const AcrossCheck& check : across_) {
    Report report{{}, check.same, true, false};
    std::vector<std::string>& wire = wires[check.key];
    for (const Snapshot& snapshot : check.values) {
      report.trivial = report.trivial && (snapshot.is_structure || is_zero_or_empty(snapshot));
      report.nan = report.nan || has_nan(snapshot);
      wire.push_back(to_wire(snapshot));
      report.hashes.push_back(hash_of(wire.back()));
    }
    append_report(mine, check.key, report);
  }
  Reports reports;
  for (const std::string& text : comm::exchange(comm::world_group(), mine, "checks across ranks"))
    reports.push_back(parse_reports(text));
  LOCKSTEP_CHECK(static_cast<int>(reports.size()) == world_size, "ranks that reported: ", reports.size());

  const Differences differences = differences_in(reports);
  const Contents contents = differences.empty() ? Contents() : exchange_contents(rank, differences, wires);
  for (const AcrossCheck& check : across_) {
    std::string failure = failure_of(check, reports, differences, contents);
    if (failure.empty())
      count_evidence(check, reports, evidence);
    else
      fail(check.site, std::move(failure));
  }
  across_.clear();
}

}  // namespace lockstep::run
