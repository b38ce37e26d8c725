// The grammar of the fuzzer: derives a valid training program from a tree of choices. The simplest program is a Linear
// under fully_shard on two ranks with one step of SGD.
//
//   Derivation tree;
//   const Program program = program_of(7, 3, tree);         // program 3 of seed 7; `tree` holds its choices
//   const Program smaller = derive(7, 3, changed_tree);     // after the shrinker has changed them
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/fuzz/derivation.hpp"
#include "harness/fuzz/program.hpp"

namespace lockstep::fuzz {

// Draws the choices of a program into `tree`, which is empty before.
Program program_of(std::uint64_t seed, std::uint64_t index, Derivation& tree);

// Repeats the choices of a tree and drops those that do not occur.
Program derive(std::uint64_t seed, std::uint64_t index, Derivation& tree);

// Parts of the grammar, one file each.
//
// The choices about a unit (whether it is a group, or a checkpoint) stand in the tree below the block that contains it.
// A block that is removed takes them along, and the choices of other blocks do not change.
struct DerivedModel {
  Model model;
  std::vector<Chooser> of_units;  // one per unit of the model
};
struct DerivedForward {
  Written model;
  bool output_may_change = false;
  bool calls_again = false;  // its child several times
};
DerivedForward derive_forward(Chooser choose, const std::string& name, int dim, bool tensor_parallel);
Written derive_stale_forward(Chooser choose);  // it changes a tensor that its backward needs
DerivedModel derive_model(Chooser choose, bool tensor_parallel, int axis_size);
Parallel derive_parallel(Chooser choose, Api api, int world_size, const DerivedModel& derived);
Move derive_move(Chooser choose, const Program& program, const DerivedModel& derived);
// It changes a flag of the model under test.
inline bool has_flags(const Microbatch& microbatch) {
  return !microbatch.sync || !microbatch.reshards || !microbatch.last_backward || !microbatch.all_reduces;
}
SideModel derive_side(Chooser choose, const Program& program);
// Around the forwards of a step. `is_clear`: no parameter is frozen, and none has a gradient, which would be removed
// with those of a failed backward.
void derive_interruptions(Chooser choose, const Model& model, bool may_evaluate, bool is_clear, Step& step);
std::vector<Step> derive_steps(Chooser choose, const Program& program);

}  // namespace lockstep::fuzz
