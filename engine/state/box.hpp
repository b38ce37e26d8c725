// Boxes: the rectangular pieces of a full tensor that a rank holds under a layout, as pure values. A shard is one box.
// A strided shard, which holds several ranges of a dim, is several boxes.
//
//   std::vector<HeldBox> held = held_boxes({9, 4}, layout, rank);
//   held[0].box.offsets;   // where the box lies in the full tensor
//   held[0].at;            // where it lies in the local shard
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/layout/placement.hpp"

namespace lockstep::state {

struct Box {
  Dims offsets;  // in the full tensor
  Dims sizes;    // none is 0
  std::int64_t num_elements() const { return lockstep::num_elements(sizes); }
  std::string text() const;  // "[0:4, 2:8]"; "" for a scalar
  friend bool operator==(const Box&, const Box&) = default;
};
// The elements that both boxes hold; nullopt if there are none. Both have the same number of dims.
std::optional<Box> overlap(const Box& a, const Box& b);
// Whether `inner` lies within `outer`.
bool contains(const Box& outer, const Box& inner);

struct HeldBox {
  Box box;
  Dims at;  // the offsets of the box in the local tensor
};
// The boxes that `rank` holds of a tensor with these global sizes, in their local order. Without a layout the rank
// holds the full tensor. None if the rank is not in the mesh or its shard is empty. Throws Error for a partial
// placement, because each rank then holds a summand and not values.
std::vector<HeldBox> held_boxes(const Dims& sizes, const std::shared_ptr<const layout::ShardedLayout>& layout,
                                int rank);

// The first way in which boxes fail to tile a full tensor: "elements [0:2, 0:3] are held twice", "7 of 12 elements are
// missing"; "" if each element is in exactly one box.
std::string tiling_problem(const Dims& sizes, const std::vector<Box>& boxes);

}  // namespace lockstep::state
