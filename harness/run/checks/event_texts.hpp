// Parses and validates the events `kind path` of expect_events.
//
//   const EventText event = parse_event("unshard layers.0+layers.1");
//   check_paths(event, model, "model");     // throws Error for a path without module
//
// A path is relative to the model, and `(root)` is the model itself. `+` joins the modules of one group.
#pragma once

#include <string>
#include <vector>

#include "engine/nn/module.hpp"
#include "engine/parallel/events.hpp"

namespace lockstep::run {

struct EventText {
  parallel::EventKind kind = parallel::EventKind::unshard;
  std::string path;                       // as written: "layers.0+layers.1"
  std::vector<std::string> module_paths;  // "layers.0", "layers.1"
};

// Throws Error for an unknown kind, with the most similar known one, and for a text of another form.
EventText parse_event(const std::string& text);

// Throws Error, with the most similar path, for a path without module in the model. A shared module has its first name.
void check_paths(const EventText& event, const nn::ModulePtr& model, const std::string& model_name);

}  // namespace lockstep::run
