// Facts of the machine and the build, for the first row of a results file and for `lockstep doctor`.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lockstep::cli {

std::map<std::string, std::string> build_facts();    // compiler, kokkos, kokkos_backends, blas
std::map<std::string, std::string> machine_facts();  // cores, memory, cpu
std::string version();
int num_cores();                  // cores that this process may use
int default_jobs();               // cases at once: 1.5 per core, because ranks often wait for each other
std::int64_t available_memory();  // bytes
// The folders scenarios/ and reports/ that come with the program. LOCKSTEP_HOME names another parent folder of both.
// Throws Error when the folder does not exist.
std::string scenarios_folder();
std::string reports_folder();
std::string utc_now();  // ISO 8601

}  // namespace lockstep::cli
