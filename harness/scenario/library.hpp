// Finds, reads and checks the scenarios and routines under one folder.
//
//   Library library("/usr/share/lockstep/scenarios");
//   for (const std::string& path : library.find({"replicate/*"})) scenarios.push_back(library.load(path));
//
// Routines of a scenario outside the root are searched in the folder `lib` beside its file, then in `lib` of each
// folder above it up to the working directory, then in lib/ under the root; the nearest is used. A routine searches its
// own `lib` and the folders after it in this order, so that the program's routines never use a user's routines.
//
// The library owns the routines that it has read, each once, and shares them with the scenarios that use them. Only one
// thread at a time may use it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

class Library {
 public:
  explicit Library(std::string root);  // the folder `scenarios`
  ~Library();

  const std::string& root() const { return root_; }

  // The paths of the wanted scenario files: each item of `wanted` is a name under the root (`replicate/single_module`,
  // with `*` and `?` as wildcards), a file or a folder; an empty list selects all. Routines are excluded unless they
  // are named. Each path occurs once. Throws Error, with the nearest name, for an item that matches nothing.
  std::vector<std::string> find(const std::vector<std::string>& wanted) const;

  // Parses and checks a scenario and the routines that it uses. Throws ScenarioError with all errors.
  std::shared_ptr<const Scenario> load(const std::string& path);
  // The same for a text in the place of that of the file.
  std::shared_ptr<const Scenario> load_as(const std::string& text, const std::string& path);
  // The same for a text. `file` is the file name in places. The scenario's name need not match it.
  std::shared_ptr<const Scenario> load_text(const std::string& text, const std::string& file);

  // All errors of a scenario or routine file; empty for a valid file.
  Diagnostics validate(const std::string& path);

  // The routine in lib/NAME.yaml under the root; nullptr when there is no such file. Reports its errors to
  // `diagnostics`.
  std::shared_ptr<const Routine> routine(const std::string& name, Diagnostics& diagnostics);
  // Adds a routine without a file, for tests. Throws ScenarioError.
  void add_routine(const std::string& name, const std::string& text);
  std::vector<std::string> routine_names() const;
  // The names of the routines that it has read from files, with digests of the bytes, in order.
  std::vector<std::pair<std::string, std::uint64_t>> routine_digests() const;

 private:
  struct Entry;
  using Folders = std::vector<std::string>;  // folders of routines, the nearest first
  Folders folders_for(const std::string& path) const;
  std::shared_ptr<Entry> entry(const std::string& name, const Folders& folders);
  // The paths of the files whose name matches a pattern, and the names of all files that it was compared with.
  struct NamedFiles {
    std::vector<std::string> paths;
    std::vector<std::string> names;
  };
  NamedFiles find_by_name(const std::vector<std::string>& all, const std::string& pattern) const;
  std::vector<std::string> find_one(const std::vector<std::string>& all, const std::string& wanted) const;
  // "a -> b -> a" when the routine is being read already; otherwise empty.
  std::string cycle_through(const std::string& name, const Folders& folders) const;
  // The routine that a step names. `depth` is the nesting depth of the routine that contains the step, and is updated;
  // nullptr when a scenario contains the step.
  std::shared_ptr<const Routine> resolve(const std::string& name, const Place& place, Diagnostics& diagnostics,
                                         int* depth, const Folders& folders);
  std::shared_ptr<const Scenario> parse(const std::string& text, const std::string& file,
                                        const std::string& expected_name, Diagnostics& diagnostics,
                                        const Folders& folders);
  std::vector<std::string> names_in(const Folders& folders) const;

  std::string root_;
  std::map<std::string, std::shared_ptr<Entry>> routines_;  // by path; routines without a file by name
  std::vector<std::string> loading_;                        // keys of the routines that are being read, outermost first
};

}  // namespace lockstep::scenario
