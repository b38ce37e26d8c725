// Paths: a name and parts, `test.layers.*.attention`. In a part `*`, `?` and `[abc]` match as file names do, `**` is
// any number of parts. Matches come in registration order, each object once, a shared parameter under its first name.
//
//   for (const ModuleAt& found : find_modules("test.layers.*", scope)) apply(found.module);
//
// The first part is a name of the scope; it may also stand for a list of modules or tensors, or for one tensor.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/run/values/scope.hpp"

namespace lockstep::run {

// Whether the whole text matches; `*` stands for anything, `?` for one character, `[abc]`, `[a-c]`, `[!abc]` for one of
// a set.
bool glob_matches(std::string_view pattern, std::string_view text);

struct ModuleAt {
  std::string path;  // the name and the parts below it
  nn::ModulePtr module;
};

// A parameter or buffer where it is registered; without owner a tensor that a name stands for.
struct TensorAt {
  std::string path;
  nn::ModulePtr owner;
  std::size_t slot = 0;
  bool buffer = false;
  Tensor alone;
  const Tensor& tensor() const {
    if (!owner) return alone;
    return buffer ? owner->buffers[slot].tensor : owner->parameters[slot].tensor;
  }
};

// Matching nothing is an Error, as is a path to something else.
std::vector<ModuleAt> find_modules(const std::string& path, const Scope& scope);
std::vector<TensorAt> find_parameters(const std::string& path, const Scope& scope);

// The modules that names of this frame stand for, but those within another of them; in order of their names.
std::vector<ModuleAt> models_in(const Scope& scope);

// What is matched below a module, for tests and for maps of paths: paths relative to `root`.
std::vector<ModuleAt> match_modules(const nn::ModulePtr& root, std::string_view pattern);
std::vector<TensorAt> match_parameters(const nn::ModulePtr& root, std::string_view pattern, bool once = true);

}  // namespace lockstep::run
