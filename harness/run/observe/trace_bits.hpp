// The bits of a case on one rank, as hashes: of every module's outputs, and of every gradient, in the order in which
// they came. What `lockstep run --trace-bits` keeps and `lockstep compare --trace` reads (harness/report).
//
// A hash is a launch that reads the tensor on the current stream: it orders nothing and copies nothing. The models that
// verbs bind are watched from then on, through hooks of their modules; a copy is a model of its own.
//
//   TraceBits trace;
//   trace.after_step(step.verb, step.as, result);   // after each step
//   trace.write(path, header);                      // once everything has run
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/nn/module.hpp"
#include "harness/run/observe/recording.hpp"
#include "harness/run/values/value.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

class TraceBits {
 public:
  TraceBits();
  ~TraceBits();
  TraceBits(const TraceBits&) = delete;
  TraceBits& operator=(const TraceBits&) = delete;

  // Watches what a step bound to `name`; after a backward, takes the gradients of all parameters watched.
  void after_step(scenario::Verb verb, const std::string& name, const Value& result);

  // Where the trace of this rank comes from.
  // The file: a line of JSON for the header, one a record, one that says how many there are. Makes its folder. Throws
  // Error when it cannot be written. All streams must have been synchronized, or have failed.
  void write(const std::string& path, const RecordingHeader& header) const;

 private:
  struct Records;
  void watch(const std::string& name, const nn::ModulePtr& root);
  void take_gradients();

  std::shared_ptr<Records> records_;  // launches that are still queued hold it too
  std::vector<std::pair<std::string, std::weak_ptr<nn::Module>>> roots_;
};

}  // namespace lockstep::run
