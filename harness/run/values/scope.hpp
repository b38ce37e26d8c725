// The scopes of names while a case runs on a rank: the constants of the case (Session), the names of the scenario's
// file or of one call of a routine (Frame), and innermost names (Locals: comprehension targets, inputs of a model's
// method, values that a hook passes to its steps).
//
// A frame may outlive its routine call: a hook keeps the frame of its steps.
#pragma once

#include <memory>
#include <set>
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

// The same for the whole case.
struct Session {
  int rank = 0;
  int world_size = 1;
  device::Device device;
  bool is_dry_run = false;  // of the plan: tensors have no values, and devices are stand-ins (stand_in.hpp)
  MeshPtr all_ranks;
  Names variables;   // rank, world_size, ..., and the names of dtypes: visible everywhere
  Names parameters;  // parameters and matrix names of the scenario: visible in its file only
  // Gets the names of `parameters` that are read, and launch_of_case (trace/plan_conditions.hpp); null: nobody asks.
  std::set<std::string, std::less<>>* names_read = nullptr;
};

// The names of a file or of one call of a routine.
struct Frame {
  Session* session = nullptr;
  const std::vector<scenario::ModelDefinition>* models = nullptr;  // the models that the file or routine describes
  const scenario::Routine* routine = nullptr;                      // null: the scenario's file
  std::string file;                                                // in the form of messages
  std::string use_path;                 // the places of the calling `use` steps, for ids of checks
  int scenario_line = 0;                // in a routine: the line of the calling step in the scenario's file
  std::weak_ptr<const Frame> caller{};  // in a routine: the frame of the calling step
  Names names;
  std::unordered_set<std::string>
      from_trivial_reading;  // names whose values come from trivial readings (observation.hpp)

  void bind(const std::string& name, Value value, bool is_from_empty = false) {
    names[name] = std::move(value);
    if (is_from_empty)
      from_trivial_reading.insert(name);
    else if (!from_trivial_reading.empty())
      from_trivial_reading.erase(name);
  }
};
using FramePtr = std::shared_ptr<Frame>;

// Names inside an expression or method; `outer` is searched next.
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

// The place where an expression is evaluated.
struct Scope {
  FramePtr frame;
  const Locals* locals = nullptr;
  ScenarioModule* self = nullptr;                   // the module whose method is evaluated
  const nn::BuildOptions* build_options = nullptr;  // while `model` builds: calls may name layers and models
  Session& session() const { return *frame->session; }
  Scope with(const Locals* inner) const {
    Scope scope = *this;
    scope.locals = inner;
    return scope;
  }
};

// Thrown in a dry run for a value that only a run has.
class UnknownBeforeRun : public Error {
 public:
  explicit UnknownBeforeRun(std::string_view value) : Error(str(value, " is known only when the case runs")) {}
};

// Thrown for a name whose binding step did not run. The case is INVALID; `raises` does not catch it.
class UnboundName : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep::run
