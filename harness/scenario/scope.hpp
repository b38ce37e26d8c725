// The names that a step of a file can use, for the check before launch. Internal to this layer.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

struct Scope {
  std::set<std::string> fixed;         // known before launch: parameters, matrix names, some variables, element types
  std::set<std::string> known;         // every usable name, `fixed` included
  std::set<std::string> constants;     // bound once and without conditions, to an expression of constants
  std::map<std::string, Place> later;  // every name that some step of the file binds, with the first place that does
  std::set<std::string> bound_again;   // the names that more than one step of the file binds
  std::set<std::string> cannot_bind;   // parameters, matrix names, variables, element types
  std::set<std::string> of_loops;      // bound by the enclosing loops
  std::set<std::string> barred;  // in a hook: names of the enclosing loops, whose values have changed when it runs
  bool in_hook = false;          // names are looked up when the hook runs

  bool is_known(const std::string& name) const;
};

// The scope before the first step; `constants` are parameters and matrix names.
Scope base_scope(const std::vector<std::string>& constants);

// Adds every name that the steps, or steps within them, bind; the first place of each name is kept. Names that are
// bound more than once are added to `again`, unless it is null.
void collect_bound_names(const Steps& list, std::map<std::string, Place>& bound,
                         std::set<std::string>* again = nullptr);

// The names that `for_each` and `repeat` bind; empty for other verbs.
std::vector<std::string> loop_names(const Step& step);

// Adds a name to the scope, or reports that it cannot be bound.
void bind_name(const std::string& name, const Place& place, Scope& scope, Diagnostics& diagnostics);

// Reports a name that the scope does not know, with the likely reason.
void report_unknown_name(const std::string& name, const Place& place, const Scope& scope, Diagnostics& diagnostics);

}  // namespace lockstep::scenario
