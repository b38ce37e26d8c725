// expect, expect_equal, expect_different, expect_across, expect_collectives.
#include <algorithm>
#include <set>

#include "engine/tensor/types_made.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

using scenario::Expr;
using scenario::ExprKind;
using scenario::Op;

namespace {

void count_condition(StepCall& call, const TrivialReadings& readings) {
  verdict::Evidence& evidence = call.live().evidence();
  (readings.any() ? evidence.trivial : evidence.conditions) += 1;
}

bool is_comparison(const Expr& expr) {
  return expr.kind == ExprKind::binary && expr.op >= Op::equal && expr.op <= Op::in;
}

void check_condition(StepCall& call, const Expr& expr) {
  const Site site = call.site();
  std::string seen;
  bool holds = false;
  const TrivialReadings readings;
  if (is_comparison(expr)) {
    // Each side is evaluated once, and the message shows both values.
    const Value left = evaluate(*expr.children[0], call.scope);
    const Value right = evaluate(*expr.children[1], call.scope);
    holds = apply_binary(expr.op, left, right).as_bool("a condition");
    if (!holds) seen = str(": left is ", describe(left), ", right is ", describe(right));
  } else {
    const Value value = evaluate(expr, call.scope);
    if (value.is(Value::Kind::list)) {
      const List& items = value.as_list("conditions");
      if (items.empty()) throw Error("expect: the list of conditions is empty");
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (items[i].as_bool(str("condition ", i)))
          count_condition(call, readings);
        else
          call.live().fail(site, str("`", to_text(expr), "` does not hold: item ", i, " is false"));
      }
      return;
    }
    holds = value.as_bool("a condition");
  }
  if (holds)
    count_condition(call, readings);
  else
    call.live().fail(site, str("`", to_text(expr), "` does not hold", seen));
}

// Reads a map {family: {operation: count}}.
CollectiveCounts stated_counts(const Value& map) {
  CollectiveCounts counts;
  for (const auto& [family, operations] : map.as_map("counts"))
    for (const auto& [operation, number] : operations.as_map(family.text)) {
      const std::int64_t count = number.as_int(str(family.text, "/", operation.text));
      if (count < 0) throw Error(str(family.text, "/", operation.text, " is ", count, ": a count is not negative"));
      counts[{family.text, operation.text}] = count;
    }
  return counts;
}

CollectiveFilter filter_of(StepCall& call) {
  CollectiveFilter filter;
  if (call.has("phase")) {
    const std::string phase = call.text("phase");
    for (const comm::Phase known :
         {comm::Phase::forward, comm::Phase::backward, comm::Phase::optimizer, comm::Phase::other})
      if (name_of(known) == phase) filter.phase = known;
    if (!filter.phase) throw Error(str("unknown phase `", phase, "`"));
  }
  if (call.has("dtype")) filter.dtype = call.value("dtype").as_dtype("dtype");
  if (call.has("mesh")) {
    const MeshPtr mesh = call.mesh();
    for (int axis = 0; axis < mesh->num_axes(); ++axis) filter.groups.push_back(&mesh->group(axis));
    if (mesh->num_axes() > 1) filter.groups.push_back(&mesh->mesh_group());
  }
  return filter;
}

// A window without work has no collectives, however the engine behaves: checks of its absent collectives are trivial.
void count_checked(StepCall& call, const Observation& seen, std::int64_t number, bool some) {
  verdict::Evidence& evidence = call.live().evidence();
  (some || seen.worked ? evidence.collectives_checked : evidence.trivial) += number;
}

// Compares every stated or observed number. A key that only one side has counts 0 on the other.
void compare_counts(StepCall& call, const Observation& seen_in, CollectiveFilter filter, const Value& map, bool bytes) {
  const CollectiveCounts stated = stated_counts(map);
  for (const auto& [family, operations] : map.as_map("counts")) {
    if (family.text == "start_up") filter.start_up = true;
    if (family.text == "checkpoint") filter.checkpoint = true;
  }
  const std::vector<const comm::LogEntry*> entries = select(seen_in, filter);
  const CollectiveCounts seen = count_collectives(entries, bytes);
  std::set<std::pair<std::string, std::string>> keys;
  for (const auto& [key, count] : stated) keys.insert(key);
  for (const auto& [key, count] : seen) keys.insert(key);
  std::string off;
  std::vector<const comm::LogEntry*> culprits;
  const auto at = [](const CollectiveCounts& counts, const auto& key) {
    const auto found = counts.find(key);
    return found == counts.end() ? std::int64_t{0} : found->second;
  };
  for (const auto& key : keys) {
    const std::int64_t expected = at(stated, key), actual = at(seen, key);
    if (expected == actual) continue;
    off += str(off.empty() ? "" : "; ", key.first, "/", key.second, ": expected ", expected, ", seen ", actual,
               bytes ? " bytes" : "");
    for (const comm::LogEntry* entry : entries)
      if (name_of(entry->family) == key.first && name_of(entry->operation) == key.second) culprits.push_back(entry);
  }
  const bool some =
      std::any_of(keys.begin(), keys.end(), [&](const auto& key) { return at(stated, key) + at(seen, key) > 0; });
  count_checked(call, seen_in, std::max<std::int64_t>(1, static_cast<std::int64_t>(keys.size())), some);
  if (off.empty()) return;
  if (!culprits.empty()) off += str(". Seen were ", list_collectives(culprits, 8));
  call.live().fail(call.site(), off);
}

}  // namespace

Value expect(StepCall& call) {
  const Expr& that = call.expr("that");
  if (that.kind == ExprKind::list) {
    if (that.children.empty()) throw Error("expect: the list of conditions is empty");
    for (const auto& child : that.children) check_condition(call, *child);
  } else {
    check_condition(call, that);
  }
  return Value();
}

Value expect_equal(StepCall& call) {
  EqualOptions options;
  options.rtol = call.maybe_number("rtol");
  options.atol = call.maybe_number("atol");
  options.of_largest = call.number("of_largest");
  options.bits = call.boolean("bits");
  options.bits_float32 = call.in.scenario().bits == scenario::Bits::required;
  options.library_sums = call.in.test_case().sum_order == scenario::SumOrder::library;
  options.coarsest = coarsest_type_made();
  options.gradients = call.boolean("gradients");
  const TrivialReadings readings;
  const Value actual = call.value("actual");
  const Value expected = call.value("expected");
  options.from_trivial_reading = readings.any();
  call.live().checks().add_equal(call.site(), call.source("actual"), actual, call.source("expected"), expected,
                                 options);
  return Value();
}

Value expect_different(StepCall& call) {
  EqualOptions options;
  options.rtol = call.maybe_number("rtol");
  options.atol = call.maybe_number("atol");
  options.different = true;
  const TrivialReadings readings;
  const Value actual = call.value("actual");
  const Value expected = call.value("expected");
  options.from_trivial_reading = readings.any();
  call.live().checks().add_equal(call.site(), call.source("actual"), actual, call.source("expected"), expected,
                                 options);
  return Value();
}

Value expect_across(StepCall& call) {
  const Value value = call.value("value");
  const MeshPtr mesh = call.mesh();
  const bool same = call.boolean("same");
  call.live().checks().add_across(call.site(), call.source("value"), value, mesh->shape().ranks(), same);
  return Value();
}

Value expect_collectives(StepCall& call) {
  const Value during = call.value("during");
  const Observation& seen = *during.as_observation("during");
  const CollectiveFilter filter = filter_of(call);
  if (!call.has("exactly") && !call.has("total") && !call.has("bytes"))
    throw Error("expect_collectives has nothing to check", "give `exactly`, `total` or `bytes`");
  if (call.has("exactly")) compare_counts(call, seen, filter, call.value("exactly"), false);
  if (call.has("bytes")) compare_counts(call, seen, filter, call.value("bytes"), true);
  if (call.has("total")) {
    const std::int64_t expected = call.integer("total");
    const std::vector<const comm::LogEntry*> entries = select(seen, filter);
    count_checked(call, seen, 1, expected + static_cast<std::int64_t>(entries.size()) > 0);
    if (static_cast<std::int64_t>(entries.size()) != expected)
      call.live().fail(call.site(), str("expected ", expected, " collectives, seen ", entries.size(), ": ",
                                        list_collectives(entries, 8)));
  }
  return Value();
}

}  // namespace lockstep::run::verbs
