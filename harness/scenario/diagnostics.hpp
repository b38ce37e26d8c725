// Where things stand in scenario files, and what is said about them.
//
//   scenarios/replicate/x.yaml:7:5: error: unknown verb `replicat`; did you mean `replicate`?
//     7 |   - replicat: model
//       |     ^
//
// Parsing and validation report every error of a file into one Diagnostics; what cannot go on throws ScenarioError.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.hpp"

namespace lockstep::scenario {

struct Place {
  std::string file;  // as the user named it, or relative to the folder of scenarios
  int line = 0;      // both count from 1; 0 where there is none
  int column = 0;
};

// "file:line:column"
std::string to_text(const Place& place);

struct Diagnostic {
  Place place;
  std::string message;  // one sentence without a final stop, the nearest known word included
  std::string source;   // the line it stands in, without its end; may be empty

  std::string text() const;  // "file:line:column: message", the line, a caret
};

// The errors of one file or more, in the order they were found; text() sorts them by place.
class Diagnostics {
 public:
  // Keeps the lines of a file, so that its diagnostics can show them.
  void add_source(const std::string& file, const std::string& text);
  void error(const Place& place, std::string message);
  void add(const Diagnostic& item);  // unless it is there already

  bool empty() const { return items_.empty(); }
  const std::vector<Diagnostic>& items() const { return items_; }
  std::vector<Diagnostic> sorted() const;
  std::string text() const;

 private:
  std::map<std::string, std::vector<std::string>> lines_;
  std::vector<Diagnostic> items_;
  std::set<std::string> seen_;
};

// A scenario wrong in itself: refused before anything is launched (exit code 2).
class ScenarioError : public Error {
 public:
  explicit ScenarioError(const Diagnostics& diagnostics);
  ScenarioError(const Place& place, const std::string& message);
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

// The known word nearest to `word` by edit distance (a third of its length at most, at least one edit); upper and lower
// case count as the same. Empty when none is near, and for a single letter.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);
// "; did you mean `x`?", or "; known are a, b, c" when none is near and there are few, or empty.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

}  // namespace lockstep::scenario
