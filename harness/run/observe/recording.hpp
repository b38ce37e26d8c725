// The common part of the two recordings of a rank (timeline.hpp, trace_bits.hpp): the models that they hook, and the
// file of JSON lines that they write.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/nn/module.hpp"
#include "harness/run/values/value.hpp"
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::run {

// The origin of a recording, in the first line of its file.
struct RecordingHeader {
  std::string scenario;
  std::string case_id;
  std::string stage;
  int rank = 0;
  int world_size = 1;
};
// The first members of the object: "\"kind\":\"trace\",\"scenario\":...,\"world_size\":2".
std::string header_members(std::string_view kind, const RecordingHeader& header);

// The model that a step bound, or null. A copy is a model too.
const nn::ModulePtr* bound_model(scenario::Verb verb, const Value& result);
// The path of a module below the model `name`: "net", "net.fc1".
std::string full_path(const std::string& name, const std::string& path);

// The file of a rank: "when/timeline-3.stage-0.rank-1.jsonl".
std::string recording_path(const std::string& prefix, std::size_t stage, int rank);

// Creates the folder of `path` and writes `text`. `what` ("the trace") and `option` ("--trace-bits") are for messages.
// Throws Error, or resource_error where the machine refuses.
void write_recording(const std::string& path, const std::string& text, std::string_view what, std::string_view option);
// Removes what write_recording() leaves when the process ends within it.
void remove_unfinished_recording(const std::string& path);

}  // namespace lockstep::run
