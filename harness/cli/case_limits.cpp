#include "harness/cli/case_limits.hpp"

#include <algorithm>
#include <fstream>

#include <unistd.h>

#include "engine/device/cuda/stand_in.hpp"
#include "engine/device/device.hpp"

namespace lockstep::cli {

int most_ranks_of(const scenario::Case& test_case) {
  int num_ranks = test_case.world_size;
  for (const scenario::StageLaunch& stage : test_case.stages) num_ranks = std::max(num_ranks, stage.world_size);
  return num_ranks;
}

int ranks_at_once(const scenario::Case& test_case, int jobs) {
  constexpr int few_enough = 16;  // for their contexts of CUDA and useful shares of the memory, on GPUs from 24 GB on
  const bool on_gpu = test_case.device == device::name_of(device::Kind::cuda) && device::cuda::gpus_of_stand_in() == 0;
  return on_gpu && jobs > 1 ? std::max(few_enough, most_ranks_of(test_case)) : 0;
}

run::RankLimits limits_of(const scenario::Case& test_case, std::int64_t machine_bytes) {
  run::RankLimits limits;
  limits.output_bytes = test_case.output_mb << 20;
  if (test_case.memory_mb) {
    limits.memory_bytes = *test_case.memory_mb << 20;
    return limits;
  }
  // The ranks of a case share half of the machine's memory. Each rank gets at least the memory of a small case.
  constexpr std::int64_t least = std::int64_t{256} << 20;
  const std::int64_t share = machine_bytes / 2 / std::max(1, most_ranks_of(test_case));
  limits.memory_bytes = std::min(limits.memory_bytes, std::max(least, share));
  return limits;
}

run::RankLimits limits_of(const scenario::Case& test_case) {
  static const std::int64_t machine_bytes = machine_memory();
  return limits_of(test_case, machine_bytes);
}

std::int64_t machine_memory() {
  std::int64_t bytes = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  std::ifstream file("/sys/fs/cgroup/memory.max");
  std::int64_t bound = 0;
  if (file >> bound && bound > 0) bytes = std::min(bytes, bound);  // the file holds "max" where there is no limit
  return bytes;
}

}  // namespace lockstep::cli
