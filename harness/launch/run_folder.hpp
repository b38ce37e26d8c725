// The temporary folder of a run: `lockstep-run-XXXXXX` under TMPDIR, one folder per case within it.
//
//   RunFolder run;                           // first removes the folders that earlier runs left behind
//   CaseFolder folder(run, "case-3");        // folder.path() exists until `folder` is destroyed
//
// A run holds a lock (flock) on its folder until it ends. The kernel releases the lock however the run ends, so a
// folder without a lock has no owner. Symbolic links, folders of other users, and folders with such a name that no run
// has made are never touched. Both constructors throw ResourceError when the folder cannot be created.
#pragma once

#include <optional>
#include <string>

#include "harness/launch/temporary_tree.hpp"

namespace lockstep::launch {

class RunFolder {
 public:
  RunFolder();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::string& path() const { return tree_->path(); }

 private:
  std::optional<TemporaryTree> tree_;
  int lock_ = -1;
};

class CaseFolder {
 public:
  CaseFolder(const RunFolder& run, const std::string& name);
  const std::string& path() const { return tree_.path(); }

 private:
  TemporaryTree tree_;
};

// Removes the run folders in `parent` whose owners have ended. Returns their number.
int sweep_run_folders(const std::string& parent);

}  // namespace lockstep::launch
