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
// unchanged. A range that another access of the launch overlaps in another mode is left alone.
class PoisonGuard {
 public:
  PoisonGuard(Backend& backend, const Stream& stream, const char* name, std::span<const Access> accesses);
  void before(const Pointers& pointers);
  void after(const Pointers& pointers) const;  // throws Error if a range that is only read has changed

 private:
  struct Range {
    std::size_t index;  // of the access
    std::size_t bytes;
    std::string text;
    std::vector<std::byte> copy;
  };
  Backend& backend_;
  const char* name_;
  std::string stream_;
  std::vector<Range> write_only_;
  std::vector<Range> read_only_;
};

}  // namespace lockstep::device
