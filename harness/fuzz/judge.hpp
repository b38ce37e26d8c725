// What the result of a program's case means for the fuzzer.
#pragma once

#include <string>

#include "harness/verdict/results.hpp"

namespace lockstep::fuzz {

enum class Outcome {
  agrees,     // PASS
  refused,    // a step that builds the program is an error of the engine: the grammar is wrong
  disagrees,  // a check, the plan, the order check or a step of the training failed; or a crash, a hang, no evidence
};

Outcome outcome_of(const verdict::CaseResult& row);

// What must stay the same while a program is shrunk: the verdict, and the check that failed.
std::string signature_of(const verdict::CaseResult& row);

// The text of a refusal without its names, numbers and quoted parts, by which refusals are counted.
std::string kind_of_refusal(const verdict::CaseResult& row);

}  // namespace lockstep::fuzz
