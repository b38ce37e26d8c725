#include "engine/comm/fingerprint.hpp"

#include <algorithm>
#include <cstring>

#include "engine/comm/communicator.hpp"
#include "engine/core/error.hpp"
#include "engine/core/shape.hpp"

namespace lockstep::comm {

namespace {

bool is_transfer(const Record& record) {
  return record.kind == static_cast<std::uint8_t>(Operation::send) ||
         record.kind == static_cast<std::uint8_t>(Operation::receive);
}

// A program issues its own collectives at one line on all ranks, or at lines that share a name. Collectives that the
// engine makes for a module may begin at different lines (a prefetch, an explicit unshard): they belong to a module and
// a phase. The two ends of a transfer stand in different lines by nature.
PlacedBy placed_by(const Record& record, const Communicator& communicator) {
  if (is_transfer(record)) return PlacedBy::nothing;
  switch (static_cast<Family>(record.family)) {
    case Family::data_parallel:
    case Family::start_up:
      return PlacedBy::phase;
    case Family::user:
    case Family::tensor_parallel:
    case Family::checkpoint:
      return communicator.meeting_place.empty() ? PlacedBy::line : PlacedBy::name;
    case Family::uncounted:
      break;
  }
  return PlacedBy::nothing;
}

// The tensor whose shape the caller has in mind.
const Tensor* subject_of(const Plan& plan) {
  if (plan.operation == Operation::scatter) return plan.output;
  return plan.input != nullptr ? plan.input : plan.output;
}

// Texts are cut at the front: paths and names of modules differ at their ends.
void copy_end(char* to, std::size_t capacity, std::string_view text) {
  if (text.size() >= capacity) text.remove_prefix(text.size() - (capacity - 1));
  to[text.copy(to, capacity - 1)] = '\0';
}

}  // namespace

void Digest::add(std::uint64_t value) {
  state_ = (state_ ^ value) * 0xbf58476d1ce4e5b9ull;
  state_ ^= state_ >> 29;
}

void Digest::add(std::string_view text) {
  add(text.size());
  for (std::size_t at = 0; at < text.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    add(word);
  }
}

void note_terms(Record& record, const Plan& plan, const Call& call, const Communicator& communicator) {
  Terms& terms = record.terms;
  terms.placed_by = placed_by(record, communicator);
  terms.num_dims = 0;
  terms.dim = static_cast<std::int8_t>(call.dim);
  terms.device = 0;
  if (const Tensor* subject = subject_of(plan); subject != nullptr) {
    const Dims& sizes = subject->sizes();
    terms.num_dims = static_cast<std::uint8_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), terms.sizes);
    if (call.dim > 0 && call.dim < sizes.size()) std::swap(terms.sizes[0], terms.sizes[call.dim]);
    terms.device = static_cast<std::uint8_t>(subject->device().kind);
  }
  const bool named = terms.placed_by == PlacedBy::name;
  const std::string& place = named ? communicator.meeting_place : communicator.context().place;
  const bool by_place = named || terms.placed_by == PlacedBy::line;
  if (by_place) copy_end(terms.place, sizeof terms.place, place);  // else its lines of memory stay untouched

  Digest digest;
  digest.add(static_cast<std::uint64_t>(record.family) | static_cast<std::uint64_t>(terms.device) << 8 |
             static_cast<std::uint64_t>(terms.num_dims) << 16 | static_cast<std::uint64_t>(terms.placed_by) << 24 |
             static_cast<std::uint64_t>(static_cast<std::uint8_t>(terms.dim)) << 32);
  for (int dim = 0; dim < terms.num_dims; ++dim) digest.add(static_cast<std::uint64_t>(terms.sizes[dim]));
  digest.add(plan.group->axis());
  if (record.kind == exchange_kind) digest.add(call.owner);
  if (terms.placed_by == PlacedBy::phase || terms.placed_by == PlacedBy::line) digest.add(record.phase);
  if (by_place) digest.add(place);
  record.terms_digest = digest.value();
}

std::string_view name_of(Term term) {
  switch (term) {
    case Term::family:
      return "the family";
    case Term::shape:
      return "the shape";
    case Term::dim:
      return "the dim";
    case Term::device:
      return "the device";
    case Term::axis:
      return "the mesh axis";
    case Term::phase:
      return "the phase";
    case Term::place:
      return "the place in the program";
    case Term::purpose:
      return "the purpose of the exchange";
  }
  return "";
}

std::string shape_text(const Terms& terms) {
  Dims sizes;
  for (int dim = 0; dim < std::min<int>(terms.num_dims, max_dims); ++dim) sizes.push_back(terms.sizes[dim]);
  return to_text(sizes);
}

bool has_dim(const Record& record) {
  const auto kind = static_cast<Operation>(record.kind);
  return kind == Operation::all_gather || kind == Operation::reduce_scatter || kind == Operation::all_to_all;
}

std::string value_of(Term term, const Record& record) {
  const Terms& terms = record.terms;
  const bool holds_data = record.kind != exchange_kind && record.kind != static_cast<std::uint8_t>(Operation::barrier);
  switch (term) {
    case Term::family:
      return std::string(name_of(static_cast<Family>(record.family)));
    case Term::shape:
      return holds_data ? shape_text(terms) : "";
    case Term::dim:
      return has_dim(record) ? str(static_cast<int>(terms.dim)) : "";
    case Term::device:
      return holds_data ? std::string(device::name_of(static_cast<device::Kind>(terms.device))) : "";
    case Term::axis:
      return record.axis[0] == '\0' ? "none" : record.axis;
    case Term::phase:
      return terms.placed_by == PlacedBy::phase || terms.placed_by == PlacedBy::line
                 ? std::string(name_of(static_cast<Phase>(record.phase)))
                 : "";
    case Term::place:
      if (terms.placed_by == PlacedBy::name) return str("`", static_cast<const char*>(terms.place), "`");
      return terms.placed_by == PlacedBy::line ? terms.place : "";
    case Term::purpose:
      return record.kind == exchange_kind ? record.owner : "";
  }
  return "";
}

}  // namespace lockstep::comm
