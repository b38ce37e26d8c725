// Places in scenario files, and errors at these places.
//
//   scenarios/replicate/x.yaml:7:5: unknown verb `replicat`; did you mean `replicate`?
//     - replicat: model
//       ^
//
// Parsing and validation report every error of a file to one Diagnostics. Code that cannot continue throws
// ScenarioError.
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
  int line = 0;      // line and column count from 1; 0: unknown
  int column = 0;
};

// "file:line:column"
std::string to_text(const Place& place);

struct Diagnostic {
  Place place;
  std::string message;  // without a final stop, with a suggestion where there is one
  std::string source;   // the text of the line, without its end; may be empty

  std::string text() const;  // "file:line:column: message", the line, a caret
};

// The errors of one or several files, in the order in which they were found. text() sorts them by place.
class Diagnostics {
 public:
  // Keeps the lines of a file, so that its errors can show them.
  void add_source(const std::string& file, const std::string& text);
  void error(const Place& place, std::string message);
  void add(const Diagnostic& item);  // ignored when the same message exists for the same place

  bool empty() const { return items_.empty(); }
  const std::vector<Diagnostic>& items() const { return items_; }
  std::vector<Diagnostic> sorted() const;
  std::string text() const;

 private:
  std::map<std::string, std::vector<std::string>> lines_;
  std::vector<Diagnostic> items_;
  std::set<std::string> seen_;
};

// A mistake in a scenario file. It is reported before anything is launched (exit code 2).
class ScenarioError : public Error {
 public:
  explicit ScenarioError(const Diagnostics& diagnostics);
  ScenarioError(const Place& place, const std::string& message);
  const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

// The known word with the smallest edit distance to `word`, ignoring case. The distance is at most a third of the
// word's length, or 1 for short words. Empty when no word is that near, and for a single letter.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);
// "; did you mean `x`?", or "; known here: a, b, c" when no word is near and at most 16 are known, or empty.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

}  // namespace lockstep::scenario
