#include "harness/cli/case_schedules.hpp"

#include <algorithm>
#include <utility>

#include "engine/core/error.hpp"
#include "harness/report/text.hpp"

namespace lockstep::cli {

namespace {

bool is_same_failure(const verdict::CaseResult& a, const verdict::CaseResult& b) {
  if (a.status != b.status || a.failure.has_value() != b.failure.has_value()) return false;
  return !a.failure || a.failure->check == b.failure->check;
}

}  // namespace

CaseSchedules::CaseSchedules(const ScheduleOptions& options)
    : options_(options), search_(options.request, options.count), current_(std::make_shared<launch::RunSchedule>()) {
  current_->spec = *search_.next();
}

bool CaseSchedules::goes_on(verdict::CaseResult row) {
  seconds_ += row.seconds;
  const bool again = shrinker_ ? shrink(std::move(row)) : search(std::move(row));
  if (!again) row_.seconds = seconds_;
  return again;
}

bool CaseSchedules::search(verdict::CaseResult row) {
  const schedule::Record& record = current_->record();
  most_decisions_ = std::max(most_decisions_, record.num_decisions);
  row_ = std::move(row);
  search_.ran(record);
  if (verdict::is_unexpected(row_.status)) {
    found_by_ = search_.text();
    seconds_to_failure_ = seconds_;
    const std::vector<schedule::Switch> switches =
        record.num_kept == record.num_decisions ? record.switches() : std::vector<schedule::Switch>();
    num_found_ = switches.size();
    const bool replays = options_.request.kind == launch::ScheduleRequest::Kind::replay;
    shrinker_.emplace(switches, replays ? 0 : options_.max_runs_to_shrink);
    return start_candidate();
  }
  const std::optional<launch::ScheduleSpec> next = search_.next();
  if (next) current_->spec = *next;
  return next.has_value();
}

bool CaseSchedules::shrink(verdict::CaseResult row) {
  const bool fails = is_same_failure(row, row_);
  shrinker_->judged(fails, current_->record());
  if (fails) row_ = std::move(row);
  return start_candidate();
}

bool CaseSchedules::start_candidate() {
  if (seconds_ - seconds_to_failure_ > options_.seconds_to_shrink) return false;
  const std::optional<std::vector<schedule::Switch>> candidate = shrinker_->candidate();
  if (!candidate) return false;
  current_->spec = {};
  current_->spec.switches = *candidate;
  return true;
}

std::string CaseSchedules::text() const {
  if (!shrinker_) {
    const std::string all = search_.has_run_all() ? ", all that there are" : "";
    return str(report::plural(search_.num_run(), "schedule"), " passed", all, ", up to ", most_decisions_,
               " decisions");
  }
  const std::size_t count = shrinker_->switches().size();
  std::string text = str("schedule ", found_by_, " (number ", search_.num_run(), ", ",
                         str(num_found_, num_found_ == 1 ? " switch" : " switches"), ") fails; after ",
                         report::plural(shrinker_->num_run(), "run"), " it fails ",
                         count == 0 ? "without a switch" : str("with ", count, ":"));
  constexpr std::size_t most_named = 8;
  for (std::size_t i = 0; i < std::min(count, most_named); ++i)
    text += str(i == 0 ? " " : "; ", to_text(shrinker_->switches()[i]));
  return text + (count > most_named ? "; ..." : "");
}

}  // namespace lockstep::cli
