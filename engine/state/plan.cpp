#include "engine/state/plan.hpp"

#include <algorithm>
#include <optional>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep::state {

namespace {

// ---- writing ----
struct Holder {
  int rank = 0;
  const HeldTensor* tensor = nullptr;
};

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

// The tensors of all ranks by key.
std::map<std::string, std::vector<Holder>> holders_by_key(const std::vector<std::vector<HeldTensor>>& held) {
  std::map<std::string, std::vector<Holder>> holders;
  for (std::size_t rank = 0; rank < held.size(); ++rank)
    for (const HeldTensor& tensor : held[rank]) holders[tensor.key].push_back({static_cast<int>(rank), &tensor});
  return holders;
}

void check_same(const std::string& key, const std::vector<Holder>& holders) {
  const Holder& first = holders.front();
  for (const Holder& other : holders) {
    if (other.tensor->dtype != first.tensor->dtype || !(other.tensor->sizes == first.tensor->sizes))
      throw Error(str("`", key, "` is ", name_of(first.tensor->dtype), " ", to_text(first.tensor->sizes), " on rank ",
                      first.rank, ", and ", name_of(other.tensor->dtype), " ", to_text(other.tensor->sizes),
                      " on rank ", other.rank),
                  "give different tensors different names in the state");
    for (const Holder& before : holders) {
      if (before.rank >= other.rank) break;
      if (before.tensor->boxes == other.tensor->boxes && before.tensor->digest != other.tensor->digest)
        throw Error(
            str("the replicas of `", key, "` have other values on rank ", other.rank, " than on rank ", before.rank),
            "broadcast it first, or give each rank's tensor a name of its own");
    }
  }
}

// A box and the ranks that hold it.
struct SharedBox {
  const std::string* key = nullptr;
  DType dtype = DType::float32;
  Box box;
  std::vector<int> ranks;
  std::int64_t bytes() const { return static_cast<std::int64_t>(bounded_bytes(box.num_elements(), size_of(dtype))); }
};

std::vector<SharedBox> shared_boxes(const std::string& key, const std::vector<Holder>& holders) {
  std::vector<SharedBox> shared;
  for (const Holder& holder : holders)
    for (const Box& box : holder.tensor->boxes) {
      auto at = std::find_if(shared.begin(), shared.end(), [&](const SharedBox& one) { return one.box == box; });
      if (at == shared.end()) at = shared.insert(at, {&key, holder.tensor->dtype, box, {}});
      at->ranks.push_back(holder.rank);
    }
  std::vector<Box> boxes;
  boxes.reserve(shared.size());
  std::vector<int> ranks;
  ranks.reserve(holders.size());
  for (const SharedBox& one : shared) boxes.push_back(one.box);
  for (const Holder& holder : holders) ranks.push_back(holder.rank);
  const Dims& sizes = holders.front().tensor->sizes;
  if (const std::string problem = tiling_problem(sizes, boxes); !problem.empty())
    throw Error(str("`", key, "` of sizes ", to_text(sizes), " on ", ranks_text(ranks), ": ", problem),
                "save on all ranks that hold a shard of it, with equal layouts");
  return shared;
}

// The box in up to `num_pieces` pieces along its first dim of more than one element.
std::vector<Box> cut(const Box& box, std::size_t num_pieces) {
  int dim = 0;
  while (dim < box.sizes.size() && box.sizes[dim] == 1) ++dim;
  if (dim == box.sizes.size()) return {box};
  std::vector<Box> pieces;
  for (int i = 0; i < static_cast<int>(num_pieces); ++i) {
    const layout::Chunk chunk = layout::chunk(box.sizes[dim], static_cast<int>(num_pieces), i);
    if (chunk.length == 0) break;
    Box piece = box;
    piece.offsets[dim] += chunk.begin;
    piece.sizes[dim] = chunk.length;
    pieces.push_back(piece);
  }
  return pieces;
}

// The rank that writes a box: of its holders, the one with the fewest bytes so far.
std::optional<int> writer_of(const SharedBox& shared, const std::vector<std::int64_t>& bytes) {
  if (shared.ranks.size() > 1 && defect_armed(Defect::saved_replicas_by_nobody)) [[unlikely]]
    return std::nullopt;
  return *std::min_element(shared.ranks.begin(), shared.ranks.end(), [&](int a, int b) {
    return bytes[static_cast<std::size_t>(a)] < bytes[static_cast<std::size_t>(b)];
  });
}

// Assigns every box to one rank: first those that only one rank holds, then the others from large to small.
void assign(std::vector<SharedBox> boxes, const WritePlan& plan, std::vector<std::vector<PlannedChunk>>& by_rank) {
  std::stable_sort(boxes.begin(), boxes.end(), [](const SharedBox& a, const SharedBox& b) {
    const bool a_shared = a.ranks.size() > 1, b_shared = b.ranks.size() > 1;
    return a_shared != b_shared ? b_shared : a.bytes() > b.bytes();
  });
  std::vector<std::int64_t> bytes(by_rank.size(), 0);
  for (const SharedBox& one : boxes) {
    const std::optional<int> writer = writer_of(one, bytes);
    if (!writer) continue;
    const auto rank = static_cast<std::size_t>(*writer);
    bytes[rank] += one.bytes();
    const Dims& sizes = plan.tensors.at(*one.key).sizes;
    const PlannedChunk chunk{*one.key, one.dtype, one.box, name_of_chunk(*one.key, sizes, one.box), 0};
    by_rank[rank].push_back(chunk);
    if (one.ranks.size() > 1 && defect_armed(Defect::saved_replicas_twice)) [[unlikely]]
      by_rank[static_cast<std::size_t>(one.ranks[one.ranks[0] == *writer])].push_back(chunk);
  }
}

// Orders the chunks of a file, large elements first so that every chunk is aligned, and places them without gaps.
void place(std::vector<PlannedChunk>& chunks) {
  std::sort(chunks.begin(), chunks.end(), [](const PlannedChunk& a, const PlannedChunk& b) {
    if (size_of(a.dtype) != size_of(b.dtype)) return size_of(a.dtype) > size_of(b.dtype);
    if (a.key != b.key) return a.key < b.key;
    return std::lexicographical_compare(a.box.offsets.begin(), a.box.offsets.end(), b.box.offsets.begin(),
                                        b.box.offsets.end());
  });
  std::uint64_t begin = 0;
  for (PlannedChunk& chunk : chunks) {
    chunk.begin = begin;
    begin += chunk.bytes();
  }
}

// The key that all holders of a tensor say it is tied to, if all of them hold that one too; else "".
std::string tie_of(const std::vector<Holder>& holders) {
  const std::string& first = holders.front().tensor->same_as;
  const bool all = std::all_of(holders.begin(), holders.end(),
                               [&](const Holder& holder) { return holder.tensor->same_as == first; });
  return all ? first : "";
}

}  // namespace

std::string name_of_chunk(const std::string& key, const Dims& sizes, const Box& box) {
  return box.sizes == sizes ? key : key + box.text();
}

WritePlan plan_writes(const std::vector<std::vector<HeldTensor>>& held, std::int64_t cut_bytes) {
  const std::map<std::string, std::vector<Holder>> holders = holders_by_key(held);
  WritePlan plan;
  plan.by_rank.resize(held.size());
  std::vector<SharedBox> boxes;
  for (const auto& [key, of_key] : holders) {
    check_same(key, of_key);
    const HeldTensor& first = *of_key.front().tensor;
    std::string tie = tie_of(of_key);
    if (!tie.empty() && holders.at(tie).size() != of_key.size()) tie.clear();
    plan.tensors[key] = {first.dtype, first.sizes, tie};
    if (!tie.empty()) continue;
    for (SharedBox& one : shared_boxes(key, of_key)) {
      if (one.ranks.size() == 1 || one.bytes() < cut_bytes) {
        boxes.push_back(std::move(one));
        continue;
      }
      for (const Box& piece : cut(one.box, one.ranks.size())) boxes.push_back({one.key, one.dtype, piece, one.ranks});
    }
  }
  assign(std::move(boxes), plan, plan.by_rank);
  for (std::vector<PlannedChunk>& chunks : plan.by_rank) place(chunks);
  return plan;
}

// ---- reading ----
std::vector<Piece> plan_reads(const std::vector<Box>& chunks, const std::vector<HeldBox>& wanted) {
  std::vector<Piece> pieces;
  for (const HeldBox& held : wanted) {
    std::int64_t found = 0;
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      const std::optional<Box> both = overlap(chunks[chunk], held.box);
      if (!both) continue;
      Piece piece{chunk, *both, held.at};
      for (int dim = 0; dim < piece.at.size(); ++dim) piece.at[dim] += both->offsets[dim] - held.box.offsets[dim];
      found += both->num_elements();
      pieces.push_back(piece);
    }
    if (found != held.box.num_elements())
      throw Error(
          str("of the elements ", held.box.text(), " the checkpoint has ", found, " of ", held.box.num_elements()),
          "save it again on all ranks");
  }
  return pieces;
}

std::vector<ByteRange> byte_ranges(const Box& chunk, const Box& box, std::size_t element) {
  const int num_dims = box.sizes.size();
  const Dims strides = contiguous_strides(chunk.sizes);
  // The last dims that the box fills completely are contiguous together with the dim before them.
  int run_dim = num_dims;
  std::int64_t run = 1;
  while (run_dim > 0) {
    --run_dim;
    run = bounded_product(run, box.sizes[run_dim]);
    if (box.sizes[run_dim] != chunk.sizes[run_dim]) break;
  }
  std::int64_t first = 0, num_runs = 1;
  for (int dim = 0; dim < num_dims; ++dim) {
    first += bounded_product(box.offsets[dim] - chunk.offsets[dim], strides[dim]);
    if (dim < run_dim) num_runs = bounded_product(num_runs, box.sizes[dim]);
  }
  std::vector<ByteRange> ranges;
  Dims index(num_dims, 0);
  for (std::int64_t i = 0; i < num_runs; ++i) {
    std::int64_t at = first;
    for (int dim = 0; dim < run_dim; ++dim) at += element_offset(index[dim], strides[dim]);
    ranges.push_back({bounded_bytes(at, element), bounded_bytes(run, element)});
    for (int dim = run_dim - 1; dim >= 0 && ++index[dim] == box.sizes[dim]; --dim) index[dim] = 0;
  }
  return ranges;
}

std::vector<ByteRange> whole_blocks(std::vector<ByteRange> ranges, std::uint64_t block, std::uint64_t end) {
  std::sort(ranges.begin(), ranges.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> merged;
  for (const ByteRange& range : ranges) {
    if (range.length == 0) continue;
    const std::uint64_t begin = range.begin / block * block;
    const std::uint64_t last = std::min(end, (range.begin + range.length + block - 1) / block * block);
    if (!merged.empty() && begin <= merged.back().begin + merged.back().length)
      merged.back().length = std::max(merged.back().length, last - merged.back().begin);
    else
      merged.push_back({begin, last - begin});
  }
  return merged;
}

}  // namespace lockstep::state
