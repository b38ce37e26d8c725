// `lockstep doctor`: what was found on this machine, and whether it works, each line with its remedy.
#pragma once

namespace lockstep::cli {

// Prints the findings; 0 when everything needed is there and works, else 1.
int doctor();

}  // namespace lockstep::cli
