#include "harness/plan/collectives.hpp"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "engine/core/text.hpp"

namespace lockstep::plan {

namespace {

auto key_of(const Row& row) {
  return std::tie(row.family, row.operation, row.axis, row.group_size, row.phase, row.owner, row.line);
}

std::string group_text(const Row& row) {
  return row.axis.empty() ? str("a group of ", row.group_size) : str(row.axis, " of ", row.group_size);
}

std::string amount(const Row* row) {
  if (row == nullptr) return "none";
  return str(row->count, " of ", row->bytes_are_least ? "at least " : "", row->bytes, " bytes together");
}

bool agree(const Row& planned, const Row& seen) {
  if (planned.count != seen.count) return false;
  return planned.bytes_are_least ? seen.bytes >= planned.bytes : seen.bytes == planned.bytes;
}

const Row* find(const std::vector<Row>& rows, const Row& like) {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.same_kind(like); });
  return at == rows.end() ? nullptr : &*at;
}

Difference difference(const Row& of, const Row* planned, const Row* seen) {
  return {str(of.family, "/", of.operation, " over ", group_text(of), " in ", of.phase,
              of.owner.empty() ? std::string() : str(" for ", of.owner),
              of.line > 0 ? str(" (line ", of.line, ")") : std::string(), ": planned ", amount(planned), ", observed ",
              amount(seen)),
          of.line};
}

// ---- order ----
bool same_place(const Collective& planned, const Collective& seen) {
  const auto kind = [](const Collective& one) {
    return std::tie(one.family, one.operation, one.axis, one.group_size, one.phase, one.owner, one.line);
  };
  if (kind(planned) != kind(seen)) return false;
  return planned.bytes_are_least ? seen.bytes >= planned.bytes : seen.bytes == planned.bytes;
}

std::string ordinal(std::int64_t number) {
  const std::int64_t last = number % 100 / 10 == 1 ? 0 : number % 10;
  return str(number, last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th");
}

// Of which module; where that does not tell two apart, over whom, of how much and from where.
std::string place_text(const Collective* one, bool in_full) {
  if (one == nullptr) return "none";
  std::string text = str(one->operation, one->owner.empty() ? std::string() : str(" of ", one->owner));
  if (in_full)
    text += str(" (", one->family, " over ",
                one->axis.empty() ? str("a group of ", one->group_size) : str(one->axis, " of ", one->group_size), ", ",
                one->bytes_are_least ? "at least " : "", one->bytes, " bytes, ", one->phase, ", line ", one->line, ")");
  return text;
}

// The collectives of the last turn of the innermost loop.
std::vector<Collective> last_turn(const std::vector<Collective>& collectives) {
  std::vector<Collective> last;
  for (const Collective& one : collectives)
    if (one.turn == collectives.back().turn) last.push_back(one);
  return last;
}

}  // namespace

bool Row::same_kind(const Row& other) const { return key_of(*this) == key_of(other); }

std::vector<Row> tally(const std::vector<Collective>& collectives, Grain grain) {
  std::vector<Row> rows;
  for (const Collective& one : collectives) {
    Row row{one.family,
            one.operation,
            one.axis,
            one.phase,
            grain.owners ? one.owner : std::string(),
            one.group_size,
            grain.lines ? one.line : 0,
            1,
            one.bytes,
            one.bytes_are_least};
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& known) { return known.same_kind(row); });
    if (same == rows.end()) {
      rows.push_back(std::move(row));
      continue;
    }
    same->count += 1;
    same->bytes += one.bytes;
    same->bytes_are_least = same->bytes_are_least || one.bytes_are_least;
  }
  return rows;
}

std::vector<Difference> differences(const std::vector<Row>& planned, const std::vector<Row>& seen) {
  std::vector<Difference> found;
  for (const Row& row : planned) {
    const Row* other = find(seen, row);
    if (other == nullptr || !agree(row, *other)) found.push_back(difference(row, &row, other));
  }
  for (const Row& row : seen)
    if (find(planned, row) == nullptr) found.push_back(difference(row, nullptr, &row));
  return found;
}

std::optional<Difference> first_apart(const std::vector<Collective>& planned, const std::vector<Collective>& seen) {
  std::size_t at = 0;
  while (at < planned.size() && at < seen.size() && same_place(planned[at], seen[at])) ++at;
  if (at == planned.size() && at == seen.size()) return std::nullopt;
  const Collective* mine = at < planned.size() ? &planned[at] : nullptr;
  const Collective* theirs = at < seen.size() ? &seen[at] : nullptr;
  const Collective& here = mine ? *mine : *theirs;
  // What was seen does not know its turn: it comes after what was planned before it.
  const int turn = mine ? mine->turn : planned.empty() ? 0 : planned.back().turn;
  std::size_t first = at;
  while (first > 0 && planned[first - 1].phase == here.phase && planned[first - 1].turn == turn) --first;
  const bool alike = mine && theirs && mine->operation == theirs->operation && mine->owner == theirs->owner;
  std::string where = here.line > 0 ? str("line ", here.line) : std::string();
  if (turn > 0) where += str(where.empty() ? "" : ", ", "turn ", turn);
  return Difference{
      str(here.phase, ", ", ordinal(static_cast<std::int64_t>(at - first) + 1),
          where.empty() ? std::string() : str(" (", where, ")"), ": planned ", place_text(mine, alike), ", observed ",
          place_text(theirs, alike),
          mine && theirs && !alike && mine->phase != theirs->phase ? str(" in ", theirs->phase) : std::string()),
      here.line};
}

std::string sequence(const std::vector<Collective>& collectives) {
  if (collectives.empty()) return "";
  const std::vector<Collective> last = last_turn(collectives);
  constexpr std::size_t widest = 110, indent = 13, most = 40, shown_before = 24, shown_after = 12;
  std::string out;
  for (std::size_t begin = 0, end = 0; begin < last.size(); begin = end) {
    while (end < last.size() && last[end].phase == last[begin].phase) ++end;
    // Words: an operation with its first owner, or one more owner of it; the same again only counts.
    struct Word {
      std::string operation, owner;
      int times = 1;
    };
    std::vector<Word> words;
    for (std::size_t i = begin; i < end; ++i) {
      const std::string operation = str(last[i].family == "start_up" ? "start_up " : "", last[i].operation);
      if (!words.empty() && words.back().operation == operation && words.back().owner == last[i].owner)
        words.back().times += 1;
      else
        words.push_back({operation, last[i].owner});
    }
    std::string line = str("  ", last[begin].phase);
    line.resize(indent, ' ');
    std::size_t column = indent;
    const auto put = [&](const std::string& text, bool first) {
      const std::string gap = first ? "" : " ";
      if (column + gap.size() + text.size() > widest && !first) {
        line += str("\n", std::string(indent, ' '));
        column = indent;
      } else {
        line += gap;
        column += gap.size();
      }
      line += text;
      column += text.size();
    };
    const std::string* operation = nullptr;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words.size() > most && i == shown_before) {
        i = words.size() - shown_after;
        put(str("... ", i - shown_before, " more ..."), false);
        operation = nullptr;
      }
      const Word& word = words[i];
      const bool goes_on = operation && *operation == word.operation;
      std::string text = goes_on ? word.owner : str(word.operation, word.owner.empty() ? "" : " ", word.owner);
      if (word.times > 1) text += str(" x", word.times);
      if (i + 1 < words.size() && !(words.size() > most && i + 1 == shown_before))
        text += words[i + 1].operation == word.operation ? "," : ";";
      put(text, i == 0);
      operation = &word.operation;
    }
    out += line + "\n";
  }
  return out;
}

std::string table(const std::vector<Collective>& collectives) {
  if (collectives.empty()) return "";
  const std::vector<Collective> last = last_turn(collectives);
  const std::vector<Row> rows = tally(collectives, {.lines = false, .owners = true});
  const std::vector<Row> in_last = tally(last, {.lines = false, .owners = true});
  std::vector<std::vector<std::string>> cells = {
      {"phase", "family", "operation", "group", "last turn", "bytes", "in all", "for"}};
  for (const std::string_view phase : {"forward", "backward", "optimizer", "other"})
    for (const Row& row : rows) {
      if (row.phase != phase) continue;
      const Row* one = find(in_last, row);
      cells.push_back({row.phase, row.family, row.operation, group_text(row), str(one ? one->count : 0),
                       str(one && one->bytes_are_least ? "at least " : "", one ? one->bytes : 0), str(row.count),
                       row.owner});
    }
  std::vector<std::size_t> widths(cells[0].size(), 0);
  for (const auto& line : cells)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const auto& line : cells) {
    out += "  ";
    for (std::size_t i = 0; i < line.size(); ++i) {
      const bool number = 4 <= i && i <= 6;
      const std::string gap(widths[i] - line[i].size(), ' ');
      out += number ? gap + line[i] : line[i] + gap;
      if (i + 1 < line.size()) out += "  ";
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace lockstep::plan
