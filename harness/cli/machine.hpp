// What machine and build this is: for the first row of a results file and for doctor.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lockstep::cli {

std::map<std::string, std::string> build_facts();    // compiler, kokkos, kokkos_backends, blas
std::map<std::string, std::string> machine_facts();  // cores, memory, cpu
std::string version();
int num_cores();                  // that this process may use
int default_jobs();               // cases at once: half as many again as cores, as ranks wait for each other
std::int64_t available_memory();  // bytes
// The folder `scenarios` that came with the program, and the one of the reports; LOCKSTEP_HOME (their parent)
// overrides. Throws Error when they are not there.
std::string scenarios_folder();
std::string reports_folder();
std::string utc_now();  // ISO 8601

}  // namespace lockstep::cli
