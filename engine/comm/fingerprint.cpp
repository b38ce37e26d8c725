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

bool reduces(const Record& record) {
  return record.kind == static_cast<std::uint8_t>(Operation::all_reduce) ||
         record.kind == static_cast<std::uint8_t>(Operation::reduce_scatter);
}

// Ranks issue the collectives of a program at one line, or at lines that share a name. Collectives that the engine
// issues for a module may start at different lines (a prefetch on one rank, an explicit unshard on another), so only
// their phase is compared. A send and its receive are always at different lines.
CallSiteMatch site_match_of(const Record& record, const Communicator& communicator) {
  if (is_transfer(record)) return CallSiteMatch::none;
  switch (static_cast<Family>(record.family)) {
    case Family::data_parallel:
    case Family::start_up:
      return CallSiteMatch::phase;
    case Family::user:
    case Family::tensor_parallel:
    case Family::checkpoint:
      return communicator.call_site_name.empty() ? CallSiteMatch::line : CallSiteMatch::name;
    case Family::uncounted:
      break;
  }
  return CallSiteMatch::none;
}

// The tensor whose shape messages show.
const Tensor* subject_of(const CollectiveRequest& request) {
  if (request.operation == Operation::scatter) return request.output;
  return request.input != nullptr ? request.input : request.output;
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

void record_terms(Record& record, const CollectiveRequest& request, const Call& call,
                  const Communicator& communicator) {
  Terms& terms = record.terms;
  terms.site_match = site_match_of(record, communicator);
  terms.num_dims = 0;
  terms.dim = static_cast<std::int8_t>(call.dim);
  terms.device = 0;
  terms.sum_order = static_cast<std::uint8_t>(reduces(record) ? communicator.sum_order : SumOrder::fixed);
  if (const Tensor* subject = subject_of(request); subject != nullptr) {
    const Dims& sizes = subject->sizes();
    terms.num_dims = static_cast<std::uint8_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), terms.sizes);
    if (call.dim < sizes.size()) std::swap(terms.sizes[0], terms.sizes[call.dim]);
    terms.device = static_cast<std::uint8_t>(subject->device().kind);
  }
  const bool by_name = terms.site_match == CallSiteMatch::name;
  const std::string& call_site = by_name ? communicator.call_site_name : communicator.context().place;
  const bool by_call_site = by_name || terms.site_match == CallSiteMatch::line;
  if (by_call_site) copy_end(terms.call_site, call_site);

  Digest digest;
  digest.add(static_cast<std::uint64_t>(record.family) | static_cast<std::uint64_t>(terms.device) << 8 |
             static_cast<std::uint64_t>(terms.num_dims) << 16 | static_cast<std::uint64_t>(terms.site_match) << 24 |
             static_cast<std::uint64_t>(static_cast<std::uint8_t>(terms.dim)) << 32 |
             static_cast<std::uint64_t>(terms.sum_order) << 40);
  for (int dim = 0; dim < terms.num_dims; ++dim) digest.add(static_cast<std::uint64_t>(terms.sizes[dim]));
  digest.add(request.group->axis());
  if (record.kind == exchange_kind) digest.add(call.owner);
  if (terms.site_match == CallSiteMatch::phase || terms.site_match == CallSiteMatch::line) digest.add(record.phase);
  if (by_call_site) digest.add(call_site);
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
    case Term::sum_order:
      return "the order of sums";
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
  const bool holds_data = record.kind < num_operations && record.kind != static_cast<std::uint8_t>(Operation::barrier);
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
      return terms.site_match == CallSiteMatch::phase || terms.site_match == CallSiteMatch::line
                 ? std::string(name_of(static_cast<Phase>(record.phase)))
                 : "";
    case Term::sum_order:
      return reduces(record) ? std::string(name_of(static_cast<SumOrder>(terms.sum_order))) : "";
    case Term::place:
      if (terms.site_match == CallSiteMatch::name) return str("`", static_cast<const char*>(terms.call_site), "`");
      return terms.site_match == CallSiteMatch::line ? terms.call_site : "";
    case Term::purpose:
      return record.kind == exchange_kind ? record.owner : "";
  }
  return "";
}

}  // namespace lockstep::comm
