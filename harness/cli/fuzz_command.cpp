#include "harness/cli/fuzz_command.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/defects.hpp"
#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "harness/cli/interrupts.hpp"
#include "harness/cli/machine.hpp"
#include "harness/cli/run_cases.hpp"
#include "harness/fuzz/corpus.hpp"
#include "harness/fuzz/grammar.hpp"
#include "harness/fuzz/judge.hpp"
#include "harness/fuzz/placements.hpp"
#include "harness/fuzz/render.hpp"
#include "harness/fuzz/shrink.hpp"
#include "harness/report/text.hpp"

namespace lockstep::cli {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::uint64_t batch_size = 64;
using Rows = std::map<std::pair<std::string, std::string>, verdict::CaseResult>;  // by scenario and case

// A program with the tree that derives it, and its cases, one per placement.
struct Prepared {
  std::uint64_t index = 0;
  fuzz::Derivation tree;
  fuzz::Program program;
  std::vector<scenario::Case> cases;
};

std::string file_name_of(const fuzz::Program& program) { return fuzz::name_of(program) + ".yaml"; }

// Runs a program to its end and returns its exit code, or 128 and the signal that ended it.
int run_program(const std::vector<std::string>& command) {
  std::fflush(nullptr);
  std::vector<char*> arguments;
  arguments.reserve(command.size() + 1);
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  if (const int error = ::posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ); error != 0)
    throw resource_error(str("starting ", command[0]), error);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

class Fuzzer {
 public:
  explicit Fuzzer(const FuzzSettings& settings)
      : settings_(settings), library_(scenarios_folder()), start_(Clock::now()) {
    options_.jobs = settings.jobs > 0 ? settings.jobs : default_jobs();
    options_.order_check = settings.order_check;
    options_.each_rank_plans = true;
    if (!settings.defect.empty()) options_.repro_suffix = " --defect " + settings.defect;
  }

  // Writes the programs that bring the most pairs of features together.
  int keep() {
    std::vector<fuzz::Derivation> trees(static_cast<std::size_t>(settings_.programs > 0 ? settings_.programs : 1000));
    for (std::size_t i = 0; i < trees.size(); ++i) fuzz::program_of(settings_.seed, i, trees[i]);
    for (const std::size_t i : fuzz::with_most_pairs(trees, static_cast<std::size_t>(settings_.keeps))) {
      const fuzz::Program program = fuzz::derive(settings_.seed, i, trees[i]);
      const std::filesystem::path file = std::filesystem::path(settings_.output) / file_name_of(program);
      write(file, fuzz::render(program).yaml);
      fmt::print("{}\n", file.string());
    }
    return 0;
  }

  int run() {
    std::uint64_t next = settings_.program.value_or(0);
    const std::uint64_t end = settings_.program        ? next + 1
                              : settings_.programs > 0 ? static_cast<std::uint64_t>(settings_.programs)
                              : settings_.seconds > 0  ? UINT64_MAX
                                                       : 1000;
    while (next < end && !is_over()) {
      const std::uint64_t batch_end = std::min(end, next + batch_size);
      run_batch(next, batch_end);
      next = batch_end;
      if (interrupted()) return 130;
    }
    if (settings_.shows) return 0;
    const int result = summarize();
    return settings_.peer.empty() ? result : std::max(result, compare_with_peer());
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool is_out_of_time() const { return settings_.seconds > 0 && seconds() >= settings_.seconds; }
  bool is_over() const { return is_out_of_time() || num_disagreed_ >= settings_.most_failures; }

  fuzz::Rendered rendered(const fuzz::Program& program) const { return fuzz::render(program, !settings_.peer.empty()); }

  // One case per program; none if the language refuses one, for the reason in `refusal`.
  std::vector<scenario::Case> cases_of(const std::vector<fuzz::Program>& placements, std::string& refusal) {
    std::vector<scenario::Case> cases;
    try {
      for (const fuzz::Program& placed : placements)
        cases.push_back(scenario::expand(library_.load_text(rendered(placed).yaml, file_name_of(placed)), {}).at(0));
    } catch (const scenario::ScenarioError& error) {
      refusal = str("the language: ", error.what());
      cases.clear();
    }
    return cases;
  }

  void count_refusal(const std::string& kind, std::uint64_t index) {
    ++num_refused_;
    if (refusals_[kind]++ == 0) first_refused_[kind] = index;
  }

  void run_batch(std::uint64_t begin, std::uint64_t end) {
    std::vector<Prepared> batch;
    std::vector<scenario::Case> cases;
    for (std::uint64_t index = begin; index < end; ++index) {
      Prepared one;
      one.index = index;
      one.program = fuzz::program_of(settings_.seed, index, one.tree);
      if (settings_.shows) {
        fmt::print("{}", rendered(one.program).yaml);
        continue;
      }
      std::string refusal;
      one.cases = cases_of(fuzz::placements_of(one.program), refusal);
      cases.insert(cases.end(), one.cases.begin(), one.cases.end());
      if (!one.cases.empty()) {
        batch.push_back(std::move(one));
      } else {
        ++num_judged_;
        count_refusal(refusal, index);
      }
    }
    const Rows rows = run(cases, options_.jobs, [this](const verdict::CaseResult&) { return is_out_of_time(); });
    for (const Prepared& one : batch) {
      if (interrupted() || num_disagreed_ >= settings_.most_failures) return;
      std::vector<verdict::CaseResult> known = rows_of(one.cases, rows);
      std::erase_if(known, [](const verdict::CaseResult& row) { return row.status == verdict::Status::MISSING; });
      // Of a program that the end of the time has cut short, only a failure counts.
      const bool fails = std::any_of(known.begin(), known.end(), [](const verdict::CaseResult& row) {
        return fuzz::outcome_of(row) == fuzz::Outcome::disagrees;
      });
      if (fails || known.size() == one.cases.size()) judge(one, known);
    }
  }

  Rows run(const std::vector<scenario::Case>& cases, int jobs,
           const std::function<bool(const verdict::CaseResult&)>& enough = {}) {
    RunCasesOptions options = options_;
    options.jobs = jobs;
    options.enough = enough;
    Rows rows;
    const RunCasesOutcome outcome = run_cases(library_, cases, options, [&](const verdict::CaseResult& row) {
      rows.insert_or_assign({row.scenario, row.case_id}, row);
    });
    if (!outcome.machine_error.empty()) throw ResourceError(outcome.machine_error);
    return rows;
  }

  static std::vector<verdict::CaseResult> rows_of(const std::vector<scenario::Case>& cases, const Rows& rows) {
    std::vector<verdict::CaseResult> found;
    found.reserve(cases.size());
    for (const scenario::Case& one : cases) found.push_back(rows.at({one.scenario->name, one.id}));
    return found;
  }

  // A program that one placement refuses and another does not is a disagreement.
  void judge(const Prepared& one, const std::vector<verdict::CaseResult>& rows) {
    ++num_judged_;
    const verdict::CaseResult row = fuzz::verdict_of(one.program, rows);
    if (row.evidence.bits_required > 0) ++num_exact_;
    const bool is_refused = std::all_of(rows.begin(), rows.end(), [](const verdict::CaseResult& each) {
      return fuzz::outcome_of(each) == fuzz::Outcome::refused;
    });
    if (is_refused) {
      count_refusal(fuzz::kind_of_refusal(row), one.index);
    } else if (fuzz::outcome_of(row) != fuzz::Outcome::agrees) {
      report(one, row);
    } else if (!settings_.peer.empty()) {
      add_for_peer(one, rows.front());
    }
  }

  // The runs that show a failure: all of them where their peaks differ, otherwise the one that failed.
  static std::vector<fuzz::Program> failing_placements(const fuzz::Program& program, const verdict::CaseResult& row) {
    std::vector<fuzz::Program> placements = fuzz::placements_of(program);
    if (!fuzz::is_of_peaks(row))
      std::erase_if(placements, [&](const fuzz::Program& placed) {
        return placed.device != row.device || placed.launch != row.launch ||
               "fuzz/" + fuzz::name_of(placed) != row.scenario;
      });
    return placements;
  }

  void report(const Prepared& failing, const verdict::CaseResult& row) {
    ++num_disagreed_;
    const std::string wanted = fuzz::signature_of(row);
    fuzz::Program smallest = failing_placements(failing.program, row).at(0);
    verdict::CaseResult last = row;
    int num_runs = 0;
    const fuzz::Derivation small = fuzz::shrink(failing.tree, settings_.most_runs, [&](fuzz::Derivation& candidate) {
      if (interrupted()) return false;
      const fuzz::Program program = fuzz::derive(settings_.seed, failing.index, candidate);
      const std::vector<fuzz::Program> placements = failing_placements(program, row);
      std::string refusal;
      const std::vector<scenario::Case> cases = cases_of(placements, refusal);
      ++num_runs;
      if (cases.empty()) return false;
      const Rows rows = run(cases, 1);
      if (interrupted()) return false;
      const verdict::CaseResult again = fuzz::verdict_of(program, rows_of(cases, rows));
      if (fuzz::signature_of(again) != wanted) return false;
      smallest = placements.front();
      last = again;
      return true;
    });
    const std::string repeat = str("lockstep fuzz --seed ", settings_.seed, " --program ", failing.index,
                                   settings_.defect.empty() ? "" : " --defect " + settings_.defect);
    const std::string message = last.failure ? last.failure->message : last.reason;
    const std::filesystem::path file = std::filesystem::path(settings_.output) / file_name_of(failing.program);
    write(file, str("# ", repeat, "\n# ", printable_line(str(wanted, ": ", message)), "\n", rendered(smallest).yaml));
    fmt::print(
        "DISAGREES  program {} {}: {}\n           {}\n           shrunk from {} to {} choices in {} runs: {}\n"
        "           {}\n",
        failing.index, fuzz::place_of(last), wanted, printable_line(message), failing.tree.size(), small.size(),
        num_runs, file.string(), repeat);
    std::fflush(stdout);
  }

  static void write(const std::filesystem::path& path, const std::string& text) {
    std::error_code ignored;
    std::filesystem::create_directories(path.parent_path(), ignored);
    std::ofstream file(path);
    file << text << std::flush;
    if (!file) throw Error(str("cannot write ", path.string()), "name a folder that can be written with --output");
  }

  // The values of the first rank; those of the others agree with them, because each computes them alone.
  void add_for_peer(const Prepared& one, const verdict::CaseResult& row) {
    std::string records;
    for (const auto& [name, of_ranks] : row.records)
      records += str(records.empty() ? "" : ", ", "\"", name, "\": ", of_ranks.at(0));
    for_peer_ += str("{\"index\": ", one.index, ", \"scenario\": ", rendered(one.program).json, ", \"records\": {",
                     records, "}}\n");
  }

  // Runs ci/fuzz_torch.py once over all programs that agree here. It prints what differs.
  int compare_with_peer() {
    const std::filesystem::path script = std::filesystem::path(scenarios_folder()).parent_path() / "ci/fuzz_torch.py";
    if (!std::filesystem::exists(script))
      throw Error(str("--peer: there is no ", script.string()), "run in a checkout of the source");
    const std::filesystem::path programs = std::filesystem::path(settings_.output) / "programs_for_peer.jsonl";
    write(programs, for_peer_);
    const int status = run_program({settings_.peer, script.string(), programs.string()});
    std::error_code ignored;
    if (status == 0) std::filesystem::remove(programs, ignored);
    return status == 0 ? 0 : 1;
  }

  int summarize() {
    const double share =
        num_judged_ > 0 ? 100.0 * static_cast<double>(num_refused_) / static_cast<double>(num_judged_) : 0.0;
    for (const auto& [kind, count] : refusals_)
      fmt::print("refused    {}, first {}: {}\n", report::plural(count, "program"), first_refused_.at(kind),
                 printable_line(kind));
    fmt::print(
        "seed {}: {} in {:.1f} s ({:.1f} per second); {} with required bits, {} refused ({:.2f} %), {} disagree\n",
        settings_.seed, report::plural(num_judged_, "program"), seconds(),
        static_cast<double>(num_judged_) / std::max(seconds(), 1e-9), num_exact_, num_refused_, share, num_disagreed_);
    return num_judged_ == 0 || num_disagreed_ > 0 || share >= 2.0 ? 1 : 0;
  }

  const FuzzSettings& settings_;
  scenario::Library library_;
  RunCasesOptions options_;
  Clock::time_point start_;
  std::int64_t num_judged_ = 0, num_refused_ = 0, num_exact_ = 0;
  int num_disagreed_ = 0;
  std::string for_peer_;  // JSON lines
  std::map<std::string, std::int64_t> refusals_;
  std::map<std::string, std::uint64_t> first_refused_;
};

}  // namespace

int fuzz_command(const FuzzSettings& settings) {
  catch_interrupts();
  if (!settings.defect.empty()) arm_defect(defect_from_name(settings.defect));
  Fuzzer fuzzer(settings);
  return settings.keeps > 0 ? fuzzer.keep() : fuzzer.run();
}

}  // namespace lockstep::cli
