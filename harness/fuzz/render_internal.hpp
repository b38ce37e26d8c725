// What the files of render.hpp share.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "harness/fuzz/program.hpp"

namespace lockstep::fuzz {

using Json = nlohmann::ordered_json;

std::string path_of(const std::string& model, const std::string& path);  // "test.0", or "test" for an empty path
std::vector<std::string> models_of(const Program& program);              // test, alone, and replicated if it is beside
Json scenario_of(const Program& program, bool for_peer);
std::string yaml_text(const Json& document);
void render_mesh(const Parallel& parallel, Json& steps);
void render_test_parallel(const Program& program, const Parallel& parallel, Json& steps);  // of the model under test
void render_ties(const Program& program, const std::string& model, Json& steps);
void render_optimizer(const Program& program, const std::string& model, bool for_peer, Json& steps);
void render_move(const Program& program, bool for_peer, Json& steps);
// The change in one model. `index` is that of the step, in whose hooks `now` equals it.
void render_change(const Change& change, const std::string& model, bool of_gradient, int index, bool is_flat,
                   Json& steps);
// The hooks by which the interruptions of steps [first, last) fail, on the present model under test.
void render_failing_hooks(const Program& program, std::size_t first, std::size_t last, Json& steps);
void render_interruption(const Program& program, const Interruption& interruption, const std::string& input,
                         Json& steps);
void render_side(const SideModel& inner, Json& steps);
void render_end_of_side(const Program& program, Json& steps);
std::string unplanned_reason(const Program& program);  // empty: the collectives can be planned
void render_averages(const std::string& model, bool is_first, Json& steps);
void render_restore(Restore restore, bool is_flat, Json& steps);        // the model under test and its optimizer
void render_steps(const Program& program, bool for_peer, Json& steps);  // of the training

// The most bytes of unsharded parameters that the model under test may hold after its forward, as an expression;
// empty where nothing is promised.
std::string gathered_after_forward(const Program& program, const Parallel& parallel, const Step& step);
// The sharded and the replicated model have the same buffers: each saw the same batches of its rank equally often.
bool promises_buffers(const Program& program);

}  // namespace lockstep::fuzz
