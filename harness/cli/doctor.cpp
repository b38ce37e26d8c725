#include "harness/cli/doctor.hpp"

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

#include <fmt/core.h>
#include <sys/utsname.h>

#include "engine/comm/mpi_run.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/cuda/calls.hpp"
#include "engine/device/cuda/stand_in.hpp"
#include "engine/device/protection.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/tensor/ops.hpp"
#include "harness/cli/machine.hpp"
#include "harness/launch/environment.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/report/page.hpp"
#include "harness/report/text.hpp"

namespace lockstep::cli {

namespace {

// Prints a line per finding, and counts the findings that need a remedy.
class Findings {
 public:
  void fact(const std::string& what, const std::string& found) { fmt::print("  {:<18} {}\n", what, found); }
  void check(const std::string& what, bool well, const std::string& found, const std::string& remedy) {
    fmt::print("{}{:<18} {}\n", well ? "  " : "! ", what, found);
    if (!well) {
      fmt::print("  {:<18} remedy: {}\n", "", remedy);
      ++num_problems_;
    }
  }
  int num_problems() const { return num_problems_; }

 private:
  int num_problems_ = 0;
};

// Launches ranks that call `work`, which returns an error or an empty text. Returns the first error; empty when there
// is none.
std::string run_ranks(int world_size, launch::Launch how, std::string (*work)(int rank)) {
  launch::LaunchOptions options;
  options.world_size = world_size;
  options.launch = how;
  options.timeout_seconds = 20.0;
  const launch::LaunchResult result = launch::launch(options, [work](int rank) {
    verdict::RankOutcome outcome;
    outcome.rank = rank;
    outcome.detail = work(rank);
    return outcome;
  });
  std::string wrong;
  for (const verdict::RankOutcome& outcome : result.outcomes) {
    if (outcome.status != verdict::RankStatus::finished) wrong = verdict::describe_end(outcome);
    for (const verdict::Failure& failure : outcome.failures) wrong = failure.message;
    if (!outcome.detail.empty()) wrong = outcome.detail;
  }
  return wrong;
}

// Of two ranks. It needs the launch, shared memory and collectives to work.
std::string sum_over_ranks(int rank) {
  const Tensor mine = full({3}, rank + 1, DType::float32, {});
  comm::all_reduce(comm::world_group(), mine, comm::ReduceOp::sum);
  return item(slice(mine, 0, 0, 1)) == 3.0 ? "" : "the sum over two ranks is wrong";
}

// Each rank has operands of its own, so that a library that mixes up its threads gives another sum. float32 uses
// oneDNN, float64 OpenBLAS.
std::string multiply_at_once(int rank) {
  constexpr int side = 48, num_products = 200;
  for (const DType dtype : {DType::float32, DType::float64}) {
    const Tensor a = full({side, side}, rank + 1, dtype, {}), b = full({side, side}, rank + 2, dtype, {});
    for (int i = 0; i < num_products; ++i) {
      if (item(raw::sum(raw::matmul(a, b))) != 1.0 * side * side * side * (rank + 1) * (rank + 2))
        return "wrong products of 8 threads at once";
    }
  }
  return "";
}

void check_launch(Findings& findings, const char* what, launch::Launch how) {
  std::string wrong;
  try {
    wrong = run_ranks(2, how, sum_over_ranks);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  findings.check(what, wrong.empty(), wrong.empty() ? "two ranks started and summed" : wrong,
                 "follow the message; allow this user more processes (ulimit -u) or more shared memory");
}

// A machine without a GPU is well: its cases on cuda are UNSUPPORTED. This initialises CUDA, so no rank is forked
// later.
void show_gpus(Findings& findings) {
  if (device::cuda::gpus_of_stand_in() > 0) return;  // a fact of the machine names it
  try {
    device::cuda::Calls& cuda = device::cuda::calls();
    const int count = cuda.num_devices();
    const int version = cuda.driver_version();
    findings.fact("CUDA", str(report::plural(count, "GPU"), "; the driver supports CUDA ", version / 1000, ".",
                              version % 1000 / 10));
    for (int number = 0; number < count; ++number) {
      const device::cuda::DeviceProperties gpu = cuda.properties_of(number);
      findings.fact("", str("GPU ", number, ": ", gpu.name, ", ", gpu.total_bytes >> 20, " MiB"));
    }
  } catch (const Error& error) {
    findings.fact("CUDA", str("cases are UNSUPPORTED: ", error.message()));
  }
}

// Which processes the environment belongs to, and the link over which a run would find the others.
void check_link(Findings& findings) {
  const std::string mpi = comm::mpi_facts();
  findings.fact("MPI", comm::mpi_is_built_in() ? mpi : str(mpi, "; hosts are linked by TCP"));
  const char* chosen = std::getenv("LOCKSTEP_LINK");
  const std::string wish = chosen == nullptr ? "" : chosen;
  try {
    const launch::LaunchEnvironment found = launch::recognize_environment();
    findings.check("launch variables", true, launch::describe(found), "");
    for (const auto& [name, value] : found.variables) findings.fact("", str(name, "=", value));
    const launch::LinkChoice choice = launch::choose_link(found, wish, comm::mpi_is_built_in() ? "" : mpi);
    constexpr const char* names[] = {"none", "MPI", "TCP"};
    findings.check("link", true, str(names[static_cast<int>(choice.kind)], ": ", choice.why), "");
  } catch (const Error& error) {
    if (wish == "none") return findings.fact("link", "none: LOCKSTEP_LINK=none");  // no run looks at the variables
    findings.check("link", false, error.message(), error.remedy());
  }
}

}  // namespace

int doctor() {
  Findings findings;
  fmt::print("lockstep {}\n", version());
  for (const auto& [name, value] : build_facts()) findings.fact(name, value);
  for (const auto& [name, value] : machine_facts()) findings.fact(name, value);

  // Ranks are forked from this process, so they come before its own matrix products.
  check_launch(findings, "process ranks", launch::Launch::process);
  check_launch(findings, "thread ranks", launch::Launch::thread);

  std::string lacking, settings;
  for (const auto& [name, value] : kernels::missing_blas_environment()) {
    lacking += str(lacking.empty() ? "without " : ", ", name);
    settings += str(settings.empty() ? "set " : ", ", name, "=", value);
  }
  findings.check("BLAS environment", lacking.empty(),
                 lacking.empty() ? str(kernels::blas_threads(), " thread per rank, code for this processor") : lacking,
                 settings + " before the program starts");
  const std::string wrong = run_ranks(8, launch::Launch::thread, multiply_at_once);
  findings.check("BLAS and threads", wrong.empty(),
                 wrong.empty() ? "8 threads multiply at once, all products are right" : wrong,
                 "install libopenblas-pthread-dev and build again; the serial variant is not thread-safe");

  std::error_code ignored;
  const auto space = std::filesystem::space(std::filesystem::temp_directory_path(ignored), ignored);
  findings.check("temporary folder", !ignored && space.available > (std::uintmax_t{64} << 20),
                 ignored ? ignored.message() : str(static_cast<std::int64_t>(space.available >> 20), " MiB free"),
                 "set TMPDIR to a folder with at least 64 MiB free");
  const std::int64_t memory = available_memory();
  findings.check("memory available", memory > (std::int64_t{512} << 20), str(memory >> 20, " MiB"),
                 "end other programs; cases need about 512 MiB");

  const char* home = std::getenv("LOCKSTEP_HOME");
  try {
    findings.check("scenarios", true,
                   str(scenarios_folder(), home != nullptr && *home != '\0' ? ", from LOCKSTEP_HOME" : ""), "");
  } catch (const Error& error) {
    findings.check("scenarios", false, error.message(), error.remedy());
  }

  std::string python;
  try {
    python = report::find_report_python();
  } catch (const Error& error) {
    findings.check("Python", false, error.message(), error.remedy());
  }
  if (!python.empty()) findings.check("Python", true, python + ", with matplotlib and jinja2", "");

  findings.fact("memory of sim", describe(device::protection()));
  show_gpus(findings);
  check_link(findings);
  if (findings.num_problems() > 0) fmt::print("{} found\n", report::plural(findings.num_problems(), "problem"));
  return findings.num_problems() == 0 ? 0 : 1;
}

}  // namespace lockstep::cli
