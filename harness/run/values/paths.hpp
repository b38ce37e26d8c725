// Paths of modules and parameters: a name of the scope and components below it, as in `test.layers.*.attention`. In a
// component, `*`, `?` and `[abc]` match as in file names; `**` matches any number of components. Matches are in
// registration order, each object once, and a shared parameter has its first name.
//
//   for (const ModuleMatch& found : find_modules("test.layers.*", scope)) apply(found.module);
//
// The name may also be bound to a list of modules or tensors, or to one tensor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/run/values/scope.hpp"

namespace lockstep::run {

// Whether the complete text matches: `*` any text, `?` one character, `[abc]`, `[a-c]`, `[!abc]` one character of a
// set. Throws Error for a `[` without `]`.
bool glob_matches(std::string_view pattern, std::string_view text);

struct ModuleMatch {
  std::string path;  // with the name in front
  nn::ModulePtr module;
};

// A parameter or buffer in its slot. Without owner: a tensor that a name is bound to.
struct TensorMatch {
  std::string path;
  nn::ModulePtr owner;
  std::size_t slot = 0;
  bool buffer = false;
  Tensor alone;  // without owner
  const Tensor& tensor() const {
    if (!owner) return alone;
    return buffer ? owner->buffers[slot].tensor : owner->parameters[slot].tensor;
  }
};

// Both throw Error for a path without match, or to a value of another kind, and UnboundName.
std::vector<ModuleMatch> find_modules(const std::string& path, const Scope& scope);
std::vector<TensorMatch> find_parameters(const std::string& path, const Scope& scope);

// The list of the modules that a path or a list of paths matches, each once. Items that are no texts stay as they are.
// Throws as find_modules() does.
Value modules_at(const Value& paths, const Scope& scope);

// The modules bound to names of this frame, sorted by name, without those that another of them contains.
std::vector<ModuleMatch> outermost_modules(const Scope& scope);

// Matches below `root`; paths are relative to it. With `once`, a glob matches a shared parameter once.
std::vector<ModuleMatch> match_modules(const nn::ModulePtr& root, std::string_view pattern);
std::vector<TensorMatch> match_parameters(const nn::ModulePtr& root, std::string_view pattern, bool once = true);

}  // namespace lockstep::run
