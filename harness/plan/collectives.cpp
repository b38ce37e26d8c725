#include "harness/plan/collectives.hpp"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "engine/core/text.hpp"

namespace lockstep::plan {

namespace {

auto key_of(const Row& row) {
  return std::tie(row.family, row.operation, row.axis, row.group_size, row.phase, row.owner, row.line);
}

std::string group_text(const Row& row) {
  return row.axis.empty() ? str("a group of ", row.group_size) : str(row.axis, " of ", row.group_size);
}

std::string amount(const Row* row) {
  if (row == nullptr) return "none";
  return str(row->count, " of ", row->bytes_are_least ? "at least " : "", row->bytes, " bytes together");
}

bool agree(const Row& planned, const Row& seen) {
  if (planned.count != seen.count) return false;
  return planned.bytes_are_least ? seen.bytes >= planned.bytes : seen.bytes == planned.bytes;
}

const Row* find(const std::vector<Row>& rows, const Row& like) {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.same_kind(like); });
  return at == rows.end() ? nullptr : &*at;
}

Difference difference(const Row& of, const Row* planned, const Row* seen) {
  return {str(of.family, "/", of.operation, " over ", group_text(of), " in ", of.phase,
              of.owner.empty() ? std::string() : str(" for ", of.owner),
              of.line > 0 ? str(" (line ", of.line, ")") : std::string(), ": planned ", amount(planned), ", observed ",
              amount(seen)),
          of.line};
}

}  // namespace

bool Row::same_kind(const Row& other) const { return key_of(*this) == key_of(other); }

std::vector<Row> tally(const std::vector<Collective>& collectives, Grain grain) {
  std::vector<Row> rows;
  for (const Collective& one : collectives) {
    Row row{one.family,
            one.operation,
            one.axis,
            one.phase,
            grain.owners ? one.owner : std::string(),
            one.group_size,
            grain.lines ? one.line : 0,
            1,
            one.bytes,
            one.bytes_are_least};
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const Row& known) { return known.same_kind(row); });
    if (same == rows.end()) {
      rows.push_back(std::move(row));
      continue;
    }
    same->count += 1;
    same->bytes += one.bytes;
    same->bytes_are_least = same->bytes_are_least || one.bytes_are_least;
  }
  return rows;
}

std::vector<Difference> differences(const std::vector<Row>& planned, const std::vector<Row>& seen) {
  std::vector<Difference> found;
  for (const Row& row : planned) {
    const Row* other = find(seen, row);
    if (other == nullptr || !agree(row, *other)) found.push_back(difference(row, &row, other));
  }
  for (const Row& row : seen)
    if (find(planned, row) == nullptr) found.push_back(difference(row, nullptr, &row));
  return found;
}

std::string table(const std::vector<Collective>& collectives) {
  if (collectives.empty()) return "";
  std::vector<Collective> last;
  for (const Collective& one : collectives)
    if (one.turn == collectives.back().turn) last.push_back(one);
  const std::vector<Row> rows = tally(collectives, {.lines = false, .owners = true});
  const std::vector<Row> in_last = tally(last, {.lines = false, .owners = true});
  std::vector<std::vector<std::string>> cells = {
      {"phase", "family", "operation", "group", "last turn", "bytes", "in all", "for"}};
  for (const std::string_view phase : {"forward", "backward", "optimizer", "other"})
    for (const Row& row : rows) {
      if (row.phase != phase) continue;
      const Row* one = find(in_last, row);
      cells.push_back({row.phase, row.family, row.operation, group_text(row), str(one ? one->count : 0),
                       str(one && one->bytes_are_least ? "at least " : "", one ? one->bytes : 0), str(row.count),
                       row.owner});
    }
  std::vector<std::size_t> widths(cells[0].size(), 0);
  for (const auto& line : cells)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const auto& line : cells) {
    out += "  ";
    for (std::size_t i = 0; i < line.size(); ++i) {
      const bool number = 4 <= i && i <= 6;
      const std::string gap(widths[i] - line[i].size(), ' ');
      out += number ? gap + line[i] : line[i] + gap;
      if (i + 1 < line.size()) out += "  ";
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace lockstep::plan
