// Where the parts of several parameters lie in the flat buffers of one gather or reduction, as pure values.
//
// A parameter is cut along one dim into `parts` equal parts, the last ones padded (to what ceiling division gives the
// first). A flat buffer of one rank holds a run of parts of every parameter, one parameter after the other; the
// gathered buffer holds those of all ranks, rank after rank:
//
//   rank 0: [w part 0][b part 0]   rank 1: [w part 1][b part 1]   ...
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/shape.hpp"

namespace lockstep::layout {

// One parameter, cut.
struct CutParameter {
  Dims sizes;
  int dim = 0;
  int parts = 1;
};
Dims padded_part_sizes(const CutParameter& parameter);
std::int64_t padded_part_elements(const CutParameter& parameter);

// The flat buffers of several parameters, `parts_per_rank` consecutive parts of each on every rank.
struct FlatShards {
  std::vector<std::int64_t> offsets;  // of a parameter within a rank's buffer, in elements
  std::int64_t per_rank = 0;          // elements of a rank's buffer
  int parts_per_rank = 1;
  int num_ranks = 1;
};
// All parameters are cut into as many parts, a multiple of `parts_per_rank`.
FlatShards plan_flat_shards(const std::vector<CutParameter>& parameters, int parts_per_rank = 1);

// A copy between a parameter and a gathered buffer: a box of the parameter, and where it lies in the buffer. Together
// the copies of a parameter cover it once; padding is in none of them.
struct ShardCopy {
  std::int64_t begin = 0;        // along the dim that is cut
  std::int64_t length = 0;       // of one part
  int num_parts = 1;             // equal parts one after the other along that dim
  std::int64_t flat_offset = 0;  // of the first, in elements
  std::int64_t flat_stride = 0;  // from part to part
};
std::vector<ShardCopy> shard_copies(const CutParameter& parameter, const FlatShards& flat, std::size_t index);

// The factors that float16 reductions divide by, before and after, so that sums neither overflow nor vanish: a power of
// two near the square root of the number of ranks, and the rest.
struct DivideFactors {
  double before = 1.0;
  double after = 1.0;
};
DivideFactors float16_factors(int num_ranks);

}  // namespace lockstep::layout
