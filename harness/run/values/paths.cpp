#include "harness/run/values/paths.hpp"

#include <algorithm>
#include <utility>

#include "harness/run/values/evaluate.hpp"
#include "harness/scenario/characters.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::run {

namespace {

bool in_set(std::string_view set, char c) {
  const bool inverted = !set.empty() && set[0] == '!';
  if (inverted) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size() && !found; ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found = set[i] <= c && c <= set[i + 2];
      i += 2;
    } else {
      found = set[i] == c;
    }
  }
  return found != inverted;
}

std::vector<std::string_view> components_of(std::string_view path) {
  std::vector<std::string_view> components;
  while (true) {
    const std::size_t dot = path.find('.');
    components.push_back(path.substr(0, dot));
    if (dot == std::string_view::npos) return components;
    path.remove_prefix(dot + 1);
  }
}

bool components_match(const std::vector<std::string_view>& pattern, std::size_t i,
                      const std::vector<std::string_view>& components, std::size_t k) {
  if (i == pattern.size()) return k == components.size();
  if (pattern[i] == "**") {
    for (std::size_t skip = k; skip <= components.size(); ++skip)
      if (components_match(pattern, i + 1, components, skip)) return true;
    return false;
  }
  return k < components.size() && glob_matches(pattern[i], components[k]) &&
         components_match(pattern, i + 1, components, k + 1);
}

bool is_glob(std::string_view path) { return path.find_first_of("*?[") != std::string_view::npos; }

// "" has no components, so that `test.**` matches test itself and `test.*` does not.
std::vector<std::string_view> components_below(std::string_view path) {
  return path.empty() ? std::vector<std::string_view>{} : components_of(path);
}

std::string joined(std::string_view name, const std::string& below) {
  return below.empty() ? std::string(name) : str(name, ".", below);
}

// The bound name at the start of a path, its value, and the rest of the path.
struct Start {
  std::string name;
  std::string below;
  Value value;
};

Start start_of(const std::string& path, const Scope& scope) {
  const std::size_t dot = path.find('.');
  Start start{path.substr(0, dot), dot == std::string::npos ? "" : path.substr(dot + 1), Value()};
  const Value* value = find_name(start.name, scope);
  if (!value)
    throw UnboundName(str("`", start.name, "` has no value here: the step that would have bound it did not run"));
  start.value = *value;
  return start;
}

// The most similar path to one without match. A path of a module is a path of its parameters too.
std::string nearest_path(const std::string& path, bool parameter, const Start& start) {
  const nn::ModulePtr* root = start.value.get_if<nn::ModulePtr>();
  if (!root || is_glob(path)) return {};
  std::vector<std::string> parameters, modules;
  for (const nn::NamedParameter& entry : nn::named_parameters(*root))
    parameters.push_back(joined(start.name, entry.path));
  for (const nn::NamedModule& entry : nn::named_modules(*root)) modules.push_back(joined(start.name, entry.path));
  const std::string near = parameter ? scenario::nearest_word(path, parameters) : std::string();
  return near.empty() ? scenario::nearest_word(path, modules) : near;
}

[[noreturn]] void matches_nothing(const std::string& path, std::string_view kind, const Start& start) {
  const std::string near = nearest_path(path, kind == "parameter", start);
  throw Error(str("the path `", path, "` matches no ", kind,
                  near.empty() ? std::string() : str("; did you mean `", near, "`?")),
              "look at names(...) of the model, or its description");
}

// Follows the keys of maps, so that a path can name a module in a map.
Value follow_maps(Value value, std::string& name, std::string& below) {
  while (!below.empty() && value.is(Value::Kind::map)) {
    const std::size_t dot = below.find('.');
    const std::string component = below.substr(0, dot);
    value = attribute_of(value, component);
    name += str(".", component);
    below = dot == std::string::npos ? "" : below.substr(dot + 1);
  }
  return value;
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    bool matches = false;
    std::size_t width = 1;
    if (p < pattern.size()) {
      if (pattern[p] == '*') {
        star = p++;
        resume = t;
        continue;
      }
      if (pattern[p] == '[') {
        const std::size_t close = pattern.find(']', p + 2);
        if (close == std::string_view::npos) throw Error(str("the pattern `", pattern, "` has a `[` without its `]`"));
        matches = in_set(pattern.substr(p + 1, close - p - 1), text[t]);
        width = close - p + 1;
      } else {
        matches = pattern[p] == '?' || pattern[p] == text[t];
      }
    }
    if (matches) {
      const bool any = pattern[p] == '?';
      p += width;
      ++t;
      while (any && t < text.size() && scenario::continues_character(text[t])) ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<ModuleMatch> match_modules(const nn::ModulePtr& root, std::string_view pattern) {
  std::vector<ModuleMatch> found;
  const std::vector<std::string_view> components = components_below(pattern);
  for (nn::NamedModule& entry : nn::named_modules(root))
    if (components_match(components, 0, components_below(entry.path), 0)) found.push_back({entry.path, entry.module});
  if (!found.empty() || is_glob(pattern)) return found;
  // A path through a later name of a shared module.
  nn::ModulePtr at = root;
  for (std::string_view component : components) {
    at = at->child(component);
    if (!at) return found;
  }
  found.push_back({std::string(pattern), at});
  return found;
}

std::vector<TensorMatch> match_parameters(const nn::ModulePtr& root, std::string_view pattern, bool once) {
  std::vector<TensorMatch> found;
  const std::vector<std::string_view> components = components_below(pattern);
  const bool glob = is_glob(pattern);
  for (nn::NamedParameter& entry : nn::named_parameters(root, false)) {
    if (!components_match(components, 0, components_below(entry.path), 0)) continue;
    if (once && glob && std::any_of(found.begin(), found.end(), [&](const TensorMatch& other) {
          return other.tensor().same_as(entry.tensor());
        }))
      continue;
    found.push_back({entry.path, entry.owner, entry.slot, false, {}});
  }
  return found;
}

std::vector<ModuleMatch> find_modules(const std::string& path, const Scope& scope) {
  Start start = start_of(path, scope);
  const Value value = follow_maps(start.value, start.name, start.below);
  std::vector<ModuleMatch> found;
  if (value.is(Value::Kind::list) && start.below.empty()) {
    std::size_t i = 0;
    for (const Value& item : value.as_list(start.name))
      found.push_back({str(start.name, "[", i++, "]"), item.as_module(str("an item of `", path, "`"))});
  } else {
    const nn::ModulePtr& root = value.as_module(str("`", start.name, "`"));
    for (ModuleMatch& match : match_modules(root, start.below))
      found.push_back({joined(start.name, match.path), match.module});
  }
  if (found.empty()) matches_nothing(path, "module", {start.name, start.below, value});
  return found;
}

Value modules_at(const Value& paths, const Scope& scope) {
  List modules;
  const auto add = [&](const Value& item) {
    const std::string* path = item.get_if<std::string>();
    if (path == nullptr) {
      modules.push_back(item);
      return;
    }
    for (const ModuleMatch& found : find_modules(*path, scope)) {
      const Value module(found.module);
      if (std::none_of(modules.begin(), modules.end(), [&](const Value& other) { return equal(other, module); }))
        modules.push_back(module);
    }
  };
  if (paths.is(Value::Kind::list))
    for (const Value& item : paths.as_list("modules")) add(item);
  else
    add(paths);
  return Value::list(std::move(modules));
}

std::vector<ModuleMatch> outermost_modules(const Scope& scope) {
  std::vector<ModuleMatch> all;
  for (const auto& [name, value] : scope.frame->names)
    if (const nn::ModulePtr* module = value.get_if<nn::ModulePtr>()) all.push_back({name, *module});
  std::sort(all.begin(), all.end(), [](const ModuleMatch& a, const ModuleMatch& b) { return a.path < b.path; });
  std::vector<ModuleMatch> models;
  for (const ModuleMatch& candidate : all) {
    const auto contains_it = [&candidate](const ModuleMatch& other) {
      if (other.module == candidate.module) return other.path < candidate.path;
      const std::vector<nn::NamedModule> below = nn::named_modules(other.module);
      return std::any_of(below.begin(), below.end(),
                         [&](const nn::NamedModule& at) { return at.module == candidate.module; });
    };
    if (std::none_of(all.begin(), all.end(), contains_it)) models.push_back(candidate);
  }
  return models;
}

std::vector<TensorMatch> find_parameters(const std::string& path, const Scope& scope) {
  Start start = start_of(path, scope);
  const Value value = follow_maps(start.value, start.name, start.below);
  std::vector<TensorMatch> found;
  if (value.is_tensor() && start.below.empty()) {
    found.push_back({path, nullptr, 0, false, value.as_tensor(path)});
  } else if (value.is(Value::Kind::list) && start.below.empty()) {
    for (const Value& item : value.as_list(start.name))
      found.push_back({path, nullptr, 0, false, item.as_tensor(str("an item of `", path, "`"))});
  } else {
    const nn::ModulePtr& root = value.as_module(str("`", start.name, "`"));
    for (TensorMatch& match : match_parameters(root, start.below)) {
      match.path = joined(start.name, match.path);
      found.push_back(std::move(match));
    }
    // The path of a module selects all its parameters.
    if (found.empty())
      for (const ModuleMatch& module : match_modules(root, start.below))
        for (nn::NamedParameter& entry : nn::named_parameters(module.module))
          found.push_back({joined(joined(start.name, module.path), entry.path), entry.owner, entry.slot, false, {}});
  }
  if (found.empty()) matches_nothing(path, "parameter", {start.name, start.below, value});
  return found;
}

}  // namespace lockstep::run
