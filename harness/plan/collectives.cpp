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

bool agree(const Row& planned, const Row& observed) {
  if (planned.count != observed.count) return false;
  return planned.bytes_are_least ? observed.bytes >= planned.bytes : observed.bytes == planned.bytes;
}

const Row* find(const std::vector<Row>& rows, const Row& like) {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.same_kind(like); });
  return at == rows.end() ? nullptr : &*at;
}

Difference difference(const Row& of, const Row* planned, const Row* observed) {
  return {str(of.family, "/", of.operation, " over ", group_text(of), " in ", of.phase,
              of.owner.empty() ? std::string() : str(" for ", of.owner),
              of.line > 0 ? str(" (line ", of.line, ")") : std::string(), ": planned ", amount(planned), ", observed ",
              amount(observed)),
          of.line};
}

// ---- order ----
bool matches(const Collective& planned, const Collective& observed) {
  const auto kind = [](const Collective& collective) {
    return std::tie(collective.family, collective.operation, collective.axis, collective.group_size, collective.phase,
                    collective.owner, collective.line);
  };
  if (kind(planned) != kind(observed)) return false;
  return planned.bytes_are_least ? observed.bytes >= planned.bytes : observed.bytes == planned.bytes;
}

std::string ordinal(std::int64_t number) {
  const std::int64_t last = number % 100 / 10 == 1 ? 0 : number % 10;
  return str(number, last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th");
}

// The operation and the module; with `in_full` also the group, the bytes, the phase and the line.
std::string describe(const Collective* collective, bool in_full) {
  if (collective == nullptr) return "none";
  std::string text =
      str(collective->operation, collective->owner.empty() ? std::string() : str(" of ", collective->owner));
  if (in_full)
    text += str(" (", collective->family, " over ",
                collective->axis.empty() ? str("a group of ", collective->group_size)
                                         : str(collective->axis, " of ", collective->group_size),
                ", ", collective->bytes_are_least ? "at least " : "", collective->bytes, " bytes, ", collective->phase,
                ", line ", collective->line, ")");
  return text;
}

// The collectives of the last turn of the innermost loop.
std::vector<Collective> last_turn(const std::vector<Collective>& collectives) {
  std::vector<Collective> last;
  for (const Collective& collective : collectives)
    if (collective.turn == collectives.back().turn) last.push_back(collective);
  return last;
}

// ---- the sequence of a turn as text ----
// An operation of one module. Repetitions in succession are counted.
struct Word {
  std::string operation, owner;
  int times = 1;
};

std::vector<Word> words_of(const std::vector<Collective>& collectives, std::size_t begin, std::size_t end) {
  std::vector<Word> words;
  for (std::size_t i = begin; i < end; ++i) {
    const std::string operation = str(collectives[i].family == "start_up" ? "start_up " : "", collectives[i].operation);
    if (!words.empty() && words.back().operation == operation && words.back().owner == collectives[i].owner)
      words.back().times += 1;
    else
      words.push_back({operation, collectives[i].owner});
  }
  return words;
}

// A line that wraps at a maximum width, indented after the first break.
class WrappedLine {
 public:
  explicit WrappedLine(const std::string& heading) : line_(str("  ", heading)) { line_.resize(indent, ' '); }
  void add(const std::string& text, bool first) {
    constexpr std::size_t max_width = 110;
    const std::string gap = first ? "" : " ";
    if (column_ + gap.size() + text.size() > max_width && !first) {
      line_ += str("\n", std::string(indent, ' '));
      column_ = indent;
    } else {
      line_ += gap;
      column_ += gap.size();
    }
    line_ += text;
    column_ += text.size();
  }
  const std::string& text() const { return line_; }

 private:
  static constexpr std::size_t indent = 13;
  std::string line_;
  std::size_t column_ = indent;
};

// An operation is written once for successive modules. More than `max_words` are shortened in the middle.
std::string phase_line(const std::string& phase, const std::vector<Word>& words) {
  constexpr std::size_t max_words = 40, num_first = 24, num_last = 12;
  const bool is_shortened = words.size() > max_words;
  WrappedLine line(phase);
  const std::string* operation = nullptr;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (is_shortened && i == num_first) {
      i = words.size() - num_last;
      line.add(str("... ", i - num_first, " more ..."), false);
      operation = nullptr;
    }
    const Word& word = words[i];
    const bool same_operation = operation && *operation == word.operation;
    std::string text = same_operation ? word.owner : str(word.operation, word.owner.empty() ? "" : " ", word.owner);
    if (word.times > 1) text += str(" x", word.times);
    if (i + 1 < words.size() && !(is_shortened && i + 1 == num_first))
      text += words[i + 1].operation == word.operation ? "," : ";";
    line.add(text, i == 0);
    operation = &word.operation;
  }
  return line.text() + "\n";
}

}  // namespace

bool Row::same_kind(const Row& other) const { return key_of(*this) == key_of(other); }

std::vector<Row> tally(const std::vector<Collective>& collectives, TallyKeys by) {
  std::vector<Row> rows;
  for (const Collective& collective : collectives) {
    Row row{collective.family,
            collective.operation,
            collective.axis,
            collective.phase,
            by.owners ? collective.owner : std::string(),
            collective.group_size,
            by.lines ? collective.line : 0,
            1,
            collective.bytes,
            collective.bytes_are_least};
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& known) { return known.same_kind(row); });
    if (same == rows.end()) {
      rows.push_back(std::move(row));
      continue;
    }
    same->count += 1;
    same->bytes += collective.bytes;
    same->bytes_are_least = same->bytes_are_least || collective.bytes_are_least;
  }
  return rows;
}

std::vector<Difference> differences(const std::vector<Row>& planned, const std::vector<Row>& observed) {
  std::vector<Difference> found;
  for (const Row& row : planned) {
    const Row* other = find(observed, row);
    if (other == nullptr || !agree(row, *other)) found.push_back(difference(row, &row, other));
  }
  for (const Row& row : observed)
    if (find(planned, row) == nullptr) found.push_back(difference(row, nullptr, &row));
  return found;
}

std::optional<Difference> first_order_difference(const std::vector<Collective>& planned,
                                                 const std::vector<Collective>& observed) {
  std::size_t at = 0;
  while (at < planned.size() && at < observed.size() && matches(planned[at], observed[at])) ++at;
  if (at == planned.size() && at == observed.size()) return std::nullopt;
  const Collective* expected = at < planned.size() ? &planned[at] : nullptr;
  const Collective* actual = at < observed.size() ? &observed[at] : nullptr;
  const Collective& here = expected ? *expected : *actual;
  // Observed collectives carry no turn. An additional one at the end is in the turn of the last planned one.
  const int turn = expected ? expected->turn : planned.empty() ? 0 : planned.back().turn;
  std::size_t first = at;
  while (first > 0 && planned[first - 1].phase == here.phase && planned[first - 1].turn == turn) --first;
  const bool same_names =
      expected && actual && expected->operation == actual->operation && expected->owner == actual->owner;
  std::string where = here.line > 0 ? str("line ", here.line) : std::string();
  if (turn > 0) where += str(where.empty() ? "" : ", ", "turn ", turn);
  return Difference{
      str(here.phase, ", ", ordinal(static_cast<std::int64_t>(at - first) + 1),
          where.empty() ? std::string() : str(" (", where, ")"), ": planned ", describe(expected, same_names),
          ", observed ", describe(actual, same_names),
          expected && actual && !same_names && expected->phase != actual->phase ? str(" in ", actual->phase)
                                                                                : std::string()),
      here.line};
}

std::string sequence(const std::vector<Collective>& collectives) {
  if (collectives.empty()) return "";
  const std::vector<Collective> last = last_turn(collectives);
  std::string out;
  for (std::size_t begin = 0, end = 0; begin < last.size(); begin = end) {
    while (end < last.size() && last[end].phase == last[begin].phase) ++end;
    out += phase_line(last[begin].phase, words_of(last, begin, end));
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
      const Row* last_row = find(in_last, row);
      cells.push_back({row.phase, row.family, row.operation, group_text(row), str(last_row ? last_row->count : 0),
                       str(last_row && last_row->bytes_are_least ? "at least " : "", last_row ? last_row->bytes : 0),
                       str(row.count), row.owner});
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
