// lockstep checkpoint show|verify|diff|export: reads checkpoints that save_checkpoint wrote. Each prints to standard
// output and returns its exit code. They throw Error for folders and files that cannot be read.
#pragma once

#include <string>

namespace lockstep::cli {

int checkpoint_show_command(const std::string& folder);
// 0, or 1 with a line per problem when files are missing or damaged.
int checkpoint_verify_command(const std::string& folder);
// 0 when both have the same keys and bits, else 1 with a line per difference.
int checkpoint_diff_command(const std::string& a, const std::string& b);
int checkpoint_export_command(const std::string& folder, const std::string& file);

}  // namespace lockstep::cli
