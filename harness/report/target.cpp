#include "harness/report/target.hpp"

#include <sys/stat.h>

#include "engine/core/error.hpp"
#include "engine/core/printable.hpp"

namespace lockstep::report {

void check_target(const std::string& path) {
  struct stat facts = {};
  if (::stat(path.c_str(), &facts) != 0 || S_ISREG(facts.st_mode) || S_ISCHR(facts.st_mode)) return;
  const char* kind = S_ISDIR(facts.st_mode)    ? "a folder"
                     : S_ISFIFO(facts.st_mode) ? "a pipe"
                     : S_ISSOCK(facts.st_mode) ? "a socket"
                                               : "a device";
  throw Error(str(printable_line(path), " is ", kind, ", and a file is to be written there"), "name a file");
}

}  // namespace lockstep::report
