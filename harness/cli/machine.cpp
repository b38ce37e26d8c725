#include "harness/cli/machine.hpp"

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <sched.h>

#include "engine/core/error.hpp"
#include "engine/device/cuda/stand_in.hpp"
#include "engine/kernels/backend.hpp"

namespace lockstep::cli {

namespace {

std::string field_of(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return "unknown";
}

std::string home() {
  if (const char* home = std::getenv("LOCKSTEP_HOME"); home && *home) return home;
  return LOCKSTEP_SOURCE_DIR;
}

std::string folder_of(const char* name) {
  const std::string folder = home() + "/" + name;
  if (!std::filesystem::is_directory(folder)) {
    throw Error(str("there is no folder ", folder),
                "set LOCKSTEP_HOME to the folder that holds scenarios/ and reports/");
  }
  return folder;
}

}  // namespace

std::string version() { return LOCKSTEP_VERSION; }

std::map<std::string, std::string> build_facts() {
  const std::string backend = kernels::backend_name();  // "Kokkos 3.4.1, Serial"
  const std::size_t comma = backend.find(", ");
  return {{"compiler", LOCKSTEP_COMPILER},
          {"kokkos", backend.substr(0, comma)},
          {"kokkos_backends", comma == std::string::npos ? std::string() : backend.substr(comma + 2)},
          {"blas", kernels::blas_name()}};
}

int num_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int default_jobs() { return num_cores() + num_cores() / 2; }

std::int64_t available_memory() {
  return std::strtoll(field_of("/proc/meminfo", "MemAvailable").c_str(), nullptr, 10) * 1024;
}

std::map<std::string, std::string> machine_facts() {
  std::map<std::string, std::string> facts = {{"cores", str(num_cores())},
                                              {"memory", field_of("/proc/meminfo", "MemTotal")},
                                              {"cpu", field_of("/proc/cpuinfo", "model name")}};
  if (const int gpus = device::cuda::gpus_of_stand_in(); gpus > 0)
    facts["cuda"] = device::cuda::describe_stand_in(gpus);
  return facts;
}

std::string scenarios_folder() { return folder_of("scenarios"); }
std::string reports_folder() { return folder_of("reports"); }

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace lockstep::cli
