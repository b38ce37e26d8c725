// What happens when an error cannot be thrown: in a destructor or in a function of a library that must not throw, an
// allocation that the machine refuses ends the program.
#pragma once

namespace lockstep::cli {

// From now on such an error is printed with a remedy, the ranks that run are killed, temporary folders are removed,
// and the exit code is 3. An error that is no std::exception aborts the program as before.
void install_last_resort();

}  // namespace lockstep::cli
