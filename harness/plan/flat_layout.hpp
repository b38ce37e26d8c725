// The layout of a flat parameter, from this folder's own reading of flat sharding: the parameters of a unit lie one
// after the other, and each rank holds one of the equal chunks of the whole.
//
//   3, 6 and 5 elements in steps of 4:   x x x . | x x x x x x . . | x x x x x         17 elements
//   on 2 ranks: 18, chunks of 9          on 4 ranks: 20, chunks of 5
//
// With `step` 1 the parameters are packed: 14 elements, on 2 ranks chunks of 7, on 4 ranks 16 with chunks of 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/shape.hpp"
#include "engine/core/types.hpp"

namespace lockstep::plan {

class FlatLayout {
 public:
  FlatLayout() = default;
  // Each parameter begins at a multiple of `step` elements.
  FlatLayout(const std::vector<Dims>& sizes, int num_chunks, std::int64_t step);

  std::int64_t chunk() const { return chunk_; }  // elements of one rank, padding included
  std::int64_t padded() const;                   // elements of all ranks
  std::int64_t total() const { return total_; }  // without the padding at the end
  std::int64_t begin(std::size_t parameter) const { return begins_[parameter]; }
  // The elements of a parameter that the chunk of a rank holds; `begin` counts from the start of the chunk.
  struct Part {
    std::int64_t begin = 0, length = 0;  // length 0: none
    bool operator==(const Part&) const = default;
  };
  Part part(std::size_t parameter, int rank) const;

 private:
  std::vector<std::int64_t> begins_, lengths_;
  std::int64_t chunk_ = 0, total_ = 0;
  int num_chunks_ = 1;
};

// The number of elements of this type in 16 bytes.
std::int64_t flat_step(DType type);

}  // namespace lockstep::plan
