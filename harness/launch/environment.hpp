// Recognizes the environment variables with which mpirun, srun and torchrun start processes, and chooses the link over
// which these processes find each other. Pure functions of the variables.
//
//   const LaunchEnvironment found = recognize_environment();
//   const LinkChoice choice = choose_link(found, "", mpi_is_missing);
//
// Where the names come from: Open MPI, orte/mca/schizo/ompi; Slurm, srun(1), "Output environment variables"; PyTorch,
// torch.distributed.run, "Environment variables".
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::launch {

struct LaunchEnvironment {
  std::string launcher;  // "mpirun" (Open MPI, MPICH), "srun", "torchrun", or "" when none is seen
  std::optional<int> rank, world_size, local_rank, local_world_size;
  // Where the process of rank 0 listens, for TCP. Empty and 0 where the variables give none.
  std::string address;
  int port = 0;
  bool has_process_manager = false;                            // MPI can ask it for the other processes
  std::vector<std::pair<std::string, std::string>> variables;  // all recognized variables and their values

  // More than one process was started.
  bool is_several() const { return world_size.value_or(1) > 1; }
};

// Reads variables through `get`, which returns null for one that is not set; by default std::getenv. Throws Error for
// values that contradict each other: a rank that is no number or not below the world size, two launchers that give
// different ranks, a port that is none.
LaunchEnvironment recognize_environment(const std::function<const char*(const char*)>& get = {});
// "torchrun: rank 1 of 4 (local rank 1 of 2), rendezvous at node0:29500"; "none" without a launcher.
std::string describe(const LaunchEnvironment& environment);
// The first host of a list as Slurm writes it: "node[03-07,9],x" gives "node03".
std::string first_host(const std::string& list);

enum class LinkKind { none, mpi, tcp };
struct LinkChoice {
  LinkKind kind = LinkKind::none;
  std::string why;  // "mpirun started this process", for `lockstep doctor`
};
// `wish` is "mpi", "tcp", "none" (the process runs alone) or "" (MPI if a process manager started the process and MPI
// is built in, else TCP). `mpi_missing` says why MPI is not built in; empty: it is. Throws Error when there is no such
// link.
LinkChoice choose_link(const LaunchEnvironment& environment, const std::string& wish, const std::string& mpi_missing);

}  // namespace lockstep::launch
