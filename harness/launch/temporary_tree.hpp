// A temporary path: the destructor removes the file or folder there, with all below it.
//
//   TemporaryTree part(folder + ".part");
//   fill(part.path());
//   rename(part.path(), folder);             // nothing is left to remove
//
// Where a process ends without destructors, remove_all_of_process() does their work.
#pragma once

#include <string>

#include <sys/types.h>

namespace lockstep::launch {

class TemporaryTree {
 public:
  explicit TemporaryTree(std::string path);  // creates nothing
  ~TemporaryTree();
  TemporaryTree(const TemporaryTree&) = delete;
  TemporaryTree& operator=(const TemporaryTree&) = delete;
  const std::string& path() const { return path_; }

  // Removes the trees that this process has made, the newest first. A rank, which is a fork of this process, removes
  // nothing.
  static void remove_all_of_process() noexcept;

 private:
  std::string path_;
  pid_t owner_;
  TemporaryTree* older_;

  static TemporaryTree* newest;  // one thread uses all
};

}  // namespace lockstep::launch
