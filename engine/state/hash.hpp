// The hashes of a checkpoint: XXH3 with 64 bits, of blocks of a chunk. A reader that needs some of a chunk verifies the
// blocks that it reads, and not the full chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::state {

std::uint64_t hash_of(const void* bytes, std::size_t size);
inline std::uint64_t hash_of(std::string_view text) { return hash_of(text.data(), text.size()); }
// The bytes of a block of a chunk: a power of two from 512 B to 256 KiB, about a 64th of the chunk.
std::uint64_t hash_block_of(std::uint64_t chunk_bytes);

std::string hash_text(std::uint64_t hash);  // 16 hexadecimal digits
// Throws Error naming `subject` unless the text has 16 lower-case hexadecimal digits.
std::uint64_t hash_from_text(std::string_view text, const std::string& subject);

}  // namespace lockstep::state
