#include "harness/launch/environment.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "engine/core/error.hpp"

namespace lockstep::launch {

namespace {

using Look = std::function<const char*(const char*)>;

struct Dialect {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};
constexpr Dialect torchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Dialect open_mpi{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Dialect pmi{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Dialect slurm{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr};

constexpr const char* other_variables[] = {
    "PMIX_RANK",   "SLURM_NTASKS", "SLURM_NODEID",        "SLURM_STEP_NODELIST", "SLURM_JOB_ID",  "SLURM_STEP_ID",
    "MASTER_ADDR", "MASTER_PORT",  "TORCHELASTIC_RUN_ID", "LOCKSTEP_LINK",       "LOCKSTEP_HOSTS"};

constexpr const char* run_alone = "to run this process alone, give --link none";

std::optional<int> number(const char* name, const char* text) {
  if (name == nullptr || text == nullptr) return {};
  int value = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != '\0' || value < 0)
    throw Error(str("launch variables: ", name, "=", text, " is no number"),
                str("unset it, or start the processes by mpirun, srun or torchrun; ", run_alone));
  return value;
}

// The number of a variable that may be missing from a dialect.
std::optional<int> read(const Look& look, const char* name) {
  return name == nullptr ? std::nullopt : number(name, look(name));
}

// The processes of one dialect; nothing unless rank and world size are both set.
std::optional<LaunchEnvironment> read(const Look& look, const Dialect& dialect) {
  if (look(dialect.rank) == nullptr || look(dialect.world_size) == nullptr) return {};
  LaunchEnvironment found;
  found.launcher = dialect.launcher;
  found.rank = read(look, dialect.rank);
  found.world_size = read(look, dialect.world_size);
  found.local_rank = read(look, dialect.local_rank);
  found.local_world_size = read(look, dialect.local_world_size);
  const auto refuse = [&](const char* name, int value, const char* limit_name, int limit) {
    throw Error(str("launch variables: ", name, "=", value, " is not below ", limit_name, "=", limit),
                str("start all processes by one ", dialect.launcher, " command, or unset both; ", run_alone));
  };
  if (*found.rank >= *found.world_size) refuse(dialect.rank, *found.rank, dialect.world_size, *found.world_size);
  constexpr int most_processes = 65536;
  if (*found.world_size > most_processes)
    throw Error(str("launch variables: ", dialect.world_size, "=", *found.world_size, " is more than ", most_processes),
                str("start fewer processes, or unset it; ", run_alone));
  if (found.local_rank && found.local_world_size && *found.local_rank >= *found.local_world_size)
    refuse(dialect.local_rank, *found.local_rank, dialect.local_world_size, *found.local_world_size);
  return found;
}

// The variables of a step that srun started. A batch script has SLURM_PROCID too, but runs once.
std::optional<LaunchEnvironment> read_slurm(const Look& look) {
  if (look("SLURM_STEP_NODELIST") == nullptr) return {};
  Dialect dialect = slurm;
  if (look(dialect.world_size) == nullptr) dialect.world_size = "SLURM_NTASKS";
  return read(look, dialect);
}

// The dialect whose launcher is the innermost.
LaunchEnvironment innermost(const Look& look) {
  const std::optional<LaunchEnvironment> torch = read(look, torchrun);
  std::optional<LaunchEnvironment> outer = read(look, open_mpi);
  if (!outer) outer = read(look, pmi);
  if (!outer) outer = read_slurm(look);
  if (!torch) return outer.value_or(LaunchEnvironment{});
  if (!outer) return *torch;
  if (torch->rank == outer->rank && torch->world_size == outer->world_size) return *outer;
  // mpirun or srun starts one torchrun per machine.
  if (look("TORCHELASTIC_RUN_ID") != nullptr) return *torch;
  throw Error(str("launch variables: RANK=", *torch->rank, " of WORLD_SIZE=", *torch->world_size, ", but ",
                  outer->launcher, " says rank ", *outer->rank, " of ", *outer->world_size),
              str("unset RANK and WORLD_SIZE; ", run_alone));
}

int read_port(const Look& look) {
  const std::optional<int> port = read(look, "MASTER_PORT");
  if (port && (*port < 1 || *port > 65534))
    throw Error(str("launch variables: MASTER_PORT=", *port, " is no port"), "set it to 1024 to 65534");
  return port.value_or(0);
}

void find_rendezvous(const Look& look, LaunchEnvironment& found) {
  const char* address = look("MASTER_ADDR");
  found.address = address == nullptr ? "" : address;
  found.port = read_port(look);
  // The agent of torchrun listens on MASTER_PORT itself.
  const char* agent = look("TORCHELASTIC_USE_AGENT_STORE");
  if (found.launcher == "torchrun" && found.port != 0 && agent != nullptr && std::strcmp(agent, "True") == 0)
    ++found.port;
  if (found.launcher != "srun") return;
  if (found.address.empty()) found.address = first_host(look("SLURM_STEP_NODELIST"));
  if (found.port == 0) {
    const int job = read(look, "SLURM_JOB_ID").value_or(0), step = read(look, "SLURM_STEP_ID").value_or(0);
    found.port = 20000 + (job % 12000 + step % 12000) % 12000;  // below the ports that the system gives to clients
  }
}

}  // namespace

LaunchEnvironment recognize_environment(const std::function<const char*(const char*)>& get) {
  const Look look = [&](const char* name) -> const char* { return get ? get(name) : std::getenv(name); };
  LaunchEnvironment found = innermost(look);
  if (!found.launcher.empty()) find_rendezvous(look, found);
  found.has_process_manager = found.launcher == "mpirun" || (found.launcher == "srun" && look("PMIX_RANK") != nullptr);
  for (const Dialect& dialect : {torchrun, open_mpi, pmi, slurm})
    for (const char* name : {dialect.rank, dialect.world_size, dialect.local_rank, dialect.local_world_size})
      if (name != nullptr && look(name) != nullptr) found.variables.emplace_back(name, look(name));
  for (const char* name : other_variables)
    if (look(name) != nullptr) found.variables.emplace_back(name, look(name));
  return found;
}

std::string describe(const LaunchEnvironment& environment) {
  if (environment.launcher.empty()) return "none";
  std::string out = str(environment.launcher, ": rank ", *environment.rank, " of ", *environment.world_size);
  if (environment.local_rank) {
    out += str(" (local rank ", *environment.local_rank);
    if (environment.local_world_size) out += str(" of ", *environment.local_world_size);
    out += ")";
  }
  if (!environment.address.empty() && environment.port != 0)
    out += str(", rendezvous at ", environment.address, ":", environment.port);
  return out;
}

std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket);
  const std::size_t close = list.find(']', bracket);
  if (close == std::string::npos) return list.substr(0, bracket);
  const std::size_t rest = list.find(',', close);
  const std::string after = list.substr(close + 1, rest == std::string::npos ? rest : rest - close - 1);
  return str(list.substr(0, bracket), list.substr(bracket + 1, end - bracket - 1), after);
}

LinkChoice choose_link(const LaunchEnvironment& environment, const std::string& wish, const std::string& mpi_missing) {
  const auto refuse = [&](const std::string& what, const std::string& remedy) -> LinkChoice {
    throw Error(str("link: ", what), str(remedy, remedy.empty() ? "" : "; ", run_alone));
  };
  if (wish == "none") return {LinkKind::none, "--link none"};
  if (!wish.empty() && wish != "mpi" && wish != "tcp")
    throw Error(str("link: `", wish, "` is none"), "give mpi, tcp or none (--link, LOCKSTEP_LINK)");
  if (environment.launcher.empty()) {
    if (!wish.empty())
      refuse(str(wish, " needs processes that mpirun, srun or torchrun started, and no variable of these is set"),
             "start lockstep by one of them");
    return {LinkKind::none, "no launcher started this process"};
  }
  if (!environment.is_several()) return {LinkKind::none, str(environment.launcher, " started one process")};
  const bool has_rendezvous = !environment.address.empty() && environment.port != 0;
  if (wish == "mpi") {
    if (!mpi_missing.empty()) refuse(str("MPI is ", mpi_missing), "give --link tcp");
    if (!environment.has_process_manager)
      refuse(str("MPI cannot find the processes that ", environment.launcher, " started"),
             "start them by mpirun, or by srun --mpi=pmix, or give --link tcp");
    return {LinkKind::mpi, "--link mpi"};
  }
  if (wish.empty() && environment.has_process_manager && mpi_missing.empty())
    return {LinkKind::mpi, str(environment.launcher, " started this process")};
  if (!has_rendezvous)
    refuse(str("TCP needs MASTER_ADDR and MASTER_PORT, and ", environment.launcher, " sets none",
               wish.empty() && !mpi_missing.empty() ? str("; MPI is ", mpi_missing) : ""),
           "set MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a free port there, on every process");
  return {LinkKind::tcp,
          !wish.empty() ? std::string("--link tcp") : str(environment.launcher, " gives address and port")};
}

}  // namespace lockstep::launch
