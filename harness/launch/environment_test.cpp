#include "harness/launch/environment.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;
using Variables = std::vector<std::pair<std::string, std::string>>;

LaunchEnvironment from(const Variables& variables) {
  return recognize_environment([&](const char* name) -> const char* {
    for (const auto& [key, value] : variables)
      if (key == name) return value.c_str();
    return nullptr;
  });
}

std::string refusal(const Variables& variables) {
  try {
    return "accepted: " + describe(from(variables));
  } catch (const Error& error) {
    EXPECT_FALSE(error.remedy().empty());
    return error.message();
  }
}

const Variables torch_variables = {{"RANK", "1"},
                                   {"WORLD_SIZE", "4"},
                                   {"LOCAL_RANK", "1"},
                                   {"LOCAL_WORLD_SIZE", "2"},
                                   {"MASTER_ADDR", "node0"},
                                   {"MASTER_PORT", "29500"}};
const Variables slurm_variables = {{"SLURM_PROCID", "3"},     {"SLURM_NTASKS", "8"},
                                   {"SLURM_LOCALID", "1"},    {"SLURM_STEP_NODELIST", "node[03-07,9]"},
                                   {"SLURM_JOB_ID", "13005"}, {"SLURM_STEP_ID", "2"}};

Variables with(Variables variables, const Variables& more) {
  variables.insert(variables.end(), more.begin(), more.end());
  return variables;
}

TEST(Environment, RecognizesLaunchers) {
  EXPECT_EQ(describe(from({})), "none");
  EXPECT_EQ(describe(from(torch_variables)), "torchrun: rank 1 of 4 (local rank 1 of 2), rendezvous at node0:29500");
  EXPECT_EQ(describe(from({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})), "mpirun: rank 0 of 2");
  EXPECT_EQ(describe(from({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "0"}})),
            "mpirun: rank 2 of 3 (local rank 0)");
  EXPECT_EQ(describe(from(slurm_variables)), "srun: rank 3 of 8 (local rank 1), rendezvous at node03:21007");
  EXPECT_FALSE(from({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).is_several());
  EXPECT_TRUE(from(torch_variables).is_several());
}

TEST(Environment, IgnoresHalfOfALauncher) {
  EXPECT_EQ(describe(from({{"RANK", "one"}})), "none");
  EXPECT_EQ(describe(from({{"WORLD_SIZE", "4"}})), "none");
  // A batch script of Slurm runs once, although it has the variables of a task.
  EXPECT_EQ(describe(from({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "1"}})), "none");
  EXPECT_EQ(from({{"RANK", "one"}}).variables, (Variables{{"RANK", "one"}}));
}

TEST(Environment, TakesTheInnermostLauncher) {
  EXPECT_EQ(from(with(slurm_variables, {{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "6"}})).rank, 5);
  // One torchrun per machine, started by srun.
  const Variables nested = with(with(slurm_variables, torch_variables), {{"TORCHELASTIC_RUN_ID", "x"}});
  EXPECT_EQ(from(nested).launcher, "torchrun");
  EXPECT_EQ(from(nested).rank, 1);
  // A script that gives the ranks of mpirun the variables of torchrun too.
  const LaunchEnvironment both =
      from(with(torch_variables, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}));
  EXPECT_EQ(both.launcher, "mpirun");
  EXPECT_EQ(both.address, "node0");
}

TEST(Environment, RefusesContradictions) {
  EXPECT_EQ(refusal({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), "launch variables: RANK=4 is not below WORLD_SIZE=4");
  EXPECT_EQ(refusal({{"RANK", "one"}, {"WORLD_SIZE", "4"}}), "launch variables: RANK=one is no number");
  EXPECT_EQ(refusal({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), "launch variables: RANK=-1 is no number");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2000000000"}}),
            "launch variables: WORLD_SIZE=2000000000 is more than 65536");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
            "launch variables: LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2");
  EXPECT_EQ(refusal(with(torch_variables, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}})),
            "launch variables: RANK=1 of WORLD_SIZE=4, but mpirun says rank 0 of 2");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "70000"}}),
            "launch variables: MASTER_PORT=70000 is no port");
}

TEST(Environment, KnowsThatTheAgentOfTorchrunHoldsThePort) {
  EXPECT_EQ(from(with(torch_variables, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).port, 29501);
  EXPECT_EQ(from(with(torch_variables, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).port, 29500);
}

TEST(Environment, ExpandsTheFirstHostOfAList) {
  EXPECT_EQ(first_host("a"), "a");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("node[03-07,9],x"), "node03");
  EXPECT_EQ(first_host("node[12,14]"), "node12");
  EXPECT_EQ(first_host("node[5]-ib,b"), "node5-ib");
  EXPECT_EQ(first_host("a,node[1-2]"), "a");
}

TEST(Link, IsChosenByTheLauncherAndTheBuild) {
  const LaunchEnvironment mpirun = from({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  const LaunchEnvironment torch = from(torch_variables), slurm = from(slurm_variables);
  const LaunchEnvironment pmix = from(with(slurm_variables, {{"PMIX_RANK", "3"}}));
  EXPECT_EQ(choose_link(from({}), "", "").kind, LinkKind::none);
  EXPECT_EQ(choose_link(from({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "", "").kind, LinkKind::none);
  EXPECT_EQ(choose_link(mpirun, "", "").kind, LinkKind::mpi);
  EXPECT_EQ(choose_link(mpirun, "none", "").kind, LinkKind::none);
  EXPECT_EQ(choose_link(torch, "", "").kind, LinkKind::tcp);
  EXPECT_EQ(choose_link(slurm, "", "").kind, LinkKind::tcp);
  EXPECT_EQ(choose_link(pmix, "", "").kind, LinkKind::mpi);
  EXPECT_EQ(choose_link(pmix, "", "not built in: no mpi.h").kind, LinkKind::tcp);
  EXPECT_EQ(choose_link(pmix, "tcp", "").kind, LinkKind::tcp);
}

TEST(Link, IsRefusedWithTheReason) {
  const LaunchEnvironment mpirun = from({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  const auto message = [](const LaunchEnvironment& environment, const char* wish, const char* missing) -> std::string {
    try {
      choose_link(environment, wish, missing);
      return "accepted";
    } catch (const Error& error) {
      EXPECT_FALSE(error.remedy().empty());
      return error.message();
    }
  };
  EXPECT_THAT(message(mpirun, "mpi", "not built in: no mpi.h"), HasSubstr("MPI is not built in: no mpi.h"));
  EXPECT_THAT(message(mpirun, "", "not built in: no mpi.h"),
              HasSubstr("TCP needs MASTER_ADDR and MASTER_PORT, and mpirun sets none"));
  EXPECT_THAT(message(mpirun, "tcp", ""), HasSubstr("TCP needs MASTER_ADDR"));
  EXPECT_THAT(message(from(torch_variables), "mpi", ""), HasSubstr("MPI cannot find the processes that torchrun"));
  EXPECT_THAT(message(from({}), "tcp", ""), HasSubstr("no variable of these is set"));
  EXPECT_THAT(message(mpirun, "ucx", ""), HasSubstr("`ucx` is none"));
}

}  // namespace
}  // namespace lockstep::launch
