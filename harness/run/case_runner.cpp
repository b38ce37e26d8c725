#include "harness/run/case_runner.hpp"

#include "engine/core/resources.hpp"
#include "harness/run/live_run.hpp"

namespace lockstep::run {

verdict::RankOutcome run_case(const CaseSpec& spec, int rank, std::size_t stage) {
  try {
    LiveRun live(spec, rank, stage);
    return live.run();
  } catch (const std::exception& error) {
    verdict::RankOutcome outcome;
    outcome.rank = rank;
    outcome.status = verdict::RankStatus::failed;
    verdict::Failure failure;
    failure.check = "run";
    failure.file = spec.scenario ? spec.scenario->file : "";
    failure.time_ns = now_ns();
    failure.message = text_of(error);
    outcome.failures.push_back(std::move(failure));
    return outcome;
  }
}

}  // namespace lockstep::run
