#include "engine/state/box.hpp"

#include <algorithm>

#include "engine/core/error.hpp"

namespace lockstep::state {

std::string Box::text() const {
  std::string out;
  for (int dim = 0; dim < sizes.size(); ++dim)
    out += str(dim == 0 ? "[" : ", ", offsets[dim], ":", offsets[dim] + sizes[dim]);
  return out.empty() ? out : out + "]";
}

std::optional<Box> overlap(const Box& a, const Box& b) {
  Box both;
  for (int dim = 0; dim < a.sizes.size(); ++dim) {
    const std::int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    const std::int64_t end = std::min(a.offsets[dim] + a.sizes[dim], b.offsets[dim] + b.sizes[dim]);
    if (end <= begin) return std::nullopt;
    both.offsets.push_back(begin);
    both.sizes.push_back(end - begin);
  }
  return both;
}

bool contains(const Box& outer, const Box& inner) {
  const std::optional<Box> both = overlap(outer, inner);
  return both && *both == inner;
}

namespace {

// The offset of each range of a dim in the local tensor.
std::vector<std::int64_t> local_begins(const std::vector<layout::Chunk>& ranges) {
  std::vector<std::int64_t> begins;
  std::int64_t begin = 0;
  for (const layout::Chunk& range : ranges) {
    begins.push_back(begin);
    begin += range.length;
  }
  return begins;
}

}  // namespace

std::vector<HeldBox> held_boxes(const Dims& sizes, const std::shared_ptr<const layout::ShardedLayout>& layout,
                                int rank) {
  if (lockstep::num_elements(sizes) == 0) return {};
  if (!layout) return {{{Dims(sizes.size(), 0), sizes}, Dims(sizes.size(), 0)}};
  if (layout::has_partial(*layout))
    throw Error(str("a tensor ", layout->text(), ": each rank holds a summand of its values"),
                "redistribute it to a replicated or sharded placement first");
  if (!layout->mesh.contains(rank)) return {};
  std::vector<HeldBox> boxes{HeldBox{}};
  for (int dim = 0; dim < sizes.size(); ++dim) {
    const std::vector<layout::Chunk> ranges = layout::global_ranges(*layout, rank, dim);
    const std::vector<std::int64_t> begins = local_begins(ranges);
    std::vector<HeldBox> next;
    for (const HeldBox& before : boxes)
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        HeldBox one = before;
        one.box.offsets.push_back(ranges[i].begin);
        one.box.sizes.push_back(ranges[i].length);
        one.at.push_back(begins[i]);
        next.push_back(one);
      }
    boxes = std::move(next);
  }
  return boxes;
}

std::string tiling_problem(const Dims& sizes, const std::vector<Box>& boxes) {
  std::vector<const Box*> order;
  std::int64_t held = 0;
  for (const Box& box : boxes) {
    order.push_back(&box);
    held += box.num_elements();
  }
  const auto first_offset = [](const Box* box) { return box->offsets.empty() ? 0 : box->offsets[0]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](const Box* a, const Box* b) { return first_offset(a) < first_offset(b); });
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = i + 1; j < order.size(); ++j) {
      if (!sizes.empty() && first_offset(order[j]) >= order[i]->offsets[0] + order[i]->sizes[0]) break;
      if (const std::optional<Box> both = overlap(*order[i], *order[j]))
        return str("elements ", both->text(), " are there twice");
    }
  const std::int64_t wanted = lockstep::num_elements(sizes);
  return held == wanted ? "" : str(wanted - held, " of ", wanted, " elements are missing");
}

}  // namespace lockstep::state
