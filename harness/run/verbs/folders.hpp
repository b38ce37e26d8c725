// The folders in which a step reads and writes files.
#pragma once

#include "harness/run/values/files.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run {

Folders folders_of(const StepCall& call);

}  // namespace lockstep::run
