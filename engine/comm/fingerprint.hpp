// The terms of a collective: everything that its members must agree on beside the plain fields of Fingerprint. A call
// carries one digest of them; the texts stay in the flight recorder's entry and are read after a mismatch alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/comm/control.hpp"

namespace lockstep::comm {

struct Plan;
class Communicator;

// A 64-bit digest of numbers and texts in order. Eight bytes per step.
class Digest {
 public:
  void add(std::uint64_t value);
  void add(std::string_view text);
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15ull;
};

// Fills the terms of the record, whose kind, family and phase are set, and their digest.
void note_terms(Record& record, const Plan& plan, const Call& call, const Communicator& communicator);

// The properties that a message names one by one.
enum class Term : std::uint8_t { family, shape, dim, device, axis, phase, place, purpose };
inline constexpr std::array all_terms = {Term::family, Term::shape, Term::dim,   Term::device,
                                         Term::axis,   Term::phase, Term::place, Term::purpose};
// "the shape", "the mesh axis".
std::string_view name_of(Term term);
// The value of a property, "" where the call has none: "(2, 4)", "sim", "mismatch.yaml:12".
std::string value_of(Term term, const Record& record);

// The sizes as the caller wrote them.
std::string shape_text(const Terms& terms);
// The parts of this operation are joined or cut along a dim that the caller names.
bool has_dim(const Record& record);

}  // namespace lockstep::comm
