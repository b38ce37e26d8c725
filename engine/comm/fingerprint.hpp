// The terms of a collective: the properties besides the plain fields of Fingerprint on which its members must agree. A
// call carries one digest of its terms. Their texts stay in the flight recorder's entry and are read only after a
// mismatch.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/comm/control.hpp"

namespace lockstep::comm {

struct CollectiveRequest;
class Communicator;

// A 64-bit digest of a sequence of numbers and texts. It takes eight bytes per step.
class Digest {
 public:
  void add(std::uint64_t value);
  void add(std::string_view text);
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15ull;
};

// Fills the terms of a record and their digest. The record's kind, family, phase and axis are already set.
void record_terms(Record& record, const CollectiveRequest& request, const Call& call, const Communicator& communicator);

// The properties that a message can name.
enum class Term : std::uint8_t { family, shape, dim, device, axis, phase, sum_order, place, purpose };
inline constexpr std::array all_terms = {Term::family, Term::shape,     Term::dim,   Term::device, Term::axis,
                                         Term::phase,  Term::sum_order, Term::place, Term::purpose};
// "the shape", "the mesh axis".
std::string_view name_of(Term term);
// The value of a property; "" if the call has none: "(2, 4)", "sim", "mismatch.yaml:12".
std::string value_of(Term term, const Record& record);

// The shape as the caller wrote it: "(2, 4)".
std::string shape_text(const Terms& terms);
// The operation concatenates or splits shards along a dim that the caller names.
bool has_dim(const Record& record);

}  // namespace lockstep::comm
