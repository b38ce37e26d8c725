#include "harness/scenario/evaluation.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "engine/core/text.hpp"
#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

namespace {

std::atomic<Progress*> shared_progress{nullptr};

std::int64_t own_cpu_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void note_file(std::string_view file) {
  Progress* progress = shared_progress.load(std::memory_order_relaxed);
  if (progress == nullptr) return;
  const std::size_t size = std::min(file.size(), sizeof progress->file - 1);
  std::memcpy(progress->file, file.data(), size);
  progress->file[size] = '\0';
  note_line(0, 0);
  progress->cpu_ns = own_cpu_ns();
  ++progress->num_files;
}

}  // namespace

void share_progress(Progress* progress) { shared_progress = progress; }

void note_line(int line, int column) {
  Progress* progress = shared_progress.load(std::memory_order_relaxed);
  if (progress == nullptr) return;
  progress->line.store(line, std::memory_order_relaxed);
  progress->column.store(column, std::memory_order_relaxed);
}

std::string place_of(const Progress& progress) {
  if (progress.num_files == 0) return {};
  const std::string file(progress.file, ::strnlen(progress.file, sizeof progress.file));
  return to_text(Place{file, progress.line, progress.column});
}

Evaluation::Evaluation(const std::string& file, std::string of)
    : budget_({.memory_bytes = limits::evaluation_mb << 20,
               .seconds = limits::evaluation_seconds,
               .of = std::move(of),
               .remedy = "make its lists and texts shorter"}),
      scope_(budget_) {
  note_file(file);
}

}  // namespace lockstep::scenario
