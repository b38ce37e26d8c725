// Saves a state as a checkpoint: all ranks write their shards, all or nothing.
//
// All ranks of the world call save together, with the same folder and options; their states may list keys in any order,
// and may have different keys. The ranks agree by exchanges (comm::exchange); no counted collective is issued. After
// the call the checkpoint is complete and flushed to the disk, or an Error is thrown on every rank and no checkpoint is
// there but the old one.
//
// With `async` the call returns when the values are copied. A thread of each rank writes the copy, and rank 0 publishes
// the checkpoint when all ranks have written. SaveHandle::wait() throws the failures of all ranks, on every rank. The
// next save or load, and the end of the run (finish_saves), wait too.
//
//   save({{"model", model}, {"optimizer", adam.get()}}, "run/step_100");
//   SaveHandle saving = save(state, "run/latest", {.overwrite = true, .async = true});
//   ...                                       // training goes on
//   saving.wait();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/state/file_system.hpp"
#include "engine/state/tree.hpp"

namespace lockstep::state {

struct SaveOptions {
  bool overwrite = false;  // replace a checkpoint of this name; otherwise it is an error
  bool async = false;
  FileSystem* files = nullptr;  // null: the real file system
  std::string shown = {};       // the name of the folder in messages; empty: the folder
  // Called before this rank's file is written, on the rank's own thread; it may refuse by an Error.
  std::function<void(const std::string& path, std::uint64_t bytes)> before_write = {};
};

class PendingSave;

class SaveHandle {
 public:
  SaveHandle() = default;
  explicit SaveHandle(std::shared_ptr<PendingSave> pending) : pending_(std::move(pending)) {}
  // All ranks call it together. Returns when the checkpoint is complete; at once if it is. Throws Error, on every rank,
  // if a rank failed to write or to publish.
  void wait() const;

 private:
  std::shared_ptr<PendingSave> pending_;  // null: the save was not asynchronous
};

// Throws Error on every rank, with the ranks that failed, for: an invalid state (tree_of, plan_writes), plain values
// that differ between ranks or that no load reads (max_value_depth), a folder that exists or that contains another
// folder, a name that is reserved for unfinished saves, and failures of the file system.
SaveHandle save(const State& state, const std::string& folder, const SaveOptions& options = {});

// Waits for the asynchronous save of the current rank, if there is one. All ranks call it together. Throws Error as
// SaveHandle::wait(), unless its failure was thrown already.
void finish_saves();

}  // namespace lockstep::state
