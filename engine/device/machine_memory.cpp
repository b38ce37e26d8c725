#include "engine/device/machine_memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

namespace lockstep::device {

namespace {

constexpr std::size_t unknown = std::numeric_limits<std::size_t>::max();

// The number in a file, or nullopt if it has none ("max", or no such file).
std::optional<std::size_t> number_in(const std::string& file) {
  std::ifstream in(file);
  std::size_t number = 0;
  if (!(in >> number)) return std::nullopt;
  return number;
}

std::size_t limit_minus_usage(const std::string& limit, const std::string& used) {
  const std::optional<std::size_t> most = number_in(limit), now = number_in(used);
  if (!most || !now) return unknown;
  return *most - std::min(*most, *now);
}

std::size_t available_on_machine(const std::string& file) {
  constexpr std::size_t bytes_per_unit = 1024;
  std::ifstream in(file);
  std::string key, unit;
  std::size_t number = 0;
  while (in >> key >> number) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return number > unknown / bytes_per_unit ? unknown : number * bytes_per_unit;
  }
  return unknown;
}

}  // namespace

std::size_t available_memory(const std::string& root) {
  const std::string group = root + "/sys/fs/cgroup/";
  return std::min({available_on_machine(root + "/proc/meminfo"),
                   limit_minus_usage(group + "memory.max", group + "memory.current"),
                   limit_minus_usage(group + "memory/memory.limit_in_bytes", group + "memory/memory.usage_in_bytes")});
}

}  // namespace lockstep::device
