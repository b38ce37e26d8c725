// Loads a checkpoint into a state, in place: tensors of any layout from chunks of any other.
//
// All ranks of the world call load together, with the same folder; their states may have different keys. Everything is
// checked on all ranks before the first value is written: the index, the sizes of the files, keys, types, sizes, and
// the hashes of all bytes that a rank needs. An error on one rank is an error on every rank.
//
//   State state{{"model", model}, {"optimizer", adam.get()}, {"step", PlainValue{"0"}}};
//   LoadReport report = load(state, "run/step_100");
//   report.values.at("step");                          // "100", as JSON
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/state/file_system.hpp"
#include "engine/state/tree.hpp"

namespace lockstep::state {

struct LoadOptions {
  // Loads the keys that both sides have. Otherwise a key of the state that the checkpoint lacks is an error, and so is
  // a key of the checkpoint below `names` that no rank's state has.
  bool partial = false;
  std::string shown = {};       // the name of the folder in messages; empty: the folder
  FileSystem* files = nullptr;  // null: the real file system
  // Keys of the checkpoint below these names are part of the state. Empty: the names of its parts.
  std::vector<std::string> names = {};
  // Called with each plain value of the state, as JSON, before a value is written; it may refuse it by an Error.
  std::function<void(const std::string& json)> check_value = {};
};
struct LoadReport {
  std::map<std::string, std::string> values;  // of the plain values of the state, as JSON
  std::vector<std::string> missing;           // keys of this rank's state that the checkpoint lacks
  std::vector<std::string> unexpected;        // keys of the checkpoint below `names`; no rank wants them
  std::uint64_t bytes_needed = 0;             // of this rank's tensors
  std::uint64_t bytes_read = 0;               // of the files of ranks: whole blocks or tiles, each once
};

// Optimizers get the state of those parameters that the checkpoint has: it is created or removed as needed. Waits for
// an asynchronous save. Throws Error, on every rank, naming file, key and both shapes. State that is missing, damaged
// or does not fit leaves all values as they were; only a failure to read a file that was read before can leave some
// values loaded and others not.
LoadReport load(const State& state, const std::string& folder, const LoadOptions& options = {});

}  // namespace lockstep::state
