// Runs a scenario given as text within a test: one rank on this thread, or several ranks from the launcher.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "engine/core/defects.hpp"
#include "engine/core/rank_context.hpp"
#include "harness/launch/launcher.hpp"
#include "harness/run/case_runner.hpp"
#include "harness/run/trace/plan_board.hpp"

namespace lockstep::run::testing_support {

struct TextOptions {
  int world_size = 1;
  std::string device = "cpu";
  std::string launch = "thread";
  std::string head;       // further keys of the file, each on its own line
  std::string routines;   // "name\n---\ntext of the routine", or empty
  std::size_t index = 0;  // of the case to run
  RankLimits limits{};
  std::string* trace = nullptr;  // gets the trace of bits of the first rank
};

struct Ran {
  std::vector<verdict::RankOutcome> outcomes;
  verdict::CaseResult result;
  // "check line: message" of each failure of a rank.
  std::vector<std::string> failures(int rank = 0) const {
    std::vector<std::string> texts;
    for (const verdict::Failure& failure : outcomes.at(static_cast<std::size_t>(rank)).failures)
      texts.push_back(str(failure.check, " ", failure.line, ": ", failure.message));
    return texts;
  }
  const verdict::Evidence& evidence(int rank = 0) const { return outcomes.at(static_cast<std::size_t>(rank)).evidence; }
};

// The first step is in line 2 of the file unless `steps` begins with a newline; failures show lines of the file.
inline Ran run_steps(const std::string& steps, const TextOptions& options = {}) {
  std::string text = steps;
  if (!text.ends_with('\n')) text += '\n';
  // "steps:" is line 1.
  text = str("steps:\n", text, "scenario: test/text\nsummary: A test.\nranks: {world_size: [", options.world_size,
             "], launch: ", options.launch, "}\n", options.head);
  static int counter = 0;
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / str("lockstep_run_test_", ::getpid(), "_", counter++);
  std::filesystem::create_directories(folder / "scenarios" / "lib");
  std::filesystem::create_directories(folder / "case");
  scenario::Library library((folder / "scenarios").string());
  if (!options.routines.empty()) {
    const std::size_t cut = options.routines.find("\n---\n");
    library.add_routine(options.routines.substr(0, cut), options.routines.substr(cut + 5));
  }
  const std::shared_ptr<const scenario::Scenario> scenario = library.load_text(text, "text.yaml");
  scenario::ExpandOptions expand_options;
  expand_options.device = options.device;
  const std::vector<scenario::Case> cases = scenario::expand(scenario, expand_options);
  CaseSpec spec;
  spec.scenario = scenario.get();
  spec.test_case = &cases.at(options.index);
  spec.library = &library;
  spec.case_folder = (folder / "case").string();
  spec.collective_deadline_seconds = 5;
  spec.limits = options.limits;
  spec.plans = std::make_shared<PlanBoard>();
  if (options.trace) spec.trace_bits = (folder / "trace").string();
  Ran ran;
  if (options.world_size == 1 && options.launch == "thread") {
    RankContext context(0, 1);
    RankScope scope(context);
    ran.outcomes.push_back(run_case(spec, 0));
  } else {
    launch::LaunchOptions how;
    how.world_size = options.world_size;
    how.launch = options.launch == "thread" ? launch::Launch::thread : launch::Launch::process;
    how.timeout_seconds = 30;
    how.collective_deadline_seconds = 5;
    how.memory_bytes = options.limits.memory_bytes;
    ran.outcomes = launch::launch(how, [&](int rank) { return run_case(spec, rank); }).outcomes;
  }
  verdict::CaseResult blank;
  blank.scenario = scenario->name;
  blank.case_id = spec.test_case->id;
  ran.result = verdict::judge(std::move(blank), expectation_of(spec), {{"", ran.outcomes}});
  if (options.trace) {
    std::ifstream file(spec.trace_bits + ".stage-0.rank-0.jsonl");
    options.trace->assign(std::istreambuf_iterator<char>(file), {});
  }
  std::filesystem::remove_all(folder);
  return ran;
}

inline TextOptions ranks(int world_size, const std::string& launch = "thread") {
  TextOptions options;
  options.world_size = world_size;
  options.launch = launch;
  return options;
}

// The failures of rank 0 whose text starts so: "plan " for the check `plan`, "plan" for `plan_order` too.
inline std::vector<std::string> failures_starting_with(const Ran& ran, std::string_view start) {
  std::vector<std::string> found;
  for (const std::string& text : ran.failures())
    if (text.starts_with(start)) found.push_back(text);
  return found;
}

// Arms a seeded defect for the lifetime of this object.
class ArmedDefect {
 public:
  explicit ArmedDefect(Defect defect) { arm_defect(defect); }
  ~ArmedDefect() { arm_defect(Defect::none); }
  ArmedDefect(const ArmedDefect&) = delete;
  ArmedDefect& operator=(const ArmedDefect&) = delete;
};

// "check line: message" of the failure that the result shows, or the reason of a result without one.
inline std::string first_failure(const Ran& ran) {
  const auto& failure = ran.result.failure;
  return failure ? str(failure->check, " ", failure->line, ": ", failure->message) : ran.result.reason;
}

// The reason, and the failures of every rank, each on its own line.
inline std::string all_failures(const Ran& ran) {
  std::string text = ran.result.reason;
  for (std::size_t rank = 0; rank < ran.outcomes.size(); ++rank)
    for (const std::string& failure : ran.failures(static_cast<int>(rank))) text += str("\nrank ", rank, ": ", failure);
  return text;
}

}  // namespace lockstep::run::testing_support

#define EXPECT_PASS(ran)                                            \
  EXPECT_EQ((ran).result.status, ::lockstep::verdict::Status::PASS) \
      << ::lockstep::run::testing_support::all_failures(ran)
