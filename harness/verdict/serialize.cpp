#include "harness/verdict/serialize.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/core/error.hpp"
#include "engine/core/fnv.hpp"

namespace lockstep::verdict {

namespace {

constexpr std::uint32_t magic = 0x314f524cu;  // "LRO1"

[[noreturn]] void refuse(std::string_view what) {
  throw Error(str("the outcome of a rank cannot be read: ", what), "the rank ended while it handed in its outcome");
}

// Writer and Reader visit the fields by the same list, visit() below, and therefore in the same order. Fields that
// judge() fills in are left out.
class Writer {
 public:
  static constexpr bool reading = false;

  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void operator()(const std::string& value) {
    size(value.size());
    bytes_ += value;
  }
  void size(std::uint64_t value) { (*this)(value); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  static constexpr bool reading = true;

  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = read<std::uint8_t>();
      if (byte > 1) refuse("a truth value is neither 0 nor 1");
      value = byte != 0;
    } else {
      std::memcpy(&value, take(sizeof value).data(), sizeof value);
    }
  }
  void operator()(std::string& value) { value = take(size()); }
  template <class T>
  T read() {
    T value{};
    (*this)(value);
    return value;
  }
  // The number of entries that follow. Each takes at least one byte, so a number beyond the remaining bytes ends there.
  std::uint64_t size() { return read<std::uint64_t>(); }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view take(std::size_t count) {
    if (count > rest_.size()) refuse("it stops in the middle");
    const std::string_view piece = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return piece;
  }
  std::string_view rest_;
};

template <class Archive, class List, class Visit>
void visit_list(Archive& archive, List& list, Visit&& visit_item) {
  if constexpr (Archive::reading) {
    const std::uint64_t count = archive.size();
    for (std::uint64_t i = 0; i < count; ++i) {
      typename List::value_type item{};
      visit_item(item);
      list.push_back(std::move(item));
    }
  } else {
    archive.size(list.size());
    for (auto& item : list) visit_item(item);
  }
}

template <class Archive, class Peaks>
void visit_peaks(Archive& archive, Peaks& peaks) {
  if constexpr (Archive::reading) {
    const std::uint64_t count = archive.size();
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string purpose;
      archive(purpose);
      archive(peaks[purpose]);
    }
  } else {
    archive.size(peaks.size());
    for (const auto& [purpose, bytes] : peaks) {
      archive(purpose);
      archive(bytes);
    }
  }
}

template <class Archive, class Place>
void visit_place(Archive& archive, Place& place) {
  archive(place.step);
  archive(place.file);
  archive(place.line);
  archive(place.column);
}

template <class Archive, class TheEvidence>
void visit_evidence(Archive& archive, TheEvidence& evidence) {
  archive(evidence.comparisons);
  archive(evidence.trivial);
  archive(evidence.elements);
  archive(evidence.same_bits);
  archive(evidence.bits_required);
  archive(evidence.bits_relaxed);
  archive(evidence.max_abs_difference);
  archive(evidence.loosest.rtol);
  archive(evidence.loosest.atol);
  archive(evidence.loosest.of_largest);
  archive(evidence.collectives_checked);
  archive(evidence.orders_checked);
  archive(evidence.errors_expected);
  archive(evidence.planned_in_order);
  archive(evidence.conditions);
}

template <class Archive, class TheFailure>
void visit_failure(Archive& archive, TheFailure& failure) {
  archive(failure.check);
  archive(failure.file);
  archive(failure.line);
  archive(failure.column);
  archive(failure.iteration);
  archive(failure.message);
  archive(failure.time_ns);
  archive(failure.secondary);
  archive(failure.scenario_line);
  archive(failure.note_size);
}

template <class Archive, class Row>
void visit_collective(Archive& archive, Row& row) {
  archive(row.family);
  archive(row.operation);
  archive(row.axis);
  archive(row.group_size);
  archive(row.phase);
  archive(row.count);
  archive(row.bytes);
}

template <class Archive, class Row>
void visit_plan(Archive& archive, Row& row) {
  archive(row.family);
  archive(row.operation);
  archive(row.axis);
  archive(row.group_size);
  archive(row.phase);
  archive(row.planned);
  archive(row.planned_bytes);
  archive(row.bytes_are_least);
  archive(row.observed);
  archive(row.observed_bytes);
}

template <class Archive, class Outcome>
void visit(Archive& archive, Outcome& outcome) {
  archive(outcome.status);
  archive(outcome.end_expected);
  archive(outcome.bystander);
  archive(outcome.exit_code);
  archive(outcome.signal);
  archive(outcome.detail);
  visit_place(archive, outcome.last_step);
  archive(outcome.end_time_ns);
  visit_evidence(archive, outcome.evidence);
  visit_list(archive, outcome.failures, [&](auto& failure) { visit_failure(archive, failure); });
  visit_list(archive, outcome.collectives, [&](auto& row) { visit_collective(archive, row); });
  visit_list(archive, outcome.plan, [&](auto& row) { visit_plan(archive, row); });
  archive(outcome.plan_verdict.is_judged);
  archive(outcome.plan_verdict.reason);
  visit_list(archive, outcome.plan_verdict.left_out, [&](auto& text) { archive(text); });
  archive(outcome.planning.seconds);
  archive(outcome.planning.rank_seconds);
  archive(outcome.planning.num_dry_runs);
  visit_peaks(archive, outcome.memory);
  visit_list(archive, outcome.records, [&](auto& record) {
    archive(record.first);
    archive(record.second);
  });
  visit_list(archive, outcome.checks_reached, [&](auto& id) { archive(id); });
}

}  // namespace

std::string to_bytes(const RankOutcome& outcome) {
  Writer body;
  visit(body, outcome);
  const std::string payload = body.take();
  Writer header;
  header(magic);
  header(static_cast<std::uint64_t>(payload.size()));
  header(fnv1a(payload));
  return header.take() + payload;
}

RankOutcome outcome_from_bytes(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.read<std::uint32_t>() != magic) refuse("it does not begin with the mark of an outcome");
  const auto length = reader.read<std::uint64_t>();
  const auto sum = reader.read<std::uint64_t>();
  if (reader.rest().size() != length) refuse(str("it has ", reader.rest().size(), " of ", length, " bytes"));
  if (fnv1a(reader.rest()) != sum) refuse("its checksum differs");
  RankOutcome outcome;
  visit(reader, outcome);
  if (!reader.rest().empty()) refuse("bytes follow its end");
  using Number = std::make_unsigned_t<std::underlying_type_t<RankStatus>>;
  if (static_cast<Number>(outcome.status) >= static_cast<Number>(RankStatus::count_)) refuse("its status is unknown");
  return outcome;
}

}  // namespace lockstep::verdict
