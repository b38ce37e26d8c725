#include "engine/device/poison_guard.hpp"

#include <cstring>

#include "engine/core/error.hpp"

namespace lockstep::device {

namespace {

bool overlaps(const Access& a, const Access& b) {
  return a.memory == b.memory && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

std::string text_of(const Access& access) {
  return str(
      "bytes ", access.offset, "..", access.offset + access.bytes, " of ",
      access.memory->label.empty() ? str("a block of ", access.memory->bytes(), " bytes") : access.memory->label);
}

PoisonGuard::PoisonGuard(const Stream& stream, const char* name, std::span<const Access> accesses)
    : name_(name), stream_(stream.name()) {
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    const Access& access = accesses[i];
    bool exclusive = access.mode != Mode::update && access.bytes > 0;
    for (const Access& other : accesses)
      exclusive = exclusive && (other.mode == access.mode || !overlaps(access, other));
    if (!exclusive) continue;
    std::vector<Range>& ranges = access.mode == Mode::write ? write_only_ : read_only_;
    ranges.push_back({i, access.bytes, text_of(access), {}});
  }
}

void PoisonGuard::before(const Pointers& pointers) {
  for (const Range& range : write_only_) std::memset(pointers.at(range.index), 0xff, range.bytes);
  for (Range& range : read_only_) range.copy.assign(pointers.at(range.index), pointers.at(range.index) + range.bytes);
}

void PoisonGuard::after(const Pointers& pointers) const {
  for (const Range& range : read_only_) {
    if (std::memcmp(range.copy.data(), pointers.at(range.index), range.bytes) == 0) continue;
    throw Error(str("launch `", name_, "` on ", stream_, " changed ", range.text, ", which it declares as read-only"),
                "declare the access as write or update");
  }
}

}  // namespace lockstep::device
