// Where names are looked up while a case runs on a rank: what is the same for the whole case (Session), one scope of a
// file or of a routine call (Frame), and what lies over it (Locals: comprehension targets, inputs of an own method,
// what a hook knows).
//
// A frame may outlive its routine call: a hook holds the frame its steps were written in.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/device/device.hpp"
#include "engine/nn/build.hpp"
#include "harness/run/values/value.hpp"
#include "harness/scenario/document.hpp"

namespace lockstep::run {

class ScenarioModule;

using Names = std::unordered_map<std::string, Value>;

struct Session {
  int rank = 0;
  int world_size = 1;
  device::Device device;
  bool is_dry_run = false;  // of the plan: nothing has values, and devices are stand-ins (stand_in.hpp)
  MeshPtr all_ranks;
  Names variables;   // rank, world_size, ..., and the type names: known everywhere
  Names parameters;  // of the scenario, and its matrix names: known in its own file
};

struct Frame {
  Session* session = nullptr;
  const std::vector<scenario::OwnModel>* models = nullptr;  // own models of the file or routine
  const scenario::Routine* routine = nullptr;               // null: the scenario's file
  std::string file;                                         // as places show it
  std::string way;        // places of the `use` steps that led here, for ids of checks
  int scenario_line = 0;  // in a routine: the line of the scenario's own file that led here
  Names names;
  std::unordered_set<std::string> from_empty;  // of these, values read from windows in which nothing happened

  void bind(const std::string& name, Value value, bool is_from_empty = false) {
    names[name] = std::move(value);
    if (is_from_empty)
      from_empty.insert(name);
    else if (!from_empty.empty())
      from_empty.erase(name);
  }
};
using FramePtr = std::shared_ptr<Frame>;

struct Locals {
  const Locals* outer = nullptr;
  std::vector<std::pair<std::string, Value>> names;
  const Value* find(std::string_view name) const {
    for (const Locals* at = this; at; at = at->outer)
      for (const auto& [own, value] : at->names)
        if (own == name) return &value;
    return nullptr;
  }
};

struct Scope {
  FramePtr frame;
  const Locals* locals = nullptr;
  ScenarioModule* self = nullptr;              // the own model whose method is evaluated
  const nn::BuildOptions* building = nullptr;  // while a `model` is built: calls may name layers and models
  Session& session() const { return *frame->session; }
  Scope with(const Locals* inner) const {
    Scope scope = *this;
    scope.locals = inner;
    return scope;
  }
};

// A value that only a run gives, asked for in a dry run.
class UnknownBeforeRun : public Error {
 public:
  explicit UnknownBeforeRun(std::string_view what) : Error(str(what, " is known only when the case runs")) {}
};

// A name that no step has bound, though one would have: the case is INVALID. Never caught by `raises`.
class UnboundName : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep::run
