#include "harness/scenario/diagnostics.hpp"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <tuple>

#include "engine/core/printable.hpp"
#include "engine/core/text.hpp"

namespace lockstep::scenario {

namespace {

constexpr std::size_t shown_columns = 160;

// The line with a caret below the column. A very long line is cut to the characters around the column.
std::string with_caret(const std::string& line, int column) {
  std::size_t at = column > 0 ? static_cast<std::size_t>(column - 1) : 0;
  at = std::min(at, line.size());
  std::string shown = line;
  if (shown.size() > shown_columns) {
    const std::size_t start = at > shown_columns / 2 ? at - shown_columns / 2 : 0;
    shown = shown.substr(start, shown_columns);
    at -= start;
  }
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return str(shown, "\n", std::string(at, ' '), "^");
}

std::string joined(const std::vector<Diagnostic>& items) {
  std::string out;
  for (const Diagnostic& item : items) out += str(out.empty() ? "" : "\n", item.text());
  return out;
}

}  // namespace

std::string to_text(const Place& place) {
  if (place.line == 0) return place.file;
  return str(place.file, ":", place.line, ":", place.column);
}

std::string Diagnostic::text() const {
  std::string out = str(printable_line(to_text(place)), ": ", printable(message));
  if (!source.empty()) {
    const std::string shown = with_caret(source, place.column);
    const std::size_t end = shown.find('\n');
    out += str("\n  ", printable(shown.substr(0, end)), "\n  ", shown.substr(end + 1));
  }
  return out;
}

void Diagnostics::add_source(const std::string& file, const std::string& text) {
  std::vector<std::string>& lines = lines_[file];
  lines.clear();
  std::size_t start = 0;
  while (start <= text.size()) {
    std::size_t end = text.find('\n', start);
    if (end == std::string::npos) end = text.size();
    lines.push_back(text.substr(start, end - start));
    start = end + 1;
  }
}

void Diagnostics::error(const Place& place, std::string message) {
  Diagnostic item{place, std::move(message), {}};
  const auto found = lines_.find(place.file);
  if (found != lines_.end() && place.line > 0 && static_cast<std::size_t>(place.line) <= found->second.size()) {
    const std::string& line = found->second[static_cast<std::size_t>(place.line) - 1];
    // Long lines are not kept, so that many errors in one long line do not store many copies of it.
    constexpr std::size_t longest_shown = 4096;
    if (line.size() <= longest_shown) item.source = line;
  }
  add(item);
}

void Diagnostics::add(const Diagnostic& item) {
  if (seen_.insert(str(to_text(item.place), ": ", item.message)).second) items_.push_back(item);
}

std::vector<Diagnostic> Diagnostics::sorted() const {
  std::vector<Diagnostic> out = items_;
  std::stable_sort(out.begin(), out.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.place.file, a.place.line, a.place.column) < std::tie(b.place.file, b.place.line, b.place.column);
  });
  return out;
}

std::string Diagnostics::text() const { return joined(sorted()); }

ScenarioError::ScenarioError(const Diagnostics& diagnostics)
    : Error(joined(diagnostics.sorted())), diagnostics_(diagnostics.sorted()) {}

ScenarioError::ScenarioError(const Place& place, const std::string& message)
    : Error(str(to_text(place), ": ", message)), diagnostics_{Diagnostic{place, message, {}}} {}

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::string nearest_word(std::string_view given, const std::vector<std::string>& known_words) {
  const std::string word = lower(given);

  // The largest edit distance of a suggestion: 1 for short words, a third of the letters for long words.
  if (word.size() < 2) return {};
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::size_t best = limit + 1;
  std::string nearest;
  std::vector<std::size_t> costs;  // row by row, one more than the letters of the word and of the candidate
  for (const std::string& known : known_words) {
    const std::string candidate = lower(known);
    if (candidate == word) return known;  // they differ in case only
    // A word that is the start of the other counts as one edit.
    if (std::min(word.size(), candidate.size()) >= 3 && (candidate.starts_with(word) || word.starts_with(candidate))) {
      if (best > 1) nearest = known;
      best = std::min<std::size_t>(best, 1);
      continue;
    }
    const std::size_t longer = std::max(word.size(), candidate.size());
    if (longer - std::min(word.size(), candidate.size()) > limit) continue;
    // Edits: insert, delete, replace, swap two neighbours.
    costs.resize((word.size() + 1) * (candidate.size() + 1));
    const auto cost = [&](std::size_t i, std::size_t j) -> std::size_t& {
      return costs[i * (candidate.size() + 1) + j];
    };
    for (std::size_t i = 0; i <= word.size(); ++i) cost(i, 0) = i;
    for (std::size_t j = 0; j <= candidate.size(); ++j) cost(0, j) = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      for (std::size_t j = 1; j <= candidate.size(); ++j) {
        const std::size_t replaced = cost(i - 1, j - 1) + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        cost(i, j) = std::min({cost(i - 1, j) + 1, cost(i, j - 1) + 1, replaced});
        if (i > 1 && j > 1 && word[i - 1] == candidate[j - 2] && word[i - 2] == candidate[j - 1]) {
          cost(i, j) = std::min(cost(i, j), cost(i - 2, j - 2) + 1);
        }
      }
    }
    if (cost(word.size(), candidate.size()) < best) {
      best = cost(word.size(), candidate.size());
      nearest = known;
    }
  }
  return nearest;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(word, known);
  if (!nearest.empty() && nearest != word) return str("; did you mean `", nearest, "`?");
  if (known.empty() || known.size() > 16) return {};
  std::string out = "; known here: ";
  for (std::size_t i = 0; i < known.size(); ++i) out += str(i > 0 ? ", " : "", known[i]);
  return out;
}

}  // namespace lockstep::scenario
