// expect_across: at the end of the case every rank tells all others, in one exchange, which of these checks it reached
// and the hashes of the values it held. From that alone each rank comes to the same judgement; a second exchange brings
// the contents where values differ that should not, so that the message can say which elements do.
#include <algorithm>
#include <map>
#include <set>

#include "harness/run/checks/checks.hpp"
#include "harness/run/checks/host_values.hpp"

namespace lockstep::run {

namespace {

constexpr std::size_t most_content = 256 * 1024;  // bytes of one value that are shown to the others

// What a rank says of one check.
struct Told {
  std::vector<std::string> hashes;  // one a value
  bool same = true;
  bool trivial = false;  // all zero or empty
  bool nan = false;
};

std::string hash_of(const std::string& bytes) {
  // Two hashes with different mixing: 128 bits together.
  std::uint64_t a = 0xcbf29ce484222325ull, b = 0x9e3779b97f4a7c15ull;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    a = (a ^ byte) * 0x100000001b3ull;
    b = (b + byte) * 0xd6e8feb86659fd93ull;
    b ^= b >> 32;
  }
  return str(a, "-", b);
}

void put(std::string& out, const std::string& field) { out += str(field.size(), ":", field); }

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}
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

std::map<std::string, Told> parse(const std::string& text) {
  std::map<std::string, Told> all;
  for (Reader reader(text); reader.more();) {
    const std::string key = reader.next();
    Told told;
    const std::string flags = reader.next();
    told.same = flags[0] == '1';
    told.trivial = flags[1] == '1';
    told.nan = flags[2] == '1';
    for (std::size_t left = std::stoull(reader.next()); left > 0; --left) told.hashes.push_back(reader.next());
    all[key] = std::move(told);
  }
  return all;
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

using All = std::vector<std::map<std::string, Told>>;  // by rank

const Told* told_by(const All& all, int rank, const std::string& key) {
  const auto& own = all[static_cast<std::size_t>(rank)];
  const auto at = own.find(key);
  return at == own.end() ? nullptr : &at->second;
}

// Of a check that wants the same everywhere: the first value, and the first member, that differs from member 0's. None:
// -1. Another number of values counts as the first value.
std::pair<int, int> first_difference(const All& all, const std::string& key, const std::vector<int>& members) {
  const Told* first = told_by(all, members[0], key);
  for (std::size_t m = 1; first && m < members.size(); ++m) {
    const Told* other = told_by(all, members[m], key);
    if (!other || !first->same || !other->same) return {-1, -1};
    if (other->hashes.size() != first->hashes.size()) return {0, members[m]};
    for (std::size_t i = 0; i < first->hashes.size(); ++i)
      if (first->hashes[i] != other->hashes[i]) return {static_cast<int>(i), members[m]};
  }
  return {-1, -1};
}

// What differs between two contents of the wire form of `snapshot`.
std::string difference(const Snapshot& snapshot, const std::string& a, const std::string& b) {
  const std::size_t header = a.find(':');
  if (!snapshot.copy.defined() || a.substr(0, header) != b.substr(0, b.find(':')))
    return str(a.substr(0, std::min<std::size_t>(snapshot.copy.defined() ? header : a.size(), 80)), " and ",
               b.substr(0, std::min<std::size_t>(snapshot.copy.defined() ? b.find(':') : b.size(), 80)));
  const std::size_t width = size_of(snapshot.copy.dtype());
  const std::int64_t count = static_cast<std::int64_t>((std::min(a.size(), b.size()) - header - 1) / width);
  const bool whole = count == snapshot.copy.num_elements();
  const Dims sizes = whole ? snapshot.copy.sizes() : Dims{count};
  verdict::CompareOptions options;
  options.bits = true;
  const verdict::Comparison comparison =
      verdict::compare({snapshot.copy.dtype(), sizes, a.data() + header + 1, nullptr, 0},
                       {snapshot.copy.dtype(), sizes, b.data() + header + 1, nullptr, 0}, options);
  if (comparison.equal) return str("they differ past element ", count);
  return whole ? comparison.message : str("of the first ", count, " elements: ", comparison.message);
}

}  // namespace

void Checks::add_across(Site site, const std::string& label, const Value& value, std::vector<int> members, bool same) {
  Across check{std::move(site), {}, label, std::move(members), same, {}};
  take_snapshots(label, value, true, check.values);
  std::string group;
  for (int member : check.members) group += str(group.empty() ? "" : ",", member);
  const std::string place = str(check.site.file, ":", check.site.line, ":", check.site.column, "|", group);
  check.key = str(check.site.file, ":", check.site.line, ":", check.site.column, "#", times_[place]++, "|", group);
  across_.push_back(std::move(check));
}

void Checks::fail_across(const std::string& why, const Fail& fail) {
  for (const Across& check : across_) fail(check.site, str("ranks could not be compared: ", why));
  across_.clear();
}

void Checks::judge_across(int rank, int world_size, verdict::Evidence& evidence, const Fail& fail) {
  std::string mine;
  std::map<std::string, std::vector<std::string>> wires;
  for (const Across& check : across_) {
    put(mine, check.key);
    bool trivial = true, nan = false;
    std::vector<std::string>& wire = wires[check.key];
    for (const Snapshot& snapshot : check.values) {
      trivial = trivial && is_zero_or_empty(snapshot);
      nan = nan || has_nan(snapshot);
      wire.push_back(to_wire(snapshot));
    }
    put(mine, str(check.same ? 1 : 0, trivial ? 1 : 0, nan ? 1 : 0));
    put(mine, str(wire.size()));
    for (const std::string& bytes : wire) put(mine, hash_of(bytes));
  }
  comm::ProcessGroup& world = comm::world_group();
  All all;
  for (const std::string& text : comm::exchange(world, mine, "checks across ranks")) all.push_back(parse(text));
  LOCKSTEP_CHECK(static_cast<int>(all.size()) == world_size, "ranks heard from: ", all.size());

  // Which contents are wanted, worked out alike on all ranks.
  std::set<std::string> keys;
  for (const auto& own : all)
    for (const auto& [key, told] : own) keys.insert(key);
  std::map<std::string, std::pair<int, int>> wanted;
  for (const std::string& key : keys)
    if (const auto found = first_difference(all, key, members_of(key)); found.first >= 0) wanted[key] = found;
  std::vector<std::map<std::string, std::string>> contents(all.size());
  if (!wanted.empty()) {
    std::string shown;
    for (const auto& [key, found] : wanted) {
      const bool asked = rank == found.second || rank == members_of(key)[0];
      if (!asked || wires.find(key) == wires.end() || static_cast<int>(wires[key].size()) <= found.first) continue;
      put(shown, key);
      put(shown, wires[key][static_cast<std::size_t>(found.first)].substr(0, most_content));
    }
    const std::vector<std::string> texts = comm::exchange(world, shown, "values that differ across ranks");
    for (std::size_t r = 0; r < texts.size(); ++r)
      for (Reader reader(texts[r]); reader.more();) {
        const std::string key = reader.next();
        contents[r][key] = reader.next();
      }
  }

  for (const Across& check : across_) {
    bool missing = false, trivial = true, nan = false;
    for (int member : check.members) {
      const Told* told = told_by(all, member, check.key);
      if (!told) {
        if (!missing) fail(check.site, str(check.label, ": rank ", member, " of the mesh did not reach this check"));
        missing = true;
        continue;
      }
      trivial = trivial && told->trivial;
      nan = nan || told->nan;
    }
    if (missing) continue;
    if (nan) {
      fail(check.site, str(check.label, ": there is a not-a-number among the values"));
      continue;
    }
    if (check.same) {
      if (const auto at = wanted.find(check.key); at != wanted.end()) {
        const auto [index, other] = at->second;
        const int first = check.members[0];
        const auto& a = contents[static_cast<std::size_t>(first)][check.key];
        const auto& b = contents[static_cast<std::size_t>(other)][check.key];
        const std::size_t i = static_cast<std::size_t>(index);
        const std::string which = i < check.values.size() ? check.values[i].label : check.label;
        fail(check.site, str(which, " of rank ", first, " and of rank ", other, " differ: ",
                             i < check.values.size() ? difference(check.values[i], a, b) : "another number of values"));
        continue;
      }
    } else {
      bool alike = false;
      for (std::size_t i = 0; i < check.members.size() && !alike; ++i)
        for (std::size_t k = i + 1; k < check.members.size() && !alike; ++k)
          if (told_by(all, check.members[i], check.key)->hashes == told_by(all, check.members[k], check.key)->hashes) {
            fail(check.site, str(check.label, " of ranks ", check.members[i], " and ", check.members[k],
                                 " is the same, though no two ranks may agree"));
            alike = true;
          }
      if (alike) continue;
    }
    if (trivial || check.members.size() < 2) {
      evidence.trivial += 1;
      continue;
    }
    evidence.comparisons += 1;
    for (const Snapshot& value : check.values)
      evidence.elements += value.copy.defined() ? value.copy.num_elements() : 1;
    if (check.same) {
      evidence.same_bits += 1;
      evidence.bits_required += 1;
    }
  }
  across_.clear();
}

}  // namespace lockstep::run
