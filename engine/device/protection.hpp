// Protects the memory of sim from the host: an access outside a launch ends the process, as on a device. The message
// names the block (fault.hpp). Internal to engine/device, except protection(), describe(), require_known_protection()
// and the rights of helper threads.
//
// The processor's protection keys do it where it has them: a thread opens the memory for itself in two instructions.
// Elsewhere the environment variable LOCKSTEP_PROTECT_SIM=pages protects the pages by system calls while no thread has
// them open. That is slow, and meant for debugging. LOCKSTEP_PROTECT_SIM=off turns both off.
//
// Threads of a kernel have no rights of their own: the kernel hands them those of its launch (with_rights).
#pragma once

#include <cstddef>
#include <string>

#include "engine/device/arena.hpp"

namespace lockstep::device {

enum class Protection { off, keys, pages };

// What this process uses. The sanitizers read all memory themselves, so their builds use none.
Protection protection();
std::string describe(Protection kind);  // "closed to the host outside launches, by protection keys"
// Throws Error if the environment variable has another value.
void require_known_protection();

// Protects the pages of a region from now on. Idempotent. Throws Error if the environment variable has another value.
void protect(HostWorld::Region region);
// Forgets the protected regions among these addresses, which are about to be unmapped.
void forget_protected(const std::byte* base, std::size_t bytes);

// This thread may touch protected memory within the scope. Scopes may nest.
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  unsigned previous_ = 0;  // the thread's rights, with keys
};

// With keys: whether this thread has protected memory open. Without, all threads have the same rights, and it is false.
bool has_rights_of_its_own();
// Calls f() on a helper thread of a launch, whose thread had rights of its own or not.
template <class F>
void with_rights(bool open, F&& f) {
  if (!open) return f();
  const OpenMemory scope;
  f();
}

// The protected region that contains the address; an empty region if none does. May be called by a signal handler.
HostWorld::Region protected_region_with(const void* address);

}  // namespace lockstep::device
