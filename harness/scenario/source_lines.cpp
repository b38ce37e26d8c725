#include "harness/scenario/source_lines.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

namespace lockstep::scenario {

std::vector<std::string> step_lines_of(const std::string& text, int line) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  std::string current;
  std::size_t indent = 0;
  for (int number = 1; std::getline(stream, current); ++number) {
    if (number < line) continue;
    if (!current.empty() && current.back() == '\r') current.pop_back();
    const std::size_t begins = current.find_first_not_of(' ');
    if (number == line) {
      if (begins == std::string::npos) return {};
      indent = begins;
    } else if (begins == std::string::npos || begins <= indent) {
      break;
    }
    lines.push_back(current);
    if (lines.size() == max_source_lines) break;
  }
  return lines;
}

std::vector<std::string> step_lines(const std::string& root, const Place& place) {
  if (place.line < 1) return {};
  const std::filesystem::path below_root = std::filesystem::path(root) / place.file;
  for (const std::filesystem::path& path : {below_root, std::filesystem::path(place.file)}) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return step_lines_of(text.str(), place.line);
  }
  return {};
}

}  // namespace lockstep::scenario
