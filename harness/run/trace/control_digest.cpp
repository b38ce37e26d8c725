#include "harness/run/trace/control_digest.hpp"

#include <bit>

#include "harness/run/trace/dry_run.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

void ControlDigest::add(std::uint64_t number) {
  digest_ = (digest_ ^ number) * fnv1a_prime;
  digest_ ^= digest_ >> 32;
}

void ControlDigest::enter(const scenario::Step& step) {
  counts_ = DryRun::affects_plan(step.verb) && scenario::spec_of(step.verb).group != scenario::Group::control;
  if (!counts_) return;
  verb_ = step.verb;
  add(static_cast<std::uint64_t>(step.verb));
  digest_ = fnv1a_append(digest_, step.place.file);
  add(static_cast<std::uint64_t>(step.place.line));
  add(static_cast<std::uint64_t>(step.place.column));
}

void ControlDigest::argument(std::string_view name, const Value& value) {
  if (!counts_ || !DryRun::reads(verb_, name)) return;
  constexpr int most_values = 1000;  // of one argument
  int room = most_values;
  digest_ = fnv1a_append(digest_, name);
  add(value, room);
}

void ControlDigest::add(const Value& value, int& room) {
  if (--room < 0) return;
  add(static_cast<std::uint64_t>(value.kind()));
  switch (value.kind()) {
    case Value::Kind::boolean:
      return add(value.as_bool("it") ? 1 : 0);
    case Value::Kind::integer:
      return add(static_cast<std::uint64_t>(value.as_int("it")));
    case Value::Kind::number:
      return add(std::bit_cast<std::uint64_t>(value.as_number("it")));
    case Value::Kind::text:
      digest_ = fnv1a_append(digest_, value.as_text("it"));
      return;
    case Value::Kind::dtype:
      return add(static_cast<std::uint64_t>(value.as_dtype("it")));
    case Value::Kind::list:
      add(value.as_list("it").size());
      for (const Value& item : value.as_list("it")) add(item, room);
      return;
    case Value::Kind::map:
      add(value.as_map("it").size());
      for (const auto& [key, item] : value.as_map("it")) add(item, room);
      return;
    case Value::Kind::tensor: {
      const Tensor& tensor = value.as_tensor("it");
      if (!tensor.defined()) return;
      add(static_cast<std::uint64_t>(tensor.dtype()));
      for (const std::int64_t size : tensor.sizes()) add(static_cast<std::uint64_t>(size));
      return;
    }
    case Value::Kind::mesh:
      for (const int size : value.as_mesh("it")->shape().sizes()) add(static_cast<std::uint64_t>(size));
      for (const std::string& name : value.as_mesh("it")->shape().names()) digest_ = fnv1a_append(digest_, name);
      return;
    default:
      return;
  }
}

}  // namespace lockstep::run
