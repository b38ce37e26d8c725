// Changes in place, averages of parameters, and states that are saved and loaded again.
#include "engine/core/error.hpp"
#include "harness/fuzz/render_internal.hpp"

namespace lockstep::fuzz {

namespace {

std::string changed(Change::Kind kind, const std::string& value) {
  switch (kind) {
    case Change::scaled:
      return str("mul_(", value, ", 0.75)");
    case Change::divided:
      return str("div_(", value, ", 1.5)");
    case Change::shifted:
      return str("add_(", value, ", 0.0625)");
    case Change::lowered:
      return str("sub_(", value, ", 0.03125)");
    case Change::decayed:
      return str("add_(", value, ", detach(p), alpha=0.125)");
    case Change::zeroed:
      return str("zero_(", value, ")");
    case Change::copied:
      return str("copy_(", value, ", ", value, " * 0.5)");
  }
  return "";
}

}  // namespace

void render_change(const Change& change, const std::string& model, bool of_gradient, int index, bool is_flat,
                   Json& steps) {
  const std::string all = str("parameters(", path_of(model, change.child), ")");
  const std::string text = of_gradient
                               ? str("[", changed(change.kind, "p.grad"), " for p in ", all, " if p.grad != none]")
                               : str("[", changed(change.kind, "p"), " for p in ", all, "]");
  const Json change_all = {{"let", {{"changed", text}}}};
  if (change.in_hook) {
    Json in_step = change_all;
    in_step["when"] = str("now == ", index);
    steps.push_back(
        {{"hook", {{"optimizer", model + "_optimizer"}, {"at", of_gradient ? "before_step" : "after_step"}}},
         {"steps", {in_step}}});
  } else if (change.in_full && is_flat) {
    steps.push_back({{"summon_full_parameters", model}, {"steps", {change_all}}});
  } else {
    steps.push_back(change_all);
  }
}

void render_averages(const std::string& model, bool is_first, Json& steps) {
  const std::string name = "average_of_" + model, all = str("parameters(", model, ")");
  const std::string text =
      is_first ? str("[clone(detach(p)) for p in ", all, "]")
               : str("[add_(mul_(e, 0.75), detach(p), alpha=0.25) for e, p in zip(", name, ", ", all, ")]");
  steps.push_back({{"let", {{name, text}}}});
}

void render_restore(Restore restore, bool is_flat, Json& steps) {
  const auto put = [&](const char* verb, const Json& arguments) { steps.push_back({{verb, arguments}}); };
  const Json saved = {{"folder", "kept"}, {"state", {{"model", "test"}, {"optimizer", "test_optimizer"}}}};
  const bool is_on_disk = restore == Restore::checkpoint || restore == Restore::async_checkpoint;
  const auto options_of = [&](const std::string& of, const char* key) {
    Json arguments = {{key, of}};
    if (restore == Restore::keyed_by_position && of == "test_optimizer") arguments["keyed_by"] = "position";
    return arguments;
  };
  if (is_on_disk) {
    Json arguments = saved;
    arguments["overwrite"] = true;
    if (restore == Restore::async_checkpoint) arguments["async"] = true;
    put("save_checkpoint", arguments);
  } else {
    for (const char* of : {"test", "test_optimizer"}) {
      Json arguments = options_of(of, "of");
      arguments["full"] = true;
      if (restore == Restore::host_state) arguments["cpu"] = true;
      steps.push_back({{"state_dict", arguments}, {"as", str("state_of_", of)}});
    }
  }
  put("let", {{"changed", "[mul_(p, 3) for p in parameters(test)] + [mul_(t, 2) for t in tensors(test_optimizer)]"}});
  if (is_on_disk) return put("load_checkpoint", saved);
  for (const char* into : {"test", "test_optimizer"}) {
    Json arguments = options_of(into, "into");
    arguments["state"] = str("state_of_", into);
    if (!is_flat) arguments["full"] = true;
    put("load_state_dict", arguments);
  }
}

}  // namespace lockstep::fuzz
