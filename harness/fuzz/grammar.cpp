#include "harness/fuzz/grammar.hpp"

#include <algorithm>
#include <array>

#include "engine/core/error.hpp"

namespace lockstep::fuzz {

namespace {

Optimizer derive_optimizer(Chooser choose, const Program& program) {
  Optimizer optimizer;
  const int type = choose.pick("type", {35, 35, 30});
  optimizer.type = type == 1 ? "Adam" : type == 2 ? "AdamW" : "SGD";
  // A sum of squares has large gradients, with which a large learning rate ends in infinities.
  const bool is_small = program.loss != Loss::squares && program.loss != Loss::changed;
  if (!is_small && type == 0) optimizer.lr = "0.002";
  if (choose.chance("larger lr", 30)) optimizer.lr = is_small || type > 0 ? "0.02" : "0.004";
  if (type == 0 && choose.chance("momentum", 50)) optimizer.momentum = "0.9";
  if (choose.chance("weight decay", 30)) optimizer.weight_decay = "0.1";
  if (type > 0 && choose.chance("betas", 25)) optimizer.betas = "[0.8, 0.9]";
  if (choose.chance("fused", 20)) optimizer.fused = true;
  const bool has_names = program.parallel.has_names() && (!program.move || program.move->parallel.has_names());
  if (has_names && program.model.blocks.size() > 1 && choose.chance("groups", 20))
    optimizer.own_group = program.model.blocks[static_cast<std::size_t>(
        choose.number("own", 0, static_cast<std::int64_t>(program.model.blocks.size()) - 1))];
  return optimizer;
}

// A checkpoint inside another is left out: the outer one recomputes the inner one already.
void derive_checkpoints(const DerivedModel& derived, Program& program) {
  for (std::size_t i = 0; i < derived.model.units.size(); ++i) {
    const Unit& unit = derived.model.units[i];
    Chooser of_unit = derived.of_units[i];
    bool is_inside = false;
    for (const auto& [outer, form] : program.checkpoints) is_inside |= unit.path.starts_with(outer + ".");
    if (!unit.may_recompute || is_inside || !of_unit.chance("checkpoint", 14)) continue;
    program.checkpoints.emplace_back(unit.path, of_unit.chance("wrapper", 40) ? "wrapper" : "composable");
  }
}

Loss derive_loss(Chooser choose, const Program& program) {
  const Parallel& parallel = program.parallel;
  const bool may_change = program.model.output_may_change && parallel.api != Api::tensor_parallel;
  return static_cast<Loss>(choose.pick("loss", {46, 24, 10, 10, may_change ? 10 : 0}));
}

// Values that a selective checkpoint keeps must not be changed in place.
void derive_kept_values(Chooser choose, Program& program) {
  if (program.checkpoints.empty() || !choose.chance("selects", 25)) return;
  constexpr std::array<const char*, 6> names{"attention", "relu", "layer_norm", "linear", "linear/2", "gelu"};
  const bool changes = !program.model.written.empty() || program.loss == Loss::changed;
  program.saved = {names.at(static_cast<std::size_t>(choose.number("first", 0, changes ? 2 : 5)))};
  if (choose.chance("second", 40)) program.saved.emplace_back("tanh");
}

// Children that are frozen from the beginning; at least one child that is used stays trainable.
void derive_frozen(Chooser choose, Program& program) {
  const Parallel& parallel = program.parallel;
  if (parallel.api == Api::flat_shard || parallel.root_is_replicated || program.model.blocks.size() < 2 ||
      program.model.has_unused)
    return;
  if (!choose.chance("some", 12)) return;
  const auto count = static_cast<std::int64_t>(program.model.blocks.size());
  program.frozen = {program.model.blocks[static_cast<std::size_t>(choose.number("which", 0, count - 1))]};
}

// Features of the whole training.
void derive_extras(Chooser choose, Program& program) {
  const bool has_flat = program.parallel.api == Api::flat_shard || program.move;
  program.is_scaled = !program.move && choose.chance("scaled", 12);
  program.averages = !has_flat && !program.parallel.root_is_replicated && !program.parallel.starts_apart &&
                     program.parallel.offload.empty() && choose.chance("averages", 10);
  const bool has_numbers = program.model.input.starts_with("randn");
  program.has_input_gradients =
      has_numbers && !program.parallel.is_narrow() && !program.is_scaled && choose.chance("input gradients", 12);
  program.starts_with_state = choose.chance("starts with state", 8);
  // The parts of a tied parameter are reduced one by one, so their sum is rounded at another place.
  const bool may_differ = !program.model.has_rounding && !program.parallel.is_narrow();
  program.ties_late = !program.model.ties.empty() && program.parallel.api != Api::flat_shard && may_differ &&
                      choose.chance("ties late", 40);
  if (choose.chance("side model", 6)) program.side = derive_side(choose.in("of side model"), program);
  if (choose.chance("stale", 8)) program.stale = derive_stale_forward(choose.in("of stale"));
}

Program derived(std::uint64_t seed, std::uint64_t index, Chooser choose) {
  Program program;
  program.seed = seed;
  program.index = index;
  const Api api = static_cast<Api>(choose.pick("api", {56, 16, 16, 12}));
  constexpr int sizes[] = {2, 4, 3, 1, 6};
  program.world_size = sizes[choose.pick("world size", {44, 32, 18, 2, 4})];
  if (choose.chance("processes", 50)) program.launch = "process";
  if (choose.chance("sim", 35)) program.device = "sim";
  const int axis_size = program.world_size % 2 == 0 && program.world_size > 2 ? 2 : program.world_size;
  const DerivedModel model = derive_model(choose.in("model"), api == Api::tensor_parallel, axis_size);
  program.model = model.model;
  program.parallel = derive_parallel(choose.in("parallel"), api, program.world_size, model);
  if (program.model.has_unused && api == Api::flat_shard) {
    // A unit gives zeros to a parameter without a gradient, and the plain model gives none.
    program.parallel = derive_parallel(choose.in("parallel"), Api::fully_shard, program.world_size, model);
  }
  derive_checkpoints(model, program);
  derive_frozen(choose.in("frozen"), program);
  const bool may_move =
      api != Api::tensor_parallel && !program.parallel.is_narrow() && program.frozen.empty() && program.world_size > 1;
  if (may_move && choose.chance("moves", 15)) program.move = derive_move(choose.in("move"), program, model);
  program.loss = derive_loss(choose, program);
  derive_kept_values(choose.in("kept"), program);
  program.optimizer = derive_optimizer(choose.in("optimizer"), program);
  // Three neighbours are not pairs, so that their sums have other bits than those over all ranks at once.
  const bool sums_change =
      program.move && (program.move->parallel.neighbours == 3) != (program.parallel.neighbours == 3);
  program.may_be_replicated = api != Api::tensor_parallel && !program.parallel.is_narrow() && !sums_change;
  program.beside_replicated = program.may_be_replicated && choose.chance("beside replicated", 35);
  derive_extras(choose.in("extras"), program);
  program.value_seed = static_cast<int>(choose.number("values", 1, 1000));
  program.steps = derive_steps(choose.in("steps"), program);
  return program;
}

}  // namespace

Program program_of(std::uint64_t seed, std::uint64_t index, Derivation& tree) {
  Random random(program_seed(seed, index));
  Program program = derived(seed, index, Chooser(tree, &random));
  tree.drop_unused();
  return program;
}

Program derive(std::uint64_t seed, std::uint64_t index, Derivation& tree) {
  Program program = derived(seed, index, Chooser(tree));
  tree.drop_unused();
  return program;
}

}  // namespace lockstep::fuzz
