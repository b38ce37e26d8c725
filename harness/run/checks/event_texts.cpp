#include "harness/run/checks/event_texts.hpp"

#include <algorithm>

#include "engine/core/error.hpp"
#include "engine/core/text.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/values/paths.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::run {

namespace {

constexpr const char* root_path = "(root)";

std::vector<std::string> paths_in(const nn::ModulePtr& model) {
  std::vector<std::string> paths;
  for (const nn::NamedModule& entry : nn::named_modules(model))
    paths.push_back(entry.path.empty() ? root_path : entry.path);
  return paths;
}

// Suggests a path for one without module: the path without the model's name, the first name of a shared module, or the
// most similar path.
std::string suggested_path(const std::string& path, const std::vector<std::string>& known, const nn::ModulePtr& model,
                           const std::string& model_name) {
  if (path == model_name || path == "root") return root_path;
  if (path.starts_with(model_name + ".")) {
    std::string below = path.substr(model_name.size() + 1);
    if (std::find(known.begin(), known.end(), below) != known.end()) return below;
  }
  const bool plain = path.find_first_of("*?[") == std::string::npos;
  if (const std::vector<ModuleMatch> other = plain ? match_modules(model, path) : std::vector<ModuleMatch>();
      !other.empty())
    for (const nn::NamedModule& entry : nn::named_modules(model))
      if (entry.module == other.front().module) return entry.path;
  return scenario::nearest_word(path, known);
}

}  // namespace

EventText parse_event(const std::string& text) {
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == text.size())
    throw Error(str("`", text, "` is no event"), "write the kind and the path, such as `unshard layers.0`");
  EventText event;
  event.kind = event_kind(text.substr(0, space));
  event.path = text.substr(space + 1);
  std::size_t from = 0;
  while (true) {
    const std::size_t plus = event.path.find('+', from);
    event.module_paths.push_back(event.path.substr(from, plus - from));
    if (plus == std::string::npos) return event;
    from = plus + 1;
  }
}

void check_paths(const EventText& event, const nn::ModulePtr& model, const std::string& model_name) {
  const std::vector<std::string> known = paths_in(model);
  for (const std::string& path : event.module_paths) {
    if (std::find(known.begin(), known.end(), path) != known.end()) continue;
    const std::string suggestion = suggested_path(path, known, model, model_name);
    throw Error(str("`", path, "` of the event `", name_of(event.kind), " ", event.path, "` is no path below `",
                    model_name, "`", suggestion.empty() ? std::string() : str("; did you mean `", suggestion, "`?")),
                "write paths below the model, `(root)` for the model itself");
  }
}

}  // namespace lockstep::run
