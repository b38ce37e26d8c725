// What a case did when, on one rank: the launches of every stream with the collectives among them, the steps and the
// modules that ran, the memory in use by purpose and the bounds that the scenario set to it. What `lockstep run
// --timeline` keeps; harness/report joins the ranks.
//
//   Timeline timeline;                               // from now on, on this rank
//   { const auto span = timeline.step(step); ... }   // around each step
//   timeline.after_step(step, scope, result);
//   timeline.write(path, header);                    // once everything has run
//
// It watches: nothing is ordered, copied or kept alive by it. Modules of the models that steps bind are watched through
// hooks, a copy is a model of its own.
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

  // Ends when it goes.
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
  // Watches what the step bound; notes windows of memory, and the bounds of conditions on them.
  void after_step(const scenario::Step& step, const Scope& scope, const Value& result);

  // Lines of JSON: the header, then streams, launches, spans, memory and bounds, then what was dropped. Makes its
  // folder; throws Error when it cannot be written.
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
    std::int64_t bytes = 0;  // that the peak may have
    std::int64_t peak = 0;   // that it had
    int line = 0;
    std::string text;
  };
  void watch(const std::string& name, const nn::ModulePtr& root);
  void note_bound(const scenario::Expr& condition, const Scope& scope);

  std::shared_ptr<Spans> spans_;  // hooks of modules hold it too
  std::map<std::shared_ptr<const Observation>, Window> windows_;
  std::vector<Bound> bounds_;
};

}  // namespace lockstep::run
