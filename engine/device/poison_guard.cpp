#include "engine/device/poison_guard.hpp"

#include <algorithm>
#include <cstring>

#include "engine/core/error.hpp"
#include "engine/core/schedule.hpp"

namespace lockstep::device {

namespace {

bool overlaps(const Access& a, const Access& b) {
  return a.memory == b.memory && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

constexpr std::byte poison{0xff};
constexpr std::size_t piece_bytes = std::size_t{64} << 10;

// f(begin, bytes) for pieces of a range.
template <class F>
void for_each_piece(std::size_t bytes, const F& f) {
  for (std::size_t begin = 0; begin < bytes; begin += piece_bytes) f(begin, std::min(piece_bytes, bytes - begin));
}

}  // namespace

std::string text_of(const Access& access) {
  return str(
      "bytes ", access.offset, "..", access.offset + access.bytes, " of ",
      access.memory->label.empty() ? str("a block of ", access.memory->bytes(), " bytes") : access.memory->label);
}

PoisonGuard::PoisonGuard(Backend& backend, const Stream& stream, const char* name, std::span<const Access> accesses)
    : backend_(backend), name_(name), stream_(stream.name()) {
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
  const auto keep = [&](Range& range) {
    range.copy.resize(range.bytes);
    backend_.read(pointers.execution(), range.copy.data(), pointers.at(range.index), range.bytes);
  };
  for (Range& range : read_only_) keep(range);
  for (Range& range : write_only_) {
    keep(range);
    const std::vector<std::byte> filled(range.bytes, poison);  // written, because a GPU cannot fill memory of the host
    backend_.write(pointers.execution(), pointers.at(range.index), filled.data(), range.bytes);
  }
}

void PoisonGuard::restore_unwritten(const Pointers& pointers) const {
  std::vector<std::byte> now(piece_bytes);
  for (const Range& range : write_only_) {
    bool is_unwritten = true;
    for_each_piece(range.bytes, [&](std::size_t begin, std::size_t bytes) {
      backend_.read(pointers.execution(), now.data(), pointers.at(range.index) + begin, bytes);
      const auto end = now.begin() + static_cast<std::ptrdiff_t>(bytes);
      is_unwritten = is_unwritten && std::all_of(now.begin(), end, [](std::byte each) { return each == poison; });
    });
    if (is_unwritten) backend_.write(pointers.execution(), pointers.at(range.index), range.copy.data(), range.bytes);
  }
}

void PoisonGuard::after(const Pointers& pointers) const {
  std::vector<std::byte> now(piece_bytes);
  for (const Range& range : read_only_) {
    bool is_unchanged = true;
    for_each_piece(range.bytes, [&](std::size_t begin, std::size_t bytes) {
      backend_.read(pointers.execution(), now.data(), pointers.at(range.index) + begin, bytes);
      is_unchanged = is_unchanged && std::memcmp(range.copy.data() + begin, now.data(), bytes) == 0;
    });
    if (is_unchanged) continue;
    if (schedule::self() != nullptr)
      throw Error(str("while launch `", name_, "` on ", stream_, " read ", range.text, ", another launch wrote them"),
                  "let one of them wait for the other");
    throw Error(str("launch `", name_, "` on ", stream_, " changed ", range.text, ", which it declares as read-only"),
                "declare the access as write or update");
  }
}

}  // namespace lockstep::device
