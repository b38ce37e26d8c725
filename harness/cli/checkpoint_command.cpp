#include "harness/cli/checkpoint_command.hpp"

#include <fmt/core.h>

#include "engine/core/printable.hpp"
#include "engine/state/inspect.hpp"
#include "harness/report/text.hpp"

namespace lockstep::cli {

int checkpoint_show_command(const std::string& folder) {
  fmt::print("{}", printable(state::show_checkpoint(folder)));
  return 0;
}

int checkpoint_verify_command(const std::string& folder) {
  const state::Verification found = state::verify_checkpoint(folder);
  for (const std::string& problem : found.problems) fmt::print("{}\n", printable_line(problem));
  fmt::print("{} with {} of {}: {}\n", report::plural(found.num_tensors, "tensor"),
             report::plural(found.num_chunks, "chunk"), report::plural(static_cast<std::int64_t>(found.bytes), "byte"),
             found.problems.empty() ? "undamaged"
                                    : report::plural(static_cast<std::int64_t>(found.problems.size()), "problem"));
  return found.problems.empty() ? 0 : 1;
}

int checkpoint_diff_command(const std::string& a, const std::string& b) {
  const std::vector<std::string> lines = state::diff_checkpoints(a, b);
  for (const std::string& line : lines) fmt::print("{}\n", printable_line(line));
  if (lines.empty()) fmt::print("no difference\n");
  return lines.empty() ? 0 : 1;
}

int checkpoint_export_command(const std::string& folder, const std::string& file) {
  state::export_checkpoint(folder, file, file);
  fmt::print("{}\n", printable_line(file));
  return 0;
}

}  // namespace lockstep::cli
