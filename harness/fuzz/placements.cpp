#include "harness/fuzz/placements.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/core/error.hpp"
#include "harness/fuzz/judge.hpp"

namespace lockstep::fuzz {

namespace {

constexpr const char* check_of_peaks = "peaks";

bool offloads(const Program& program) {
  return !program.parallel.offload.empty() || (program.move && !program.move->parallel.offload.empty());
}

// On cpu, the host's memory is that of the device.
bool uses_the_host(const Program& program) {
  return offloads(program) || std::any_of(program.steps.begin(), program.steps.end(),
                                          [](const Step& step) { return step.restore == Restore::host_state; });
}

}  // namespace

std::vector<Program> placements_of(const Program& program) {
  // The optimizer would write the shards of the host while a late evaluation still copies them
  // (scenarios/bugs/offloaded_evaluation_before_step).
  const bool stays = offloads(program) && std::any_of(program.steps.begin(), program.steps.end(),
                                                      [](const Step& step) { return step.evaluates_late; });
  std::vector<Program> all{program};
  for (const char* device : {"cpu", "sim"})
    for (const char* launch : {"thread", "process"}) {
      const bool is_own = program.device == device && program.launch == launch;
      if (is_own || (stays && program.device != device)) continue;
      Program& placed = all.emplace_back(program);
      placed.device = device;
      placed.launch = launch;
    }
  if (program.may_be_replicated && !program.beside_replicated) {
    Program& beside = all.emplace_back(program);
    beside.beside_replicated = true;
    beside.suffix = "_beside_replicated";
  }
  return all;
}

std::string place_of(const verdict::CaseResult& row) {
  return str("on ", row.device, row.launch == "thread" ? " as threads" : " as processes");
}

std::string difference_of_peaks(const Program& program, const verdict::CaseResult& one,
                                const verdict::CaseResult& other) {
  // A replicated copy has another name and its own memory.
  if ((uses_the_host(program) && one.device != other.device) || one.scenario != other.scenario) return "";
  std::string text;
  for (const auto& [purpose, bytes] : one.memory) {
    const auto found = other.memory.find(purpose);
    const std::int64_t others = found == other.memory.end() ? 0 : found->second;
    if (bytes == others) continue;
    text += text.empty() ? str(purpose, ": ", bytes, " bytes ", place_of(one), ", ", others, " ", place_of(other))
                         : str("; ", purpose, ": ", bytes, ", ", others);
  }
  return text;
}

verdict::CaseResult verdict_of(const Program& program, const std::vector<verdict::CaseResult>& rows) {
  for (const verdict::CaseResult& row : rows)
    if (outcome_of(row) != Outcome::agrees) return row;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = i + 1; j < rows.size(); ++j) {
      const std::string text = difference_of_peaks(program, rows[i], rows[j]);
      if (text.empty()) continue;
      verdict::CaseResult row = rows[i];
      row.status = verdict::Status::FAIL;
      row.failure.emplace();
      row.failure->check = check_of_peaks;
      row.failure->message = str("the peaks of memory differ: ", text);
      return row;
    }
  return rows.at(0);
}

bool is_of_peaks(const verdict::CaseResult& row) { return row.failure && row.failure->check == check_of_peaks; }

}  // namespace lockstep::fuzz
