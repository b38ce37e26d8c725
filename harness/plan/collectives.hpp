// Collectives as the plan speaks of them, and the comparison of those that were planned with those that were seen: how
// many of which kind, and in which order.
//
//   const std::vector<Collective>& planned = planner.collectives();
//   for (const Difference& found : differences(tally(planned), tally(from_the_log))) fail(found.text);
//   if (const auto found = first_apart(planned, from_the_log)) fail(found->text);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::plan {

// One collective of one rank. Families, operations and phases go by the names of the results file.
struct Collective {
  std::string family;
  std::string operation;
  std::string axis;  // of the mesh, "" for a group over several
  int group_size = 0;
  std::string phase;
  std::string owner;  // the path that the module was given to the API by
  int line = 0;       // of the scenario's own file
  std::int64_t bytes = 0;
  bool bytes_are_least = false;  // it carries more than that, and how much nobody promises
  int turn = 0;                  // of the innermost loop, over the whole run
};

// How many of one kind, together.
struct Row {
  std::string family, operation, axis, phase, owner;
  int group_size = 0;
  int line = 0;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool bytes_are_least = false;
  bool same_kind(const Row& other) const;
};
// What rows tell apart: `lines` the steps that issued them, `owners` the modules.
struct Grain {
  bool lines = true;
  bool owners = true;
};
std::vector<Row> tally(const std::vector<Collective>& collectives, Grain grain = {});

struct Difference {
  std::string text;  // "data_parallel/all_gather over dp of 4 in backward for model.0 (line 12): planned 2 of 512 ..."
  int line = 0;
};
std::vector<Difference> differences(const std::vector<Row>& planned, const std::vector<Row>& seen);

// The first place where the two sequences are not the same: "backward, 3rd (line 12, turn 2): planned reduce_scatter of
// layers.1, observed all_gather of layers.0"; nothing when they are one. A place holds a kind with its bytes. The order
// is that in which a rank issues, which its own steps fix, whatever streams the collectives then run on.
std::optional<Difference> first_apart(const std::vector<Collective>& planned, const std::vector<Collective>& seen);

// A table for people: what the last turn of the innermost loop makes, and how many it were in all. Empty when there are
// none.
std::string table(const std::vector<Collective>& collectives);
// The sequence of that last turn, a line a phase: "backward  all_gather b, a; reduce_scatter b, a". Long ones are cut
// in the middle.
std::string sequence(const std::vector<Collective>& collectives);

}  // namespace lockstep::plan
