// The temporary folder of a run: `lockstep-run-XXXXXX` under TMPDIR, one folder per case within it.
//
//   RunFolder run;                           // first removes the folders that earlier runs left behind
//   CaseFolder folder(run, "case-3");        // folder.path() exists until `folder` is destroyed
//
// A run holds a lock (flock) on its folder until it ends. The kernel releases the lock however the run ends, so a
// folder without a lock has no owner. Symbolic links, folders of other users, and folders with such a name that no run
// has made are never touched. The constructors of RunFolder and CaseFolder throw ResourceError when the folder cannot
// be created.
#pragma once

#include <optional>
#include <string>

#include "harness/launch/temporary_tree.hpp"

namespace lockstep::launch {

class RunFolder {
 public:
  RunFolder();
  // At this path, which is the path of the run's folder on another host. Makes the folders above it, which stay. Throws
  // ResourceError also when the path exists.
  explicit RunFolder(const std::string& path);
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

// The folder of a case on a host other than host 0: the folder of host 0 where this host sees it, else a folder at the
// same path in a run folder of this host.
class FollowedFolder {
 public:
  // For the next case, or for the next stage of the same one. `path` is the folder of host 0. Returns whether this host
  // sees it. If the machine refuses another folder at the path, there is none, and cases that write files fail.
  bool enter(const std::string& path);

 private:
  std::string path_;
  bool is_seen_ = true;
  std::optional<RunFolder> run_;  // made for the first case whose folder is not seen
  std::optional<CaseFolder> case_;
};

// Removes the run folders in `parent` whose owners have ended. Returns their number.
int sweep_run_folders(const std::string& parent);

}  // namespace lockstep::launch
