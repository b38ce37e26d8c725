#include "harness/launch/environment.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "engine/core/text.hpp"

namespace lockstep::launch {

namespace {

struct Dialect {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* host;  // may be null
  const char* port;  // may be null
};

// The first one whose rank and world size are both set wins. torchrun comes first, because it may itself run under
// srun.
constexpr Dialect dialects[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", nullptr, nullptr},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", nullptr, nullptr},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_LAUNCH_NODE_IPADDR", nullptr},
};

std::optional<int> number(const char* text) {
  if (text == nullptr) return {};
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != '\0' || value < 0) return {};
  return value;
}

}  // namespace

LaunchEnvironment recognize_environment(const std::function<const char*(const char*)>& get) {
  const auto look = [&](const char* name) -> const char* {
    if (name == nullptr) return nullptr;
    return get ? get(name) : std::getenv(name);
  };
  LaunchEnvironment found;
  for (const Dialect& dialect : dialects) {
    for (const char* name : {dialect.rank, dialect.world_size, dialect.local_rank, dialect.host, dialect.port})
      if (const char* value = look(name)) found.variables.emplace_back(name, value);
    if (!found.launcher.empty()) continue;
    const std::optional<int> rank = number(look(dialect.rank)), world_size = number(look(dialect.world_size));
    if (!rank || !world_size || *rank >= *world_size) continue;
    found.launcher = dialect.launcher;
    found.rank = rank;
    found.world_size = world_size;
    found.local_rank = number(look(dialect.local_rank));
    if (const char* host = look(dialect.host)) {
      found.rendezvous = host;
      if (const char* port = look(dialect.port)) found.rendezvous += str(":", port);
    }
  }
  return found;
}

std::string describe(const LaunchEnvironment& environment) {
  if (environment.launcher.empty()) return "none";
  std::string out = str(environment.launcher, ": rank ", *environment.rank, " of ", *environment.world_size);
  if (environment.local_rank) out += str(" (local rank ", *environment.local_rank, ")");
  if (!environment.rendezvous.empty()) out += str(", rendezvous at ", environment.rendezvous);
  return out;
}

}  // namespace lockstep::launch
