#include "harness/scenario/library.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>

#include "engine/core/fnv.hpp"
#include "engine/core/resources.hpp"
#include "engine/core/text.hpp"
#include "harness/scenario/document_parser.hpp"
#include "harness/scenario/evaluation.hpp"
#include "harness/scenario/regular_file.hpp"

namespace lockstep::scenario {

namespace fs = std::filesystem;

struct Library::Entry {
  std::shared_ptr<const Routine> routine;
  Diagnostics diagnostics;
  int depth = 1;                        // levels of nested routines, this one included
  std::optional<std::uint64_t> digest;  // of the bytes of its file
};

namespace {

std::string read_text(const fs::path& path) { return read_regular_file(path.string(), limits::file_bytes); }

// Whether a pattern matches: `*` any characters, `?` one character, both including `/`.
bool glob(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') return glob(pattern.substr(1), text) || (!text.empty() && glob(pattern, text.substr(1)));
  return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) && glob(pattern.substr(1), text.substr(1));
}

// Throws when the machine could not answer a question about the path. Other errors answer it: there is no such path.
void require_answer(std::error_code error, const fs::path& path) {
  if (is_exhaustion(error.value())) throw resource_error(str("looking for ", path.string()), error.value());
}

fs::path real_path(const fs::path& path) {
  std::error_code error;
  fs::path found = fs::weakly_canonical(path, error);
  require_answer(error, path);
  return found;
}

bool holds(bool (*question)(const fs::path&, std::error_code&), const fs::path& path) {
  std::error_code error;
  const bool answer = question(path, error);
  require_answer(error, path);
  return answer;
}

[[noreturn]] void refuse_folder(const fs::path& folder, std::error_code why) {
  const std::string reading = str("cannot read the folder ", folder.string());
  if (is_exhaustion(why.value())) throw resource_error(reading, why.value());
  throw Error(str(reading, ": ", why.message()), "check its permissions");
}

void add_yaml_files(const fs::path& folder, std::vector<std::string>& out) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const bool is_folder = holds(fs::is_directory, it->path());
    if (is_folder && !it->is_symlink()) add_yaml_files(it->path(), out);
    if (is_folder || it->path().extension() != ".yaml") continue;
    // Emacs marks a file that is edited by a link `.#NAME` to nowhere.
    const bool is_mark = it->path().filename().string().starts_with(".#") && !holds(fs::exists, it->path());
    // Reading it refuses a pipe, and a link to nowhere.
    if (!is_mark) out.push_back(it->path().string());
  }
  // Scenarios that cannot be found must not be left out silently.
  if (error && error != std::errc::no_such_file_or_directory) refuse_folder(folder, error);
}

std::vector<std::string> yaml_files(const fs::path& folder) {
  std::vector<std::string> out;
  add_yaml_files(folder, out);
  std::sort(out.begin(), out.end());
  return out;
}

// The path below the root without its extension; empty for a path outside the root.
std::string name_below(const fs::path& root, const fs::path& path) {
  const fs::path below = real_path(path).lexically_relative(real_path(root));
  if (below.empty() || *below.begin() == ".." || *below.begin() == ".") return {};
  return (below.parent_path() / below.stem()).generic_string();
}

constexpr const char* reading = "the reading of a file";  // the user of the budget, for messages

bool is_lib(const std::string& name) { return name.starts_with("lib/"); }

// Whether the path below the folder contains a folder `lib`: the file is then a routine.
bool is_in_lib(const fs::path& folder, const fs::path& path) {
  const fs::path between = path.lexically_relative(folder).parent_path();
  return std::find(between.begin(), between.end(), fs::path("lib")) != between.end();
}

}  // namespace

Library::Library(std::string root) : root_(std::move(root)) {}
Library::~Library() = default;

std::vector<std::string> Library::find(const std::vector<std::string>& wanted) const {
  std::vector<std::string> out;
  std::set<std::string> seen;
  const auto add = [&](const std::vector<std::string>& paths) {
    for (const std::string& path : paths)
      if (seen.insert(real_path(path).string()).second) out.push_back(path);
  };
  const std::vector<std::string> all = yaml_files(root_);
  if (wanted.empty()) add(find_by_name(all, "*").paths);
  for (const std::string& one : wanted) add(find_one(all, one));
  return out;
}

Library::NamedFiles Library::find_by_name(const std::vector<std::string>& all, const std::string& pattern) const {
  NamedFiles found;
  for (const std::string& path : all) {
    const std::string name = name_below(root_, path);
    if (is_lib(name) && !is_lib(pattern)) continue;
    found.names.push_back(name);
    if (glob(pattern, name)) found.paths.push_back(path);
  }
  return found;
}

std::vector<std::string> Library::find_one(const std::vector<std::string>& all, const std::string& wanted) const {
  // An existing file takes precedence over a scenario of the program with that name.
  if (wanted.ends_with(".yaml") && holds(fs::is_regular_file, wanted)) return {wanted};
  std::string pattern = wanted;
  if (pattern.ends_with(".yaml")) pattern.resize(pattern.size() - 5);
  const NamedFiles named = find_by_name(all, pattern);
  if (!named.paths.empty()) return named.paths;
  // A folder: relative to the working directory, or to the root.
  for (const fs::path& folder : {fs::path(wanted), fs::path(root_) / wanted}) {
    if (!holds(fs::is_directory, folder)) continue;
    std::vector<std::string> paths = yaml_files(folder);
    std::erase_if(paths, [&](const std::string& path) { return is_in_lib(folder, path); });
    if (paths.empty())
      throw Error(str("no scenario in the folder ", folder.string()), "name a folder with .yaml files");
    return paths;
  }
  if (holds(fs::exists, wanted)) return {wanted};
  std::error_code error;
  const fs::path looked = fs::absolute(wanted, error).lexically_normal();
  throw Error(str("no file ", looked.string(), " and no scenario `", pattern, "` under ", root_,
                  suggestion(pattern, named.names)),
              "`lockstep list` shows the names; LOCKSTEP_HOME names another folder that contains scenarios/");
}

namespace {

// The name of a file in places: for a file below the root the path from the root's own name on, else the given path.
std::string shown_name(const std::string& root, const std::string& path) {
  const std::string name = name_below(root, path);
  if (name.empty()) return path;
  return str(real_path(root).filename().string(), "/", name, fs::path(path).extension().string());
}

}  // namespace

Library::Folders Library::folders_for(const std::string& path) const {
  const std::string built_in = (fs::path(root_) / "lib").string();
  if (!name_below(root_, path).empty()) return {built_in};
  std::error_code error;
  const fs::path here = real_path(fs::current_path(error));
  Folders folders;
  for (fs::path folder = real_path(path).parent_path();; folder = folder.parent_path()) {
    // The file of a routine is in a `lib` already.
    folders.push_back((folder.filename() == "lib" ? folder : folder / "lib").string());
    const fs::path below = folder.lexically_relative(here);
    if (below.empty() || *below.begin() == ".." || folder == here) break;
  }
  folders.push_back(built_in);
  return folders;
}

std::shared_ptr<Library::Entry> Library::entry(const std::string& name, const Folders& folders) {
  const auto kept = routines_.find(name);
  if (kept != routines_.end()) return kept->second;
  if (name.find('/') != std::string::npos) return nullptr;
  std::error_code error;
  auto folder = folders.begin();
  while (folder != folders.end() && !fs::is_regular_file(fs::path(*folder) / (name + ".yaml"), error)) ++folder;
  if (folder == folders.end()) return nullptr;
  const std::string path = (fs::path(*folder) / (name + ".yaml")).string();
  const auto found = routines_.find(path);
  if (found != routines_.end()) return found->second;
  const Folders onward(folder, folders.end());
  auto made = std::make_shared<Entry>();
  const std::string file = shown_name(root_, path);
  loading_.push_back(path);
  try {
    const std::string text = read_text(path);
    made->digest = fnv1a(text);
    made->routine = parse_routine(text, file, name, made->diagnostics,
                                  [&](const std::string& wanted, const Place& place) -> std::shared_ptr<const Routine> {
                                    return resolve(wanted, place, made->diagnostics, &made->depth, onward);
                                  });
  } catch (const Error& mistake) {
    made->diagnostics.error(Place{file, 0, 0}, mistake.message());
  }
  loading_.pop_back();
  routines_[path] = made;
  return made;
}

std::string Library::cycle_through(const std::string& name, const Folders& folders) const {
  const auto above = std::find_if(loading_.begin(), loading_.end(), [&](const std::string& key) {
    if (fs::path(key).stem() != name) return false;
    if (key == name) return true;  // a routine without a file
    const auto first = std::find_if(folders.begin(), folders.end(), [&](const std::string& folder) {
      std::error_code error;
      return fs::is_regular_file(fs::path(folder) / (name + ".yaml"), error);
    });
    return first != folders.end() && key == (fs::path(*first) / (name + ".yaml")).string();
  });
  if (above == loading_.end()) return {};
  std::string cycle;
  for (auto it = above; it != loading_.end(); ++it) cycle += str(fs::path(*it).stem().string(), " -> ");
  return cycle + name;
}

std::shared_ptr<const Routine> Library::resolve(const std::string& name, const Place& place, Diagnostics& diagnostics,
                                                int* depth, const Folders& folders) {
  const std::string cycle = cycle_through(name, folders);
  if (!cycle.empty()) {
    diagnostics.error(place, str("a routine must not use itself: ", cycle));
    return nullptr;
  }
  // Bounds the recursion while reading; the exact depth is checked below.
  if (loading_.size() > static_cast<std::size_t>(limits::routine_depth)) {
    diagnostics.error(place, str("routines are nested deeper than ", limits::routine_depth));
    return nullptr;
  }
  const std::shared_ptr<Entry> found = entry(name, folders);
  if (found == nullptr) {
    std::string looked;
    if (folders.size() > 1)
      for (const std::string& folder : folders) looked += str(looked.empty() ? "; looked in " : ", ", folder);
    diagnostics.error(place, str("unknown routine `", name, "`", suggestion(name, names_in(folders)), looked));
    return nullptr;
  }
  for (const Diagnostic& item : found->diagnostics.items()) diagnostics.add(item);
  const int own = depth == nullptr ? 0 : 1;
  if (found->depth + own > limits::routine_depth) {
    diagnostics.error(place, str("routines are nested deeper than ", limits::routine_depth));
  }
  if (depth != nullptr) *depth = std::max(*depth, found->depth + 1);
  return found->routine;
}

std::shared_ptr<const Scenario> Library::parse(const std::string& text, const std::string& file,
                                               const std::string& expected_name, Diagnostics& diagnostics,
                                               const Folders& folders) {
  return parse_scenario(text, file, expected_name, diagnostics, [&](const std::string& name, const Place& place) {
    return resolve(name, place, diagnostics, nullptr, folders);
  });
}

std::shared_ptr<const Scenario> Library::load(const std::string& path) {
  const Evaluation evaluation(path, reading);
  return load_as(read_text(path), path);
}

std::shared_ptr<const Scenario> Library::load_as(const std::string& text, const std::string& path) {
  Diagnostics diagnostics;
  std::shared_ptr<const Scenario> scenario =
      parse(text, shown_name(root_, path), name_below(root_, path), diagnostics, folders_for(path));
  if (!diagnostics.empty()) throw ScenarioError(diagnostics);
  const auto found = std::const_pointer_cast<Scenario>(scenario);
  found->path = path;
  found->call = name_below(root_, path).empty() ? path : scenario->name;
  return scenario;
}

std::shared_ptr<const Scenario> Library::load_text(const std::string& text, const std::string& file) {
  Diagnostics diagnostics;
  std::shared_ptr<const Scenario> scenario = parse(text, file, {}, diagnostics, {(fs::path(root_) / "lib").string()});
  if (!diagnostics.empty()) throw ScenarioError(diagnostics);
  return scenario;
}

Diagnostics Library::validate(const std::string& path) {
  const Evaluation evaluation(path, reading);
  Diagnostics diagnostics;
  std::string text;
  try {
    text = read_text(path);
  } catch (const ResourceError&) {
    throw;
  } catch (const Error& mistake) {
    diagnostics.error(Place{path, 0, 0}, mistake.message());
    return diagnostics;
  }
  const std::string name = name_below(root_, path);
  const std::string file = shown_name(root_, path);
  if (is_lib(name) || (name.empty() && is_routine(text))) {
    int depth = 1;
    std::error_code error;
    const Folders folders = folders_for(path);
    const fs::path own =
        name.empty() ? fs::weakly_canonical(path, error) : fs::path(folders[0]) / fs::path(path).filename();
    loading_.push_back(own.string());
    parse_routine(text, file, own.stem().string(), diagnostics, [&](const std::string& wanted, const Place& place) {
      return resolve(wanted, place, diagnostics, &depth, folders);
    });
    loading_.pop_back();
  } else {
    parse(text, file, name, diagnostics, folders_for(path));
  }
  return diagnostics;
}

std::shared_ptr<const Routine> Library::routine(const std::string& name, Diagnostics& diagnostics) {
  const std::shared_ptr<Entry> found = entry(name, {(fs::path(root_) / "lib").string()});
  if (found == nullptr) return nullptr;
  for (const Diagnostic& item : found->diagnostics.items()) diagnostics.add(item);
  return found->routine;
}

void Library::add_routine(const std::string& name, const std::string& text) {
  auto made = std::make_shared<Entry>();
  loading_.push_back(name);
  made->routine = parse_routine(
      text, str(name, ".yaml"), name, made->diagnostics, [&](const std::string& wanted, const Place& place) {
        return resolve(wanted, place, made->diagnostics, &made->depth, {(fs::path(root_) / "lib").string()});
      });
  loading_.pop_back();
  if (!made->diagnostics.empty()) throw ScenarioError(made->diagnostics);
  routines_[name] = made;
}

std::vector<std::string> Library::routine_names() const { return names_in({(fs::path(root_) / "lib").string()}); }

std::vector<std::pair<std::string, std::uint64_t>> Library::routine_digests() const {
  std::vector<std::pair<std::string, std::uint64_t>> digests;
  for (const auto& [key, one] : routines_)
    if (one->digest) digests.emplace_back(fs::path(key).stem().string(), *one->digest);
  std::sort(digests.begin(), digests.end());
  return digests;
}

std::vector<std::string> Library::names_in(const Folders& folders) const {
  std::set<std::string> names;
  for (const std::string& folder : folders)
    for (const std::string& path : yaml_files(folder)) names.insert(fs::path(path).stem().string());
  for (const auto& [key, entry] : routines_)
    if (key.find('/') == std::string::npos) names.insert(key);
  return {names.begin(), names.end()};
}

}  // namespace lockstep::scenario
