// The message of an access that the protection of sim's memory has ended (protection.hpp).
#pragma once

#include <cstddef>

namespace lockstep::device {

// For the handler of a crash: writes what this thread's access of the address did wrong, such as "host code touched
// byte 4 of w (parameter) on sim:0 outside a launch, at line 12 of the scenario". An empty text if the address is not
// protected. `size` counts the ending zero.
void describe_fault(const void* address, char* text, std::size_t size);

}  // namespace lockstep::device
