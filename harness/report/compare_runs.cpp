#include "harness/report/compare_runs.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "engine/core/error.hpp"
#include "harness/report/console.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {

namespace {

using verdict::CaseResult;
using verdict::Evidence;
using verdict::Status;

using CaseKey = std::pair<std::string, std::string>;  // scenario, case

// Larger is worse.
int badness(Status status) {
  switch (status) {
    case Status::PASS:
      return 0;
    case Status::XFAIL:
      return 1;
    case Status::SKIP:
    case Status::UNSUPPORTED:
      return 2;
    default:
      return 3;
  }
}

bool was_executed(Status status) { return status == Status::PASS || status == Status::XFAIL || status == Status::FAIL; }

// One case of a run: the row to compare (the worst of its repetitions) and its shortest time.
struct Entry {
  const CaseResult* row = nullptr;
  double seconds = std::numeric_limits<double>::infinity();
};

struct Side {
  std::vector<CaseKey> order;
  std::map<CaseKey, Entry> entries;

  explicit Side(const ResultsFile& file) {
    for (const CaseResult& row : file.cases) {
      const CaseKey key{row.scenario, row.case_id};
      Entry& entry = entries[key];
      if (entry.row == nullptr) order.push_back(key);
      if (entry.row == nullptr || badness(row.status) > badness(entry.row->status)) entry.row = &row;
      entry.seconds = std::min(entry.seconds, row.seconds);
    }
  }
};

class Collector {
 public:
  explicit Collector(RunComparison& result) : result_(result) {}
  void at(const CaseKey& key) { key_ = key; }
  void add(Weight weight, std::string what, std::string text) {
    result_.changes.push_back({weight, std::move(what), key_.first, key_.second, std::move(text)});
  }
  // More is worse.
  void growth(std::string what, const std::string& text, bool more) {
    add(more ? Weight::worse : Weight::better, std::move(what), text);
  }

 private:
  RunComparison& result_;
  CaseKey key_;
};

std::string arrow(std::int64_t before, std::int64_t after) { return str(before, " -> ", after); }

void compare_verdicts(Collector& out, const CaseResult& before, const CaseResult& after) {
  if (before.status == after.status) return;
  std::string text = str(verdict::name_of(before.status), " -> ", verdict::name_of(after.status));
  if (after.failure) {
    const std::string place = place_text(*after.failure);
    const std::string& message = after.failure->message;
    text += str(": ", place, place.empty() ? "" : ": ", message.substr(0, message.find('\n')));
  } else if (!after.reason.empty()) {
    text += ": " + after.reason;
  }
  const int step = badness(after.status) - badness(before.status);
  out.add(step > 0 ? Weight::worse : step < 0 ? Weight::better : Weight::other, "verdict", text);
}

void compare_evidence(Collector& out, const Evidence& before, const Evidence& after) {
  if (before.conditions_apart != after.conditions_apart)
    return compare_evidence(out, before.with_conditions_among_comparisons(), after.with_conditions_among_comparisons());
  const auto amount = [&](const char* name, std::int64_t Evidence::*field) {
    if (before.*field == after.*field) return;
    out.growth("evidence", str(name, " ", arrow(before.*field, after.*field)), after.*field < before.*field);
  };
  amount("comparisons", &Evidence::comparisons);
  amount("conditions", &Evidence::conditions);
  amount("elements compared", &Evidence::elements);
  amount("collectives checked", &Evidence::collectives_checked);
  amount("orders checked", &Evidence::orders_checked);
  amount("expected errors", &Evidence::errors_expected);
  amount("collectives in the planned order", &Evidence::planned_in_order);
  const auto differing = [](const Evidence& e) { return e.comparisons - e.same_bits; };
  if (differing(before) != differing(after)) {
    const bool more = differing(after) > differing(before);
    const bool vanished = !more && after.comparisons < before.comparisons;  // worse already, and no better bits
    const std::string text = str("comparisons whose bits differ ", arrow(differing(before), differing(after)), " (of ",
                                 after.comparisons, ", largest difference ", after.max_abs_difference, ")");
    out.add(more ? Weight::worse : vanished ? Weight::other : Weight::better, "bits", text);
  }
  if (before.bits_required != after.bits_required) {
    out.growth("bits", "comparisons that require the same bits " + arrow(before.bits_required, after.bits_required),
               after.bits_required < before.bits_required);
  }
  const auto tolerance = [&](const char* name, double old_value, double new_value) {
    if (old_value == new_value) return;
    out.growth("tolerance", str("loosest ", name, " ", old_value, " -> ", new_value), new_value > old_value);
  };
  tolerance("rtol", before.loosest.rtol, after.loosest.rtol);
  tolerance("atol", before.loosest.atol, after.loosest.atol);
  tolerance("of_largest", before.loosest.of_largest, after.loosest.of_largest);
}

// Count and bytes of one kind of collective, rank by rank.
struct Traffic {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};
using Kind = std::tuple<std::string, std::string, std::string, std::string, std::string, int>;

std::map<Kind, std::vector<Traffic>> traffic_of(const CaseResult& row, int num_ranks) {
  std::map<Kind, std::vector<Traffic>> traffic;
  for (const auto& c : row.collectives) {
    auto& ranks = traffic[{c.stage, c.family, c.operation, c.phase, c.axis, c.group_size}];
    ranks.resize(static_cast<std::size_t>(num_ranks));
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (c.rank >= 0 && c.rank != rank) continue;
      ranks[static_cast<std::size_t>(rank)].count += c.count;
      ranks[static_cast<std::size_t>(rank)].bytes += c.bytes;
    }
  }
  return traffic;
}

int ranks_of(const CaseResult& row) {
  int num_ranks = 1;
  for (const auto& c : row.collectives) num_ranks = std::max(num_ranks, std::min(c.rank, 1 << 20) + 1);
  return num_ranks;
}

void compare_collectives(Collector& out, const CaseResult& before, const CaseResult& after) {
  const int num_ranks = std::max(ranks_of(before), ranks_of(after));
  auto old_traffic = traffic_of(before, num_ranks);
  auto new_traffic = traffic_of(after, num_ranks);
  std::set<Kind> kinds;
  for (const auto& entry : old_traffic) kinds.insert(entry.first);
  for (const auto& entry : new_traffic) kinds.insert(entry.first);
  for (const Kind& kind : kinds) {
    auto& old_ranks = old_traffic[kind];
    auto& new_ranks = new_traffic[kind];
    old_ranks.resize(static_cast<std::size_t>(num_ranks));
    new_ranks.resize(static_cast<std::size_t>(num_ranks));
    if (old_ranks == new_ranks) continue;
    // The text is about the first rank that differs. More on any rank is worse, and so is a kind that no rank makes.
    const auto first = std::mismatch(old_ranks.begin(), old_ranks.end(), new_ranks.begin());
    bool more = false, gone = true;
    for (std::size_t rank = 0; rank < old_ranks.size(); ++rank) {
      more = more || new_ranks[rank].count > old_ranks[rank].count || new_ranks[rank].bytes > old_ranks[rank].bytes;
      gone = gone && new_ranks[rank].count == 0;
    }
    const auto& [stage, family, operation, phase, axis, group_size] = kind;
    std::string text = str(family, "/", operation, " in ", phase, ", group of ", group_size);
    if (!axis.empty()) text += str(" along ", axis);
    if (!stage.empty()) text += str(", stage ", stage);
    if (num_ranks > 1) text += str(", rank ", static_cast<std::int64_t>(first.first - old_ranks.begin()));
    if (first.first->count != first.second->count) text += ": count " + arrow(first.first->count, first.second->count);
    if (first.first->bytes != first.second->bytes) {
      text += str(first.first->count != first.second->count ? ", bytes " : ": bytes ",
                  arrow(first.first->bytes, first.second->bytes));
    }
    if (gone) text += "; the new run makes none of this kind";
    out.growth("collectives", text, more || gone);
  }
}

void compare_memory(Collector& out, const CaseResult& before, const CaseResult& after, double ratio) {
  const auto old_peak = before.memory.find("peak_total");
  const auto new_peak = after.memory.find("peak_total");
  if (old_peak == before.memory.end() || new_peak == after.memory.end()) return;
  const auto old_bytes = static_cast<double>(old_peak->second);
  const auto new_bytes = static_cast<double>(new_peak->second);
  if (std::max(old_bytes, new_bytes) <= ratio * std::min(old_bytes, new_bytes)) return;
  out.add(Weight::other, "memory", str("peak ", bytes_text(old_bytes), " -> ", bytes_text(new_bytes)));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string times_text(double before, double after) {
  return fmt::format("{:.3g} s -> {:.3g} s, {:.3g} times", before, after, after / before);
}

// Time: cases by their shortest repetition. All cases drift together with the machine's load and scatter around that
// drift; only what stands out of both counts.
void compare_times(Collector& out, const Side& before, const Side& after, const CompareRunsOptions& options) {
  struct Pair {
    CaseKey key;
    double before;
    double after;
  };
  std::vector<Pair> pairs;
  std::vector<double> ratios;  // logarithms
  double old_total = 0;
  double new_total = 0;
  for (const CaseKey& key : before.order) {
    const auto found = after.entries.find(key);
    if (found == after.entries.end()) continue;
    const Entry& a = before.entries.at(key);
    const Entry& b = found->second;
    const bool both = was_executed(a.row->status) && a.row->status == b.row->status;
    if (!both || !(a.seconds > 0) || !(b.seconds > 0) || !std::isfinite(a.seconds) || !std::isfinite(b.seconds))
      continue;
    pairs.push_back({key, a.seconds, b.seconds});
    ratios.push_back(std::log(b.seconds / a.seconds));
    old_total += a.seconds;
    new_total += b.seconds;
  }
  if (pairs.empty()) return;
  const auto time_change = [&](const std::string& text, bool slower) {
    if (options.time_gates) return out.growth("time", text, slower);
    out.add(Weight::other, "time", text);
  };
  double drift = 0;
  double limit = std::log(options.time_ratio);
  if (ratios.size() >= 8) {
    drift = median(ratios);
    std::vector<double> deviations;
    deviations.reserve(ratios.size());
    for (const double ratio : ratios) deviations.push_back(std::fabs(ratio - drift));
    limit = std::max(limit, 5 * median(deviations));
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    const double off = ratios[i] - drift;
    const double expected = pair.before * std::exp(drift);
    if (std::fabs(off) <= limit || std::fabs(pair.after - expected) <= options.time_floor) continue;
    out.at(pair.key);
    time_change(times_text(pair.before, pair.after), off > 0);
  }
  const bool apart = std::fabs(new_total - old_total) > options.time_floor;
  const double overall = std::log(new_total / old_total);
  if (pairs.size() >= 8 && apart && std::fabs(drift) > std::log(options.overall_ratio) &&
      std::fabs(overall) > std::log(options.overall_ratio)) {
    out.at({});
    time_change(str("all ", pairs.size(), " cases together: ", times_text(old_total, new_total)), overall > 0);
  }
}

std::string fact(const std::map<std::string, std::string>& facts, const char* key) {
  const auto found = facts.find(key);
  return found == facts.end() ? std::string("unknown") : found->second;
}

bool same_machine(RunComparison& result, const verdict::RunInfo& before, const verdict::RunInfo& after) {
  bool same = true;
  const auto look = [&](const char* what, const std::string& a, const std::string& b) {
    if (a == b) return;
    same = false;
    result.warnings.push_back(str("times are not compared: ", what, " ", a, " -> ", b));
  };
  look("processor", fact(before.machine, "cpu"), fact(after.machine, "cpu"));
  look("cores", fact(before.machine, "cores"), fact(after.machine, "cores"));
  look("compiler", fact(before.build, "compiler"), fact(after.build, "compiler"));
  look("Kokkos", fact(before.build, "kokkos"), fact(after.build, "kokkos"));
  look("BLAS", fact(before.build, "blas"), fact(after.build, "blas"));
  return same;
}

void compare_case(Collector& out, const CaseResult& before, const CaseResult& after,
                  const CompareRunsOptions& options) {
  compare_verdicts(out, before, after);
  // What a failed or left-out case gathered says nothing beyond its verdict.
  if (before.status != after.status || !was_executed(before.status) || before.status == Status::FAIL) return;
  compare_evidence(out, before.evidence, after.evidence);
  compare_collectives(out, before, after);
  compare_memory(out, before, after, options.memory_ratio);
}

}  // namespace

std::string_view name_of(Weight weight) {
  switch (weight) {
    case Weight::worse:
      return "worse";
    case Weight::better:
      return "better";
    case Weight::other:
      break;
  }
  return "other";
}

RunComparison compare_runs(const ResultsFile& before, const ResultsFile& after, const CompareRunsOptions& options) {
  RunComparison result;
  result.old_path = before.path;
  result.new_path = after.path;
  for (const ResultsFile* file : {&before, &after}) {
    result.warnings.insert(result.warnings.end(), file->warnings.begin(), file->warnings.end());
  }
  const Side old_side(before);
  const Side new_side(after);
  Collector out(result);
  for (const CaseKey& key : old_side.order) {
    const CaseResult& old_row = *old_side.entries.at(key).row;
    out.at(key);
    const auto found = new_side.entries.find(key);
    if (found == new_side.entries.end()) {
      out.add(Weight::worse, "gone", str("was ", verdict::name_of(old_row.status), ", is not in the new file"));
      continue;
    }
    ++result.num_compared;
    compare_case(out, old_row, *found->second.row, options);
  }
  for (const CaseKey& key : new_side.order) {
    if (old_side.entries.contains(key)) continue;
    const Status status = new_side.entries.at(key).row->status;
    out.at(key);
    out.add(verdict::is_unexpected(status) ? Weight::worse : Weight::other, "new",
            std::string(verdict::name_of(status)));
  }
  if (same_machine(result, before.run, after.run)) compare_times(out, old_side, new_side, options);
  std::stable_sort(result.changes.begin(), result.changes.end(),
                   [](const Change& a, const Change& b) { return a.weight < b.weight; });
  std::set<CaseKey> changed;
  for (const Change& change : result.changes) {
    if (change.weight == Weight::worse) ++result.num_worse;
    if (!change.scenario.empty() && change.what != "gone" && change.what != "new") {
      changed.insert({change.scenario, change.case_id});
    }
  }
  result.num_changed = static_cast<int>(changed.size());
  return result;
}

std::string to_text(const RunComparison& comparison) {
  std::string text;
  for (const std::string& warning : comparison.warnings) text += str("note: ", printable(warning), "\n");
  for (const Change& change : comparison.changes) {
    text += fmt::format("{:<7} {:<12}", name_of(change.weight), change.what);
    if (!change.scenario.empty()) text += printable_line(str(change.scenario, " [", change.case_id, "]: "));
    text += printable_line(change.text) + "\n";
  }
  std::map<Weight, int> counts;
  for (const Change& change : comparison.changes) ++counts[change.weight];
  text +=
      str(comparison.num_compared, " cases in both, ", comparison.num_changed, " changed; ", counts[Weight::worse],
          " changes for the worse, ", counts[Weight::better], " for the better, ", counts[Weight::other], " other\n");
  return text;
}

std::string to_json(const RunComparison& comparison) {
  const auto list = [](const auto& items, const auto& render) {
    std::string text;
    for (const auto& item : items) text += str(text.empty() ? "" : ",", render(item));
    return str("[", text, "]");
  };
  const auto change_json = [](const Change& change) {
    return str("{\"weight\":", json_text(name_of(change.weight)), ",\"what\":", json_text(change.what),
               ",\"scenario\":", json_text(change.scenario), ",\"case\":", json_text(change.case_id),
               ",\"text\":", json_text(change.text), "}");
  };
  return str("{\"kind\":\"comparison\",\"old\":", json_text(comparison.old_path),
             ",\"new\":", json_text(comparison.new_path), ",\"compared\":", comparison.num_compared,
             ",\"changed\":", comparison.num_changed, ",\"worse\":", comparison.num_worse,
             ",\"changes\":", list(comparison.changes, change_json),
             ",\"warnings\":", list(comparison.warnings, json_text), ",\"exit_code\":", comparison.exit_code(), "}");
}

int compare_command(const std::string& old_path, const std::string& new_path, const CompareCommandOptions& options) {
  const ResultsFile before = read_results(old_path), after = read_results(new_path);
  // The cases that a cut file lacks would pass for new ones.
  if (!before.summary && !options.allow_cut)
    throw Error(str(old_path, " has no summary: its run was cut after ", before.cases.size(), " cases"),
                "compare with a whole run, or give --allow-cut");
  CompareRunsOptions how;
  how.time_gates = options.time_gates;
  const RunComparison comparison = compare_runs(before, after, how);
  const std::string text = options.json ? to_json(comparison) + "\n" : to_text(comparison);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return comparison.exit_code();
}

}  // namespace lockstep::report
