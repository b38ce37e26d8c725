#include "engine/device/protection.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string_view>

#include <sys/mman.h>

#include "engine/core/error.hpp"

namespace lockstep::device {

namespace {

// The rights of a thread are a register: two bits per key, of which the lower one denies every access.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool may_have_keys = true;
unsigned rights_of_thread() {
  unsigned rights = 0, high = 0;
  asm volatile("rdpkru" : "=a"(rights), "=d"(high) : "c"(0));
  return rights;
}
void set_rights_of_thread(unsigned rights) { asm volatile("wrpkru" : : "a"(rights), "c"(0), "d"(0) : "memory"); }
#else
constexpr bool may_have_keys = false;
unsigned rights_of_thread() { return 0; }
void set_rights_of_thread(unsigned) {}
#endif

// The value of the environment variable; empty: it is not set.
std::string_view wanted_protection() {
  const char* const text = std::getenv("LOCKSTEP_PROTECT_SIM");
  return text == nullptr ? "" : text;
}
bool is_known(std::string_view wanted) {
  return wanted.empty() || wanted == "keys" || wanted == "pages" || wanted == "off";
}

// Per process: the key, and the regions that have it. A signal handler reads the regions, so they are a fixed array.
struct State {
  Protection kind = Protection::off;
  bool is_unknown = false;  // the environment names no kind
  int key = -1;
  unsigned denied = 0;  // the bits of the key
  std::mutex mutex;     // of what follows
  std::array<HostWorld::Region, 1024> regions;
  std::atomic<int> num_regions{0};
  int num_open = 0;  // with pages: the scopes of all threads
};

State& state() {
  // Never destroyed: threads may run until the process has ended. No allocation, because destructors come here too.
  alignas(State) static std::byte room[sizeof(State)];
  static State* const made = [] {
    auto* const fresh = new (room) State;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const std::string_view wanted = wanted_protection();
    if (wanted == "off") return fresh;
    if (wanted == "pages") {
      fresh->kind = Protection::pages;
      return fresh;
    }
    fresh->is_unknown = !is_known(wanted);
    if (may_have_keys) fresh->key = ::pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (fresh->key > 0) {
      fresh->kind = Protection::keys;
      fresh->denied = 3U << (2 * static_cast<unsigned>(fresh->key));
    }
#endif
    return fresh;
  }();
  return *made;
}

void set_pages(const HostWorld::Region& region, int rights) {
  if (::mprotect(region.base, region.bytes, rights) != 0) std::abort();
}
void set_all_pages(const State& of, int rights) {
  for (int i = 0; i < of.num_regions.load(); ++i) set_pages(of.regions[static_cast<std::size_t>(i)], rights);
}

}  // namespace

std::string describe(Protection kind) {
  switch (kind) {
    case Protection::keys:
      return "closed to the host outside launches, by protection keys";
    case Protection::pages:
      return "closed to the host outside launches, by system calls (slow)";
    case Protection::off:
      break;
  }
  return "open to the host: no protection keys (LOCKSTEP_PROTECT_SIM=pages closes it)";
}

Protection protection() { return state().kind; }

void require_known_protection() {
  if (const std::string_view wanted = wanted_protection(); !is_known(wanted))
    throw Error(str("LOCKSTEP_PROTECT_SIM=", wanted, " is unknown"), "use keys, pages or off, or unset it");
}

void protect(HostWorld::Region region) {
  State& of = state();
  if (of.is_unknown) require_known_protection();
  if (of.kind == Protection::off) return;
  const std::lock_guard lock(of.mutex);
  const int num = of.num_regions.load();
  for (int i = 0; i < num; ++i)
    if (of.regions[static_cast<std::size_t>(i)].base == region.base) return;
  if (num == static_cast<int>(of.regions.size())) return;
  if (of.kind == Protection::keys && ::pkey_mprotect(region.base, region.bytes, PROT_READ | PROT_WRITE, of.key) != 0)
    return;  // a region without the key is merely not protected
  of.regions[static_cast<std::size_t>(num)] = region;
  of.num_regions.store(num + 1);
  if (of.kind == Protection::pages && of.num_open == 0) set_pages(region, PROT_NONE);
}

void forget_protected(const std::byte* base, std::size_t bytes) {
  State& of = state();
  const std::lock_guard lock(of.mutex);
  int kept = 0;
  for (int i = 0; i < of.num_regions.load(); ++i) {
    const HostWorld::Region region = of.regions[static_cast<std::size_t>(i)];
    if (region.base < base || region.base >= base + bytes) of.regions[static_cast<std::size_t>(kept++)] = region;
  }
  of.num_regions.store(kept);
}

OpenMemory::OpenMemory() {
  State& of = state();
  if (of.kind == Protection::off) return;
  if (of.kind == Protection::keys) {
    previous_ = rights_of_thread();
    if ((previous_ & of.denied) != 0) set_rights_of_thread(previous_ & ~of.denied);
    return;
  }
  const std::lock_guard lock(of.mutex);
  if (of.num_open++ == 0) set_all_pages(of, PROT_READ | PROT_WRITE);
}

OpenMemory::~OpenMemory() {
  State& of = state();
  if (of.kind == Protection::off) return;
  if (of.kind == Protection::keys) {
    if ((previous_ & of.denied) != 0) set_rights_of_thread(previous_);
    return;
  }
  const std::lock_guard lock(of.mutex);
  if (--of.num_open == 0) set_all_pages(of, PROT_NONE);
}

bool has_rights_of_its_own() {
  const State& of = state();
  return of.kind == Protection::keys && (rights_of_thread() & of.denied) == 0;
}

HostWorld::Region protected_region_with(const void* address) {
  const State& of = state();
  for (int i = 0; i < of.num_regions.load(); ++i)
    if (of.regions[static_cast<std::size_t>(i)].contains(address)) return of.regions[static_cast<std::size_t>(i)];
  return {};
}

}  // namespace lockstep::device
