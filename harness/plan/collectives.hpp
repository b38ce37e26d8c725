// Planned collectives, and their comparison with the observed ones: the number and bytes per kind, and the order.
//
//   const std::vector<Collective>& planned = planner.collectives();
//   for (const Difference& found : differences(tally(planned), tally(observed))) fail(found.text);
//   if (const auto found = first_order_difference(planned, observed)) fail(found->text);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::plan {

// One collective of one rank. Families, operations and phases have the names of the results file.
struct Collective {
  std::string family;
  std::string operation;
  std::string axis;  // of the mesh; "" for a process group over several axes
  int group_size = 0;
  std::string phase;
  std::string owner;  // the path of the module, as given to the API
  int line = 0;       // in the scenario's file
  std::int64_t bytes = 0;
  bool bytes_are_least = false;  // `bytes` is a lower bound: the exact number is not specified
  int turn = 0;                  // the turn of the innermost loop, counted over the whole run
};

// The collectives of one kind: their number and their bytes together.
struct Row {
  std::string family, operation, axis, phase, owner;
  int group_size = 0;
  int line = 0;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool bytes_are_least = false;
  bool same_kind(const Row& other) const;
};
// Which members separate rows, beside family, operation, group and phase.
struct TallyKeys {
  bool lines = true;   // the step that issued the collective
  bool owners = true;  // the module
};
std::vector<Row> tally(const std::vector<Collective>& collectives, TallyKeys by = {});

struct Difference {
  std::string text;  // "data_parallel/all_gather over dp of 4 in backward for model.0 (line 12): planned 2 of 512 ..."
  int line = 0;
};
// The kinds whose number or bytes differ. Empty when all agree.
std::vector<Difference> differences(const std::vector<Row>& planned, const std::vector<Row>& observed);

// The first position where the two sequences differ in kind or bytes: "backward, 3rd (line 12, turn 2): planned
// reduce_scatter of layers.1, observed all_gather of layers.0". Nothing when they are equal. The sequences are in the
// order in which the rank issues the collectives, not in the order in which its streams run them.
std::optional<Difference> first_order_difference(const std::vector<Collective>& planned,
                                                 const std::vector<Collective>& observed);

// A table for `lockstep explain`: the collectives of the last turn of the innermost loop, and their number over all
// turns. Empty without collectives.
std::string table(const std::vector<Collective>& collectives);
// The sequence of that last turn, one line per phase: "backward  all_gather b, a; reduce_scatter b, a". A long line is
// shortened in the middle.
std::string sequence(const std::vector<Collective>& collectives);

}  // namespace lockstep::plan
