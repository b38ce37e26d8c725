// The hash of checkpoints: XXH3 with 64 bits. tiles.hpp describes which bytes of a chunk are hashed together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::state {

std::uint64_t hash_of(const void* bytes, std::size_t size);
// A run of consecutive bytes of a tile (tiles.hpp).
struct TileRun {
  std::size_t tile = 0;
  std::uint64_t begin = 0, length = 0;  // bytes
};
// hashes[run.tile] becomes the hash of the run, with its value before as the seed. The runs count from `bytes`.
// `pitch`: the bytes to the runs of the next call, which are fetched into the cache; processors do not foresee such
// steps.
void hash_runs(const std::byte* bytes, const std::vector<TileRun>& runs, std::uint64_t pitch,
               std::vector<std::uint64_t>& hashes);
inline std::uint64_t hash_of(std::string_view text) { return hash_of(text.data(), text.size()); }

std::string hash_text(std::uint64_t hash);  // 16 hexadecimal digits
// Throws Error naming `subject` unless the text has 16 lower-case hexadecimal digits.
std::uint64_t hash_from_text(std::string_view text, const std::string& subject);

}  // namespace lockstep::state
