// Poison mode around one launch (order.hpp, set_poison; internal to engine/device).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/device/backend.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::device {

// Describes an access for messages: "bytes 0..64 of fc1.weight".
std::string text_of(const Access& access);

// Fills the ranges that a launch only writes with NaN before it, and checks after it that the ranges it only reads are
// unchanged. A range that another access of the launch overlaps in another mode is left alone. A launch that fails
// before it has written a range leaves the bytes that were there before.
class PoisonGuard {
 public:
  PoisonGuard(Backend& backend, const Stream& stream, const char* name, std::span<const Access> accesses);
  void before(const Pointers& pointers);
  void after(const Pointers& pointers) const;  // throws Error if a range that is only read has changed
  // Calls f(pointers), a part of the launch.
  template <class F>
  void guard(const F& f, const Pointers& pointers) const {
    try {
      f(pointers);
    } catch (...) {
      restore_unwritten(pointers);
      throw;
    }
  }

 private:
  struct Range {
    std::size_t index;  // of the access
    std::size_t bytes;
    std::string text;
    std::vector<std::byte> copy;  // of the bytes before the launch
  };
  void restore_unwritten(const Pointers& pointers) const;
  Backend& backend_;
  const char* name_;
  std::string stream_;
  std::vector<Range> write_only_;
  std::vector<Range> read_only_;
};

}  // namespace lockstep::device
