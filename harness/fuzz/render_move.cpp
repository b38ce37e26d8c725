// The model under test goes on as a new model under another parallel API.
#include "engine/core/error.hpp"
#include "harness/fuzz/render_internal.hpp"

namespace lockstep::fuzz {

void render_move(const Program& program, bool for_peer, Json& steps) {
  const auto put = [&](const char* verb, const Json& arguments) { steps.push_back({{verb, arguments}}); };
  const auto keep = [&](const std::string& of) {
    steps.push_back({{"state_dict", {{"of", of}, {"full", true}}}, {"as", "state_of_" + of}});
  };
  const Move& move = *program.move;
  const Json saved = {{"folder", "moved"}, {"state", {{"model", "test"}, {"optimizer", "test_optimizer"}}}};
  if (move.through_disk) {
    put("save_checkpoint", saved);
  } else {
    keep("test");
    keep("test_optimizer");
  }
  render_mesh(move.parallel, steps);
  put("seed", str(program.value_seed, " + 1 + rank"));
  if (move.is_deferred)
    steps.push_back({{"model", {{"build", program.model.build}, {"device", "meta"}}}, {"as", "test"}});
  else
    steps.push_back({{"model", program.model.build}, {"as", "test"}});
  render_ties(program, "test", steps);
  render_test_parallel(program, move.parallel, steps);
  if (move.is_deferred) put("to_empty", "test");
  render_optimizer(program, "test", for_peer, steps);
  if (move.through_disk) {
    put("load_checkpoint", saved);
    return;
  }
  for (const char* into : {"test", "test_optimizer"}) {
    Json arguments = {{"into", into}, {"state", str("state_of_", into)}};
    if (move.parallel.api != Api::flat_shard) arguments["full"] = true;
    put("load_state_dict", arguments);
  }
}

}  // namespace lockstep::fuzz
