// A digest of the steps that a rank performed, of those that a plan can depend on: which steps, in which order, with
// which arguments. Ranks with equal digests followed one path through the scenario.
//
// Values of tensors do not count, because a plan depends on none; their sizes and types do. Whether a scaler has
// skipped a step follows from values and counts. Steps that check, record or seed do not count, nor do the arguments of
// control steps: the steps that they lead to do. Arguments that the dry run of a verb does not read (DryRun::reads) do
// not count either.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/core/fnv.hpp"
#include "harness/run/values/value.hpp"
#include "harness/scenario/document.hpp"

namespace lockstep::run {

class ControlDigest {
 public:
  void enter(const scenario::Step& step);
  // An argument of the step that was entered last, as the step reads it.
  void argument(std::string_view name, const Value& value);
  // Whether a step with a scaler was done.
  void scaled_step(bool done) { add(done ? 1 : 0); }
  std::uint64_t value() const { return digest_; }

 private:
  void add(const Value& value, int& room);
  void add(std::uint64_t number);
  std::uint64_t digest_ = fnv1a_basis;
  bool counts_ = false;                        // the step that was entered last
  scenario::Verb verb_ = scenario::Verb::let;  // its verb, if it counts
};

}  // namespace lockstep::run
