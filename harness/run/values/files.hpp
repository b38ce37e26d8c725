// Files that a case reads and writes: values as .json, maps of tensors as .safetensors. A path is relative to the
// folder of the case. A path with a leading `/` is for reading only, and is relative to the folder of a user's
// scenario, then to the folder of scenarios. Neither `..` nor a link may leave these folders.
#pragma once

#include <string>
#include <vector>

#include "harness/run/values/value.hpp"

namespace lockstep::run {

class RankBudget;

struct Folders {
  std::string of_case;                 // empty: the case has none
  std::vector<std::string> scenarios;  // searched in this order for a path with `/`
};

// The path in the file system. Throws Error for a path that leaves its folder, for writing a path with `/`, and for a
// path with `/` that is not found; the message lists the searched places.
std::string resolve_path(const std::string& path, const Folders& folders, bool writing);

// Tensors are created on `device`. Throws Error for a missing or malformed file.
Value read_file(const std::string& path, const Folders& folders, device::Device device);
// Writes any value as .json, or a map of plain tensors as .safetensors. The bytes count as output in the budget, unless
// it is null. Throws Error for sharded tensors and other endings.
void write_file(const std::string& path, const Value& value, const Folders& folders, RankBudget* budget);

}  // namespace lockstep::run
