// The runs of one program: on cpu and on sim, as threads and as processes, and once beside a replicated copy. It has
// the same verdict everywhere, and the same peaks of memory in its first four runs: the steps decide what a rank
// allocates and frees, not the time at which its streams run.
//
//   for (const Program& placed : placements_of(program)) rows.push_back(run(placed));
//   const verdict::CaseResult row = verdict_of(program, rows);
#pragma once

#include <string>
#include <vector>

#include "harness/fuzz/program.hpp"
#include "harness/verdict/results.hpp"

namespace lockstep::fuzz {

// The program as the grammar placed it, then on the other placements, then beside a replicated copy unless it trains
// beside one anyway, or none has its values. A program that the order check refuses on sim stays on cpu.
std::vector<Program> placements_of(const Program& program);

// The purposes whose peaks differ, "gathered: 96 bytes on cpu as threads, 128 on sim as processes"; empty where there
// is none, or where the two are not promised to be equal.
std::string difference_of_peaks(const Program& program, const verdict::CaseResult& one,
                                const verdict::CaseResult& other);

std::string place_of(const verdict::CaseResult& row);  // "on sim as processes"

// The row that stands for the program, from those of its placements in their order: the first that does not agree;
// otherwise the first, which fails the check `peaks` if its peaks differ from those of another.
verdict::CaseResult verdict_of(const Program& program, const std::vector<verdict::CaseResult>& rows);
bool is_of_peaks(const verdict::CaseResult& row);  // it fails that check

}  // namespace lockstep::fuzz
