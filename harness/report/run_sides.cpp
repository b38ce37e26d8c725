#include "harness/report/run_sides.hpp"

#include <algorithm>

namespace lockstep::report {

int badness(verdict::Status status) {
  switch (status) {
    case verdict::Status::PASS:
      return 0;
    case verdict::Status::XFAIL:
      return 1;
    case verdict::Status::SKIP:
    case verdict::Status::UNSUPPORTED:
      return 2;
    case verdict::Status::MISSING:
      return 3;
    default:
      return 4;
  }
}

bool was_executed(verdict::Status status) {
  return status == verdict::Status::PASS || status == verdict::Status::XFAIL || status == verdict::Status::FAIL;
}

Side::Side(const ResultsFile& file) {
  for (const verdict::CaseResult& row : file.cases) {
    const CaseKey key{row.scenario, row.case_id};
    const auto [at, is_first] = entries.try_emplace(key);
    SideEntry& entry = at->second;
    entry.rows.push_back(&row);
    if (is_first) order.push_back(key);
    if (is_first || badness(row.status) > badness(entry.row->status)) entry.row = &row;
    entry.seconds = std::min(entry.seconds, row.seconds);
  }
}

void ChangeList::add(Weight weight, std::string what, std::string text) {
  result_.changes.push_back({weight, std::move(what), key_.first, key_.second, std::move(text)});
}

void ChangeList::growth(std::string what, const std::string& text, bool is_worse) {
  add(is_worse ? Weight::worse : Weight::better, std::move(what), text);
}

}  // namespace lockstep::report
