#include "harness/cli/plan_text.hpp"

#include <algorithm>
#include <map>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"

namespace lockstep::cli {

namespace {

constexpr plan::TallyKeys by_kind{.lines = false, .owners = false};
constexpr const char* phases[] = {"forward", "backward", "optimizer", "other"};

const std::vector<int>& members_of(const RankPlan& plan, const std::string& axis, int size) {
  static const std::vector<int> unknown;
  for (const run::PlanGroup& group : plan.outcome.groups)
    if (group.axis == axis && group.size == size) return group.members;
  return unknown;
}

std::string axis_text(const std::string& axis) { return axis.empty() ? "(several)" : axis; }

// Right-aligned where `numbers` says so.
std::string table_of(const std::vector<std::vector<std::string>>& cells, const std::vector<bool>& numbers) {
  std::vector<std::size_t> widths(numbers.size(), 0);
  for (const auto& line : cells)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const auto& line : cells) {
    std::string text = " ";
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string gap(widths[i] - line[i].size(), ' ');
      text += numbers[i] ? str(" ", gap, line[i], " ") : str(" ", line[i], gap, " ");
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  }
  return out;
}

std::string seconds_text(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.3f} ms", *seconds * 1e3) : std::string("unknown");
}

// By axis and group size, in the order of the plan; then by phase.
struct AxisBytes {
  std::string axis;
  int size = 0;
  std::map<std::string, std::int64_t> by_phase;
  std::int64_t total = 0;
};
std::vector<AxisBytes> bytes_by_axis(const std::vector<plan::Collective>& planned) {
  std::vector<AxisBytes> all;
  for (const plan::Collective& one : planned) {
    auto at = std::find_if(all.begin(), all.end(), [&](const AxisBytes& known) {
      return known.axis == one.axis && known.size == one.group_size;
    });
    if (at == all.end()) at = all.insert(all.end(), {one.axis, one.group_size, {}, 0});
    at->by_phase[one.phase] += one.bytes;
    at->total += one.bytes;
  }
  return all;
}

std::optional<double> sum_of(const std::vector<TimedRow>& rows) {
  double sum = 0.0;
  for (const TimedRow& one : rows) {
    if (!one.seconds) return std::nullopt;
    sum += *one.seconds;
  }
  return sum;
}

std::string collectives_text(const std::vector<TimedRow>& rows, bool with_times) {
  std::vector<std::vector<std::string>> cells = {{"phase", "family", "operation", "axis", "ranks", "count", "bytes"}};
  std::vector<bool> numbers = {false, false, false, false, true, true, true};
  if (with_times) {
    cells[0].insert(cells[0].end(), {"level", "time"});
    numbers.insert(numbers.end(), {false, true});
  }
  for (const char* phase : phases)
    for (const TimedRow& one : rows) {
      const plan::Row& row = one.row;
      if (row.phase != phase) continue;
      cells.push_back({row.phase, row.family, row.operation, axis_text(row.axis), str(row.group_size), str(row.count),
                       str(row.bytes_are_least ? "at least " : "", row.bytes)});
      if (with_times) cells.back().insert(cells.back().end(), {one.level, seconds_text(one.seconds)});
    }
  return table_of(cells, numbers);
}

std::string bytes_text(const std::vector<plan::Collective>& planned) {
  std::vector<std::vector<std::string>> cells = {{"axis", "ranks", "forward", "backward", "optimizer", "other", "all"}};
  for (AxisBytes& one : bytes_by_axis(planned)) {
    std::vector<std::string>& line = cells.emplace_back();
    line = {axis_text(one.axis), str(one.size)};
    for (const char* phase : phases) line.push_back(str(one.by_phase[phase]));
    line.push_back(str(one.total));
  }
  return table_of(cells, {false, true, true, true, true, true, true});
}

// The dry run computes with full sizes under tensor parallelism.
bool has_upper_bounds(const RankPlan& plan) {
  const std::vector<plan::Collective>& planned = plan.outcome.planned;
  return std::any_of(planned.begin(), planned.end(),
                     [](const plan::Collective& one) { return one.family == "tensor_parallel"; });
}

std::string memory_text(const device::MemoryStats& memory) {
  std::vector<std::vector<std::string>> cells;
  cells.reserve(device::num_purposes + 1);
  for (int i = 0; i < device::num_purposes; ++i)
    cells.push_back(
        {std::string(name_of(static_cast<device::Purpose>(i))), str(memory.peak[static_cast<std::size_t>(i)])});
  cells.push_back({"all at once", str(memory.peak_total)});
  return table_of(cells, {false, true});
}

}  // namespace

std::vector<TimedRow> timed_rows(const RankPlan& plan, const plan::Machine* machine) {
  std::vector<TimedRow> rows;
  for (plan::Row& row : plan::tally(plan.outcome.planned, by_kind)) {
    TimedRow& timed = rows.emplace_back(TimedRow{std::move(row), {}, {}});
    if (machine == nullptr) continue;
    const std::vector<int>& members = members_of(plan, timed.row.axis, timed.row.group_size);
    if (members.empty()) continue;
    timed.level = plan::level_of(*machine, members).name;
    timed.seconds = 0.0;
  }
  if (machine == nullptr) return rows;
  for (const plan::Collective& one : plan.outcome.planned) {
    const plan::Row kind = plan::tally({one}, by_kind).front();
    TimedRow& timed =
        *std::find_if(rows.begin(), rows.end(), [&](const TimedRow& known) { return known.row.same_kind(kind); });
    if (timed.seconds)
      *timed.seconds +=
          plan::seconds_of(*machine, one.operation, members_of(plan, one.axis, one.group_size), one.bytes);
  }
  return rows;
}

std::string plan_page(const RankPlan& plan, const plan::Machine* machine) {
  const std::vector<TimedRow> rows = timed_rows(plan, machine);
  std::string text =
      str(plan.scenario, " [", plan.case_id, "]", plan.stage.empty() ? "" : ", stage ", plan.stage, ": rank ",
          plan.rank, " of ", plan.world_size, "\n\nCollectives of all steps\n",
          collectives_text(rows, machine != nullptr), "\nBytes by axis and phase\n", bytes_text(plan.outcome.planned),
          "\nPeak memory in bytes\n", memory_text(plan.outcome.memory));
  if (has_upper_bounds(plan))
    text += "  (parameter and activation are upper bounds: tensor parallelism is planned with full sizes)\n";
  if (machine != nullptr)
    text +=
        str("\nTime of the collectives on ", machine->name, " if nothing overlaps: ", seconds_text(sum_of(rows)), "\n");
  for (const std::string& reason : plan.outcome.left_out)
    text += str("\ntensor_parallel is incomplete: ", reason, "\n");
  if (!plan.outcome.unforeseen.empty())
    text += str("\nThe plan ends early, because later steps cannot be foretold: ", plan.outcome.unforeseen, "\n");
  return text;
}

std::string plan_json(const RankPlan& plan, const plan::Machine* machine) {
  using Json = nlohmann::ordered_json;
  Json line = {{"kind", "plan"},
               {"scenario", plan.scenario},
               {"case", plan.case_id},
               {"rank", plan.rank},
               {"world_size", plan.world_size}};
  if (!plan.stage.empty()) line["stage"] = plan.stage;
  const std::vector<TimedRow> rows = timed_rows(plan, machine);
  line["collectives"] = Json::array();
  for (const TimedRow& one : rows) {
    const plan::Row& row = one.row;
    Json entry = {
        {"family", row.family}, {"operation", row.operation}, {"axis", row.axis},  {"group_size", row.group_size},
        {"phase", row.phase},   {"count", row.count},         {"bytes", row.bytes}};
    if (row.bytes_are_least) entry["bytes_are_least"] = true;
    if (one.seconds) {
      entry["level"] = one.level;
      entry["seconds"] = *one.seconds;
    }
    line["collectives"].push_back(std::move(entry));
  }
  line["bytes"] = Json::array();
  for (const AxisBytes& one : bytes_by_axis(plan.outcome.planned))
    line["bytes"].push_back({{"axis", one.axis}, {"group_size", one.size}, {"by_phase", one.by_phase}});
  for (int i = 0; i < device::num_purposes; ++i)
    line["memory"][std::string(name_of(static_cast<device::Purpose>(i)))] =
        plan.outcome.memory.peak[static_cast<std::size_t>(i)];
  line["memory"]["peak_total"] = plan.outcome.memory.peak_total;
  if (has_upper_bounds(plan)) line["memory_upper_bounds"] = {"parameter", "activation", "peak_total"};
  if (machine != nullptr) {
    line["machine"] = machine->name;
    if (const auto seconds = sum_of(rows)) line["seconds"] = *seconds;
  }
  if (!plan.outcome.left_out.empty()) line["left_out"] = plan.outcome.left_out;
  if (!plan.outcome.unforeseen.empty()) line["unforeseen"] = plan.outcome.unforeseen;
  return line.dump();
}

}  // namespace lockstep::cli
