// The temporary folder of a run: `lockstep-run-XXXXXX` under TMPDIR, one folder per case within it.
//
//   RunFolder run;                           // first removes the folders of runs that ended without doing so
//   CaseFolder folder(run, "case-3");        // folder.path() exists until `folder` is destroyed
//
// The owner holds a lock (flock) on its folder for as long as it lives. The system releases the lock however the owner
// ends, so a folder without a lock belongs to nobody. Symbolic links and folders of other users are never touched.
// Both throw ResourceError when the folder cannot be made.
#pragma once

#include <string>

namespace lockstep::launch {

class RunFolder {
 public:
  RunFolder();
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;
};

class CaseFolder {
 public:
  CaseFolder(const RunFolder& run, const std::string& name);
  ~CaseFolder();
  CaseFolder(const CaseFolder&) = delete;
  CaseFolder& operator=(const CaseFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Removes the run folders in `parent` whose owners are gone; returns how many.
int sweep_run_folders(const std::string& parent);

}  // namespace lockstep::launch
