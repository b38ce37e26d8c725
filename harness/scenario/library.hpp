// The scenarios and routines under one folder: finds, reads and checks them.
//
//   Library library("/usr/share/lockstep/scenarios");
//   for (const std::string& path : library.find({"replicate/*"})) scenarios.push_back(library.load(path));
//
// A scenario of a user's own finds routines in `lib` beside its file, then in `lib` of each folder above it up to the
// working directory, then in lib/ under the root; the nearest wins. A routine finds others in its own `lib` and in
// those after it, so that routines which come with the program never see a user's.
//
// Owns the routines it has read (each once) and shares them with the scenarios that use them. One thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/document.hpp"

namespace lockstep::scenario {

class Library {
 public:
  explicit Library(std::string root);  // the folder `scenarios`
  ~Library();

  const std::string& root() const { return root_; }

  // Paths of scenario files: names under the root (`replicate/single_module`, a `*` matches), files, folders; nothing
  // means all. Without lib/, sorted, each once. A name that matches nothing is an Error with the nearest name.
  std::vector<std::string> find(const std::vector<std::string>& what) const;

  // Parses and checks a scenario and the routines it uses. Throws ScenarioError with every error.
  std::shared_ptr<const Scenario> load(const std::string& path);
  // The same of a text; `file` is what places show. The name in the text is not held against `file`.
  std::shared_ptr<const Scenario> load_text(const std::string& text, const std::string& file);

  // All errors of a scenario or routine file; empty when it is sound.
  Diagnostics validate(const std::string& path);

  // The routine of that name, from lib/NAME.yaml; nullptr when there is no such file. Its errors go to `diagnostics`.
  std::shared_ptr<const Routine> routine(const std::string& name, Diagnostics& diagnostics);
  // A routine under its name without a file, as tests need it. Throws ScenarioError.
  void add_routine(const std::string& name, const std::string& text);
  std::vector<std::string> routine_names() const;

 private:
  struct Entry;
  using Folders = std::vector<std::string>;  // of routines, the nearest first
  Folders folders_for(const std::string& path) const;
  std::shared_ptr<Entry> entry(const std::string& name, const Folders& folders);
  // A routine that a step names; `depth` of the routine that uses it grows, nullptr: a scenario uses it.
  std::shared_ptr<const Routine> resolve(const std::string& name, const Place& place, Diagnostics& diagnostics,
                                         int* depth, const Folders& folders);
  std::shared_ptr<const Scenario> parse(const std::string& text, const std::string& file,
                                        const std::string& expected_name, Diagnostics& diagnostics,
                                        const Folders& folders);
  std::vector<std::string> names_in(const Folders& folders) const;

  std::string root_;
  std::map<std::string, std::shared_ptr<Entry>> routines_;  // by file; those without a file by name
  std::vector<std::string> loading_;                        // keys of routines being read, to find recursion
};

}  // namespace lockstep::scenario
