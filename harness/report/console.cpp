#include "harness/report/console.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {

namespace {

using verdict::CaseResult;
using verdict::Status;

constexpr std::string_view green = "32";
constexpr std::string_view red = "1;31";
constexpr std::string_view yellow = "33";
constexpr std::string_view dim = "2";

std::string_view color_of(Status status) {
  switch (status) {
    case Status::PASS:
      return green;
    case Status::XFAIL:
    case Status::SKIP:
    case Status::UNSUPPORTED:
      return yellow;
    default:
      return red;
  }
}

std::string indented(std::string_view text) {
  std::string out = "  ";
  for (const char c : text) {
    out += c;
    if (c == '\n') out += "  ";
  }
  return out;
}

std::string seconds_text(double seconds) {
  if (!(seconds >= 0)) return "";
  return seconds < 10 ? fmt::format("{:.3f} s", seconds) : fmt::format("{:.1f} s", seconds);
}

// "12 comparisons (12 with the same bits), 4 collectives checked"
std::string evidence_text(const verdict::Evidence& evidence) {
  std::string text = plural(evidence.comparisons, "comparison");
  if (evidence.comparisons > 0) text += str(" of ", plural(evidence.elements, "element"));
  if (evidence.same_bits > 0) text += str(", ", evidence.same_bits, " with the same bits");
  if (evidence.bits_relaxed > 0)
    text += str(", ", evidence.bits_relaxed, " by tolerance in place of required bits, for the order of sums");
  if (evidence.same_bits < evidence.comparisons) {
    text += str(", largest difference ", evidence.max_abs_difference, " within rtol ", evidence.loosest.rtol, ", atol ",
                evidence.loosest.atol);
    if (evidence.loosest.of_largest != 0) text += str(", of_largest ", evidence.loosest.of_largest);
  }
  if (evidence.conditions > 0) text += str(", ", plural(evidence.conditions, "condition"));
  if (evidence.trivial > 0) text += str(", ", evidence.trivial, " trivial");
  if (evidence.collectives_checked > 0)
    text += str(", ", plural(evidence.collectives_checked, "collective"), " checked");
  if (evidence.orders_checked > 0) text += str(", ", plural(evidence.orders_checked, "order"), " checked");
  if (evidence.errors_expected > 0) text += str(", ", plural(evidence.errors_expected, "expected error"));
  if (evidence.planned_in_order > 0)
    text += str(", ", plural(evidence.planned_in_order, "collective"), " in the planned order");
  return text;
}

std::string collective_text(const verdict::CollectiveCount& row) {
  std::string text = str(row.family, "/", row.operation, " x ", row.count, ", ", bytes_text(double(row.bytes)), ", ",
                         row.phase, ", group of ", row.group_size);
  if (!row.axis.empty()) text += str(" along ", row.axis);
  if (row.rank >= 0) text += str(", rank ", row.rank);
  if (!row.stage.empty()) text += str(", stage ", row.stage);
  return text;
}

// "plans judged 12, not judged 3: ended early 1, nothing to plan 2"
std::string plans_text(const verdict::Summary& summary) {
  int others = 0;
  std::string kinds;
  for (const auto& [kind, count] : summary.plans_not_judged) {
    others += count;
    kinds += str(kinds.empty() ? ": " : ", ", kind, " ", count);
  }
  return str("plans judged ", summary.num_plans_judged, ", not judged ", others, kinds);
}

// "planning took 0.4 of the ranks' 12.3 s of CPU time (3.3 %), with 120 dry runs"
std::string planning_text(const verdict::PlanningCost& cost) {
  return fmt::format("planning took {:.3g} of the ranks' {:.3g} s of CPU time ({:.1f} %), with {}", cost.seconds,
                     cost.rank_seconds, 100 * cost.seconds / cost.rank_seconds, plural(cost.num_dry_runs, "dry run"));
}

}  // namespace

When when_from_name(std::string_view name) {
  if (name == "auto") return When::automatic;
  if (name == "always") return When::always;
  if (name == "never") return When::never;
  throw Error(str("'", name, "' is not a valid choice"), "choose auto, always or never");
}

ConsoleOptions console_options(int file_descriptor, When color, When progress, int verbosity) {
  const bool terminal = ::isatty(file_descriptor) == 1;
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  ConsoleOptions options;
  options.verbosity = verbosity;
  options.color = color == When::always ||
                  (color == When::automatic && terminal && !dumb && (no_color == nullptr || *no_color == '\0'));
  options.progress = progress == When::always || (progress == When::automatic && terminal && !dumb);
  winsize size{};
  if (terminal && ::ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) options.width = size.ws_col;
  return options;
}

std::string place_text(const verdict::Failure& failure) {
  if (failure.file.empty()) return {};
  std::string text = printable_line(failure.file);
  if (failure.line > 0) text += str(":", failure.line);
  if (failure.line > 0 && failure.column > 0) text += str(":", failure.column);
  if (failure.scenario_line > 0) text += str(" (used in line ", failure.scenario_line, ")");
  return text;
}

constexpr std::size_t others_shown = 8;  // ranks whose failure is printed beside the first

std::string failure_text(const CaseResult& row) {
  std::string text;
  if (row.failure) {
    const verdict::Failure& failure = *row.failure;
    std::string head = place_text(failure);
    const auto add = [&](const std::string& piece, std::string_view between) {
      head += str(head.empty() ? std::string_view() : between, piece);
    };
    if (!failure.check.empty()) add(failure.check, ": ");
    if (failure.rank >= 0) add(str("rank ", failure.rank), failure.check.empty() ? ": " : ", ");
    if (failure.iteration >= 0) add(str("iteration ", failure.iteration), ", ");
    if (!head.empty()) text += head + "\n";
    text += failure.message;
    const std::size_t shown = std::min(failure.also.size(), others_shown);
    for (std::size_t i = 0; i < shown; ++i) text += str("\nalso ", failure.also[i]);
    if (const std::size_t left = failure.also.size() - shown; left > 0)
      text += str("\nalso ", left, left == 1 ? " other rank" : " other ranks", "; results files have each message");
  } else if (row.status == Status::XPASS) {
    text = "a failure was expected, but the case passed: " + row.reason;
  } else {
    text = row.reason;
  }
  if (!row.repro.empty()) text += str(text.empty() ? "" : "\n", "again: ", printable_line(row.repro));
  return text;
}

Console::Console(std::ostream& out, ConsoleOptions options) : out_(out), options_(std::move(options)) {}

void Console::begin(int num_cases) {
  num_cases_ = num_cases;
  num_finished_ = 0;
  draw();
}

void Console::finished(const CaseResult& row) {
  ++num_finished_;
  num_bits_relaxed_ += row.evidence.bits_relaxed;
  const bool ran = row.status != Status::SKIP && row.status != Status::UNSUPPORTED && row.status != Status::MISSING;
  if (ran && !row.sum_order.empty()) ++num_with_library_sums_;
  if (row.status == Status::MISSING && !row.failure) {
    ++missing_[row.reason];
    return draw();
  }
  const bool unexpected = verdict::is_unexpected(row.status);
  const std::string name = printable_line(str(row.scenario, " [", row.case_id, "]"));
  last_ = name;
  wipe();
  if (unexpected || options_.verbosity >= 0) {
    out_ << status_text(row.status) << ' ' << name;
    const std::string time = row.seconds > 0 ? seconds_text(row.seconds) : std::string();
    if (!time.empty()) out_ << "  " << paint(time, dim);
    // The reason of an unexpected result is part of the failure below.
    if (!row.reason.empty() && !unexpected) out_ << "  " << printable_line(row.reason);
    out_ << '\n';
  }
  if (unexpected) {
    unexpected_.push_back(str(verdict::name_of(row.status), " ", name));
    const std::string text = failure_text(row);
    if (!text.empty()) out_ << indented(printable(text)) << '\n';
  } else if (options_.verbosity > 0) {
    if (row.failure) out_ << indented(printable(failure_text(row))) << '\n';
    if (row.status == Status::PASS || row.status == Status::XFAIL) {
      out_ << "  " << paint(evidence_text(row.evidence), dim) << '\n';
      if (row.plan_verdict && !row.plan_verdict->is_judged)
        out_ << "  " << paint(printable_line("the plan was not judged: " + row.plan_verdict->reason), dim) << '\n';
      if (row.plan_verdict)
        for (const std::string& text : row.plan_verdict->left_out)
          out_ << "  " << paint(printable_line("not planned: " + text), dim) << '\n';
      if (row.planning.num_dry_runs > 0) out_ << "  " << paint(planning_text(row.planning), dim) << '\n';
      for (const auto& collective : row.collectives) {
        out_ << "  " << paint(printable_line(collective_text(collective)), dim) << '\n';
      }
      const auto peak = row.memory.find("peak_total");
      if (peak != row.memory.end()) {
        out_ << "  " << paint("memory peak " + bytes_text(double(peak->second)), dim) << '\n';
      }
    }
  }
  draw();
  out_.flush();
}

void Console::note(std::string_view text) {
  wipe();
  out_ << printable(text) << '\n';
  draw();
  out_.flush();
}

void Console::end(const verdict::Summary& summary, const std::string& results_path) {
  wipe();
  num_cases_ = 0;
  if (unexpected_.size() > 1 || (unexpected_.size() == 1 && num_finished_ > 20)) {
    out_ << "\nunexpected results:\n";
    for (const std::string& line : unexpected_) out_ << "  " << line << '\n';
  }
  for (const auto& [reason, count] : missing_)
    out_ << '\n' << status_text(Status::MISSING) << ' ' << plural(count, "case") << ": " << printable_line(reason);
  if (!missing_.empty()) out_ << '\n';
  out_ << '\n';
  int total = 0;
  for (int i = 0; i < verdict::num_statuses; ++i) {
    const auto status = static_cast<Status>(i);
    const auto found = summary.counts.find(std::string(verdict::name_of(status)));
    if (found == summary.counts.end() || found->second == 0) continue;
    total += found->second;
    out_ << status_text(status) << fmt::format(" {:>6}", found->second) << '\n';
  }
  out_ << fmt::format("{:<11} {:>6}", "cases", total) << "  in " << seconds_text(summary.seconds) << '\n';
  if (options_.verbosity > 0) {
    out_ << plans_text(summary) << '\n';
    if (summary.planning.rank_seconds > 0) out_ << planning_text(summary.planning) << '\n';
  }
  if (num_with_library_sums_ > 0)
    out_ << "sums in the order of the library in " << plural(num_with_library_sums_, "case")
         << "; tolerances took the place of required bits in " << plural(num_bits_relaxed_, "comparison") << '\n';
  if (!options_.note.empty()) out_ << options_.note << '\n';
  if (!results_path.empty()) out_ << "results: " << printable_line(results_path) << '\n';
  if (summary.exit_code == 4) out_ << "nothing was executed\n";
  if (summary.exit_code == 77) out_ << "nothing was executed: this machine lacks what the cases need\n";
  if (summary.exit_code == 130) out_ << "interrupted; the results so far are kept\n";
  if (summary.exit_code == 124) out_ << "the time-out of the whole run has passed; the results so far are kept\n";
  out_.flush();
}

void Console::wipe() {
  if (!drawn_) return;
  out_ << "\r\x1b[K";
  drawn_ = false;
}

void Console::draw() {
  if (!options_.progress || num_cases_ <= 0 || num_finished_ >= num_cases_) return;
  wipe();
  std::string line = fmt::format("[{}/{}]", num_finished_, num_cases_);
  if (!unexpected_.empty()) line += str(" ", unexpected_.size(), " unexpected");
  if (!last_.empty()) line += " " + last_;
  // The last column stays free, because some terminals wrap a line that fills it.
  if (options_.width > 1 && line.size() >= static_cast<std::size_t>(options_.width)) {
    line.resize(static_cast<std::size_t>(options_.width) - 1);
    line = valid_utf8(line);
  }
  out_ << line;
  out_.flush();
  drawn_ = true;
}

std::string Console::paint(std::string_view text, std::string_view color) const {
  if (!options_.color) return std::string(text);
  return str("\x1b[", color, "m", text, "\x1b[0m");
}

std::string Console::status_text(Status status) const {
  return paint(fmt::format("{:<11}", verdict::name_of(status)), color_of(status));
}

}  // namespace lockstep::report
