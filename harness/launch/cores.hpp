// The cores that the ranks of a host may use. mpirun and srun bind each of their processes to a core of its own, and
// the launcher forks the ranks of all of them.
#pragma once

namespace lockstep::launch {

// Lets this process, and the ranks that it forks, run on the cores of all `num_processes` processes of this run on this
// machine: those that the same parent has started from the same program. Where fewer are found, because a script stands
// between, on all cores that the machine gives to this process. Returns the number of cores.
int use_cores_of_processes(int num_processes);

// Lets this process run on one of its cores only: the one with this number, modulo how many it has. A thread that
// hands over to another on the same core does so several times as fast.
void use_one_core(int number);

}  // namespace lockstep::launch
