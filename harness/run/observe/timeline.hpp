// The timeline of a case on one rank (`lockstep run --timeline`): the launches of all streams with their collectives,
// the steps and forwards of modules, the memory in use per purpose, and the bounds that the scenario sets for it.
// harness/report joins the ranks.
//
//   Timeline timeline;                               // starts recording on this rank
//   { const auto span = timeline.step(step); ... }   // around each step
//   timeline.after_step(step, scope, result);
//   timeline.write(path, header);                    // at the end of the case
//
// The recording orders, copies and keeps alive nothing. It hooks the modules of all models that steps bind, copies
// included.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/nn/module.hpp"
#include "harness/run/observe/recording.hpp"
#include "harness/run/values/evaluate.hpp"
#include "harness/run/values/value.hpp"
#include "harness/scenario/document.hpp"

namespace lockstep::run {

class Timeline {
 public:
  Timeline();
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // A step in progress; the destructor ends it.
  class Span {
   public:
    Span() = default;
    Span(Timeline* timeline, std::size_t at) : timeline_(timeline), at_(at) {}
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Timeline* timeline_ = nullptr;
    std::size_t at_ = 0;
  };
  Span step(const scenario::Step& step);
  // Hooks a model that the step bound. Notes an observation window, or the bounds that a condition sets for windows.
  void after_step(const scenario::Step& step, const Scope& scope, const Value& result);

  // Writes lines of JSON: the header, streams, launches, spans, memory, bounds, and the numbers of dropped entries.
  // Creates the folder. Throws Error if writing fails.
  void write(const std::string& path, const RecordingHeader& header) const;

 private:
  struct Spans;
  struct Window {
    std::string as;
    std::vector<std::string> purposes;  // empty: all
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };
  struct Bound {
    Window window;
    std::int64_t bytes = 0;  // the largest allowed peak
    std::int64_t peak = 0;   // the observed peak
    int line = 0;
    std::string text;
  };
  void add_hooks(const std::string& name, const nn::ModulePtr& root);
  void note_bound(const scenario::Expr& condition, const Scope& scope);

  std::shared_ptr<Spans> spans_;  // shared with the hooks of modules
  std::map<std::shared_ptr<const Observation>, Window> windows_;
  std::vector<Bound> bounds_;
};

}  // namespace lockstep::run
