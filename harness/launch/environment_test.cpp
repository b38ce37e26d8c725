#include "harness/launch/environment.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

TEST(Environment, RecognizesLaunchers) {
  const auto from = [](std::vector<std::pair<std::string, std::string>> variables) {
    return recognize_environment([variables](const char* name) -> const char* {
      for (const auto& [key, value] : variables)
        if (key == name) return value.c_str();
      return nullptr;
    });
  };
  EXPECT_EQ(describe(from({})), "none");
  EXPECT_EQ(describe(from({{"RANK", "1"},
                           {"WORLD_SIZE", "4"},
                           {"LOCAL_RANK", "1"},
                           {"MASTER_ADDR", "node0"},
                           {"MASTER_PORT", "29500"}})),
            "torchrun: rank 1 of 4 (local rank 1), rendezvous at node0:29500");
  EXPECT_EQ(describe(from({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})), "mpirun: rank 0 of 2");
  EXPECT_EQ(describe(from({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}})),
            "srun: rank 3 of 8 (local rank 1)");
  EXPECT_EQ(describe(from({{"RANK", "4"}, {"WORLD_SIZE", "4"}})), "none");
  EXPECT_EQ(describe(from({{"RANK", "one"}, {"WORLD_SIZE", "4"}})), "none");
}

}  // namespace
}  // namespace lockstep::launch
