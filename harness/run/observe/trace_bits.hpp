// Hashes of the outputs of all modules and of all gradients of a case on one rank, in the order of their computation
// (`lockstep run --trace-bits`; `lockstep compare --trace` reads them, harness/report).
//
// A hash is computed by a launch that reads the tensor on the current stream. It orders nothing: a case has the same
// checks of order and of launches with it. The modules of all models that verbs bind are hooked, copies included.
//
//   TraceBits trace;
//   trace.after_step(step.verb, step.as, result);   // after each step
//   trace.write(path, header);                      // at the end of the case
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

  // Hooks a model that a step bound to `name`. After a backward, hashes the gradients of the parameters of all models.
  // After a backward within a backward, only of those that no backward around it has reached: the others are not
  // complete.
  void after_step(scenario::Verb verb, const std::string& name, const Value& result);

  // `set_flags` has set is_last_backward at a module. A backward that is not the last does not wait for the reductions,
  // and a launch on the current stream must not read the gradients: those of the model are not hashed until a backward
  // of it has waited.
  void note_last_backward(const nn::ModulePtr& module, bool is_last);

  // Writes lines of JSON: the header, one line per record, and the number of records. Creates the folder. Throws Error
  // if writing fails. All streams must have been synchronized, or have failed.
  void write(const std::string& path, const RecordingHeader& header) const;

 private:
  struct Records;
  void add_hooks(const std::string& name, const nn::ModulePtr& root);
  void hash_gradients();

  std::shared_ptr<Records> records_;  // shared with queued launches
  struct Root {
    std::string name;
    std::weak_ptr<nn::Module> module;
    std::shared_ptr<std::uint64_t> reached;  // backward_id of the outermost backward that has reached it; 0: none
    bool waits = false;  // its reductions since the last backward that waited for them are in progress
  };
  bool is_last(const nn::ModulePtr& root) const;
  std::vector<Root> roots_;
  std::vector<std::weak_ptr<nn::Module>> not_last_;  // with is_last_backward: false
};

}  // namespace lockstep::run
