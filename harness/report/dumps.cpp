#include "harness/report/dumps.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "engine/core/error.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {

namespace {

namespace fs = std::filesystem;

constexpr const char* stories_name = "recorder.jsonl";
constexpr const char* about_name = "case.txt";
constexpr const char* remedy =
    "name a results file of `lockstep run --results FILE`, its folder FILE.dumps, or one case's folder within it";

// 12 of "case-12".
std::optional<int> number_of(const std::string& name) {
  if (!name.starts_with("case-")) return {};
  int number = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + 5, end, number);
  if (error != std::errc() || stop != end || number < 1) return {};
  return number;
}

// The case folders within a folder of dumps, by number.
std::vector<fs::path> case_folders(const fs::path& folder) {
  std::vector<std::pair<int, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    const std::optional<int> number = number_of(each->path().filename().string());
    std::error_code ignored;
    if (number && each->is_directory(ignored) && !each->is_symlink(ignored)) found.emplace_back(*number, each->path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> folders;
  folders.reserve(found.size());
  for (auto& [number, path] : found) folders.push_back(std::move(path));
  return folders;
}

std::optional<std::string> text_of(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return {};
  std::ifstream in(file, std::ios::binary);
  if (!in) return {};
  return std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::optional<Dump> dump_in(const fs::path& folder) {
  std::optional<std::string> stories = text_of(folder / stories_name);
  if (!stories) return {};
  return Dump{folder.string(), text_of(folder / about_name).value_or(""), std::move(*stories)};
}

}  // namespace

std::string dump_folder_of(const std::string& results) { return results + ".dumps"; }

void clear_dumps(const std::string& folder) {
  std::error_code ignored;
  for (const fs::path& one : case_folders(folder)) {
    if (!fs::is_regular_file(one / stories_name, ignored)) continue;  // not a dump
    for (const char* name : {stories_name, about_name}) fs::remove(one / name, ignored);
    fs::remove(one, ignored);  // fails, and the folder stays, when it holds anything else
  }
  if (fs::is_directory(folder, ignored) && fs::is_empty(folder, ignored)) fs::remove(folder, ignored);
}

void write_dump(const std::string& folder, int number, const verdict::CaseResult& row, const std::string& stories) {
  const std::string one = str(folder, "/case-", number, "/");
  write_whole_file(one + stories_name, stories);
  write_whole_file(one + about_name, str(printable_line(row.scenario), " [", printable_line(row.case_id), "]\n",
                                         printable_line(row.repro), "\n"));
}

std::vector<Dump> find_dumps(const std::string& path) {
  std::error_code ignored;
  std::vector<Dump> dumps;
  std::string looked = path;
  if (fs::is_directory(path, ignored)) {
    if (std::optional<Dump> one = dump_in(path)) return {std::move(*one)};
  } else if (fs::exists(path, ignored)) {
    looked = dump_folder_of(path);
    if (!fs::is_directory(looked, ignored))
      throw Error(str("there is no flight recorder dump beside ", path, ": no folder ", looked,
                      "; a run writes one when a case fails, hangs or crashes"),
                  remedy);
  } else {
    throw Error(str("there is no file or folder ", path), remedy);
  }
  for (const fs::path& folder : case_folders(looked))
    if (std::optional<Dump> one = dump_in(folder)) dumps.push_back(std::move(*one));
  if (dumps.empty()) throw Error(str("there is no flight recorder dump in ", looked), remedy);
  return dumps;
}

}  // namespace lockstep::report
