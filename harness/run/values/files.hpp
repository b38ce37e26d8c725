// Files of a case: .json values and .safetensors maps of tensors, in the case's own folder or, with a leading `/`, for
// reading only: beside a scenario of a user's own, then under the folder of scenarios. Neither `..` nor a link leads
// out of any of them.
#pragma once

#include <string>
#include <vector>

#include "harness/run/values/value.hpp"

namespace lockstep::run {

class RankBudget;

struct Folders {
  std::string of_case;                 // empty: the case has none
  std::vector<std::string> scenarios;  // what `/` stands for: the first of these that has the file
};

// The path in the file system. Throws Error for a path that leaves its folder, for a `/` path that is to be written,
// and for a `/` path that names no file, with every place where it was looked for.
std::string resolve_path(const std::string& path, const Folders& folders, bool writing);

Value read_file(const std::string& path, const Folders& folders, device::Device device);
// A value as .json, a map of tensors as .safetensors. The bytes count in the output of the budget, unless it is null.
void write_file(const std::string& path, const Value& value, const Folders& folders, RankBudget* budget);

}  // namespace lockstep::run
