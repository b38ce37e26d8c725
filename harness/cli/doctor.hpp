// `lockstep doctor`: the facts of build and machine, and checks of all that a run needs, each failed one with its
// remedy.
#pragma once

namespace lockstep::cli {

// Prints the findings. Returns 0 when every check holds, otherwise 1.
int doctor();

}  // namespace lockstep::cli
