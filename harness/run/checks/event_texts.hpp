// The texts `kind path` of expect_events: what a user may write, held against the modules of a model.
//
//   const EventText event = parse_event("unshard layers.0+layers.1");
//   check_paths(event, model, "model");     // throws Error where a path names no module
//
// There is one form of path: below the model, `(root)` for the model itself, modules of one group joined by `+`.
#pragma once

#include <string>
#include <vector>

#include "engine/nn/module.hpp"
#include "engine/parallel/events.hpp"

namespace lockstep::run {

struct EventText {
  parallel::EventKind kind = parallel::EventKind::unshard;
  std::string path;                // as written: "layers.0+layers.1"
  std::vector<std::string> parts;  // "layers.0", "layers.1"
};

// Throws Error for an unknown kind, with the nearest known one, and for a text of another form.
EventText parse_event(const std::string& text);

// Throws Error, with the nearest path, where a part names no module of the model. A shared module has its first name.
void check_paths(const EventText& event, const nn::ModulePtr& model, const std::string& model_name);

}  // namespace lockstep::run
