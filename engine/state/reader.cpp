#include "engine/state/reader.hpp"

#include <algorithm>
#include <cstring>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/nontemporal.hpp"
#include "engine/state/hash.hpp"
#include "engine/state/host_bytes.hpp"

namespace lockstep::state {

Reader::Reader(const std::string& folder, const std::string& shown, FileSystem& files)
    : folder_(folder), shown_(shown), file_system_(files) {
  if (!exists(folder)) throw Error(str("there is no checkpoint `", shown, "`"), "name a folder that a save wrote");
  if (!exists(path_of(index_name)))
    throw Error(str("`", shown, "` has no ", index_name, ": it is no checkpoint"), "name a folder that a save wrote");
  const auto text_of = [this](const std::string& name) {
    const InputFile& input = file(name);
    std::string text(static_cast<std::size_t>(input.bytes()), '\0');
    input.read(0, text.data(), text.size());
    return text;
  };
  index_ = index_from_files({text_of(index_name), exists(path_of(hashes_name)) ? text_of(hashes_name) : ""}, shown);
}

InputFile& Reader::file(const std::string& name) {
  std::unique_ptr<InputFile>& open = files_[name];
  if (!open) open = file_system_.open(path_of(name));
  return *open;
}

void Reader::check_file(const std::string& name) {
  if (!exists(path_of(name)))
    throw Error(str("the file `", name, "` of the checkpoint `", shown_, "` is missing"),
                "restore the checkpoint from a copy");
  const std::uint64_t bytes = file(name).bytes(), wanted = index_.files.at(name);
  if (bytes != wanted)
    throw Error(str("the file `", name, "` of the checkpoint `", shown_, "` has ", bytes, " bytes, and its index says ",
                    wanted),
                "restore the checkpoint from a copy");
}

namespace {

bool hashes_are_compared() { return !defect_armed(Defect::loaded_without_hashes); }

// The offset in its chunk from which bytes of a piece are copied.
std::uint64_t begin_of_copy(std::uint64_t begin) { return defect_armed(Defect::loaded_from_wrong_offset) ? 0 : begin; }

std::uint64_t bytes_of(const std::vector<ByteRange>& ranges) {
  std::uint64_t bytes = 0;
  for (const ByteRange& range : ranges) bytes += range.length;
  return bytes;
}

// The box with offsets that count from the begin of `outer`.
Box relative(Box box, const Box& outer) {
  for (int dim = 0; dim < box.offsets.size(); ++dim) box.offsets[dim] -= outer.offsets[dim];
  return box;
}

}  // namespace

void Reader::refuse(const std::string& key, const SavedChunk& chunk, const std::string& where) const {
  throw Error(str("the file `", chunk.file, "` of the checkpoint `", shown_, "` is damaged: ", where, ", of `", key,
                  "`, do not have the hash of the index"),
              "restore the checkpoint from a copy");
}

void Reader::verify(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk, const Box& box) {
  const std::vector<ByteRange> blocks =
      whole_blocks(byte_ranges(chunk.box, box, size_of(tensor.dtype)), chunk.hash_block, tensor.chunk_bytes(chunk));
  const TileGrid grid = tensor.grid(chunk);
  if (!grid.is_empty()) {
    const TileRange tiles = covering_tiles(grid, relative(box, chunk.box));
    if (bytes_of(grid, tiles) < bytes_of(blocks)) return verify_tiles(key, tensor, chunk, tiles);
  }
  verify_blocks(key, tensor, chunk, blocks);
}

bool says_the_same(const ChunkOfTensor& a, const ChunkOfTensor& b) {
  const SavedChunk &x = *a.chunk, &y = *b.chunk;
  return a.tensor->dtype == b.tensor->dtype && x.box == y.box && x.hash_block == y.hash_block &&
         x.tile_parts == y.tile_parts && x.hashes == y.hashes && x.tile_hashes == y.tile_hashes;
}

Reader::Verified& Reader::verified(const SavedTensor& tensor, const SavedChunk& chunk) {
  std::vector<Verified>& here = verified_[{chunk.file, chunk.offset}];
  for (Verified& one : here)
    if (says_the_same(one.of, {&tensor, &chunk})) return one;
  here.push_back(
      {{&tensor, &chunk}, std::vector<bool>(chunk.hashes.size()), std::vector<bool>(chunk.tile_hashes.size())});
  return here.back();
}

void Reader::verify_all(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk) {
  verify_blocks(key, tensor, chunk, {{0, tensor.chunk_bytes(chunk)}});
  if (chunk.tile_parts.empty()) return;
  verify_tiles(key, tensor, chunk, {Dims(chunk.tile_parts.size(), 0), chunk.tile_parts});
}

void Reader::verify_blocks(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk,
                           const std::vector<ByteRange>& blocks) {
  const std::uint64_t end = tensor.chunk_bytes(chunk);
  std::vector<bool>& done = verified(tensor, chunk).blocks;
  for (const ByteRange& range : blocks) {
    for (std::uint64_t begin = range.begin; begin < range.begin + range.length; begin += chunk.hash_block) {
      const auto block = static_cast<std::size_t>(begin / chunk.hash_block);
      if (done[block]) continue;
      const auto size = static_cast<std::size_t>(std::min(chunk.hash_block, end - begin));
      if (hash_of(bytes(chunk, begin, size), size) != chunk.hashes[block] && hashes_are_compared())
        refuse(key, chunk, str("bytes ", chunk.offset + begin, " to ", chunk.offset + begin + size));
      bytes_verified_ += size;
      done[block] = true;
    }
  }
}

void Reader::verify_tiles(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk,
                          const TileRange& range) {
  const TileGrid grid = tensor.grid(chunk);
  std::vector<bool>& done = verified(tensor, chunk).tiles;
  std::vector<std::uint64_t> hashes(chunk.tile_hashes.size(), 0);
  std::vector<std::size_t> tiles;
  std::size_t last_tile = hashes.size();
  InputFile& input = file(chunk.file);
  TileRuns runs(grid, range);
  const std::uint64_t pitch = runs.pitch();
  while (runs.next()) {
    const TileRun &first = runs.line().front(), &last = runs.line().back();
    const std::byte* const line =
        input.view(chunk.offset + first.begin, static_cast<std::size_t>(last.begin + last.length - first.begin));
    hash_runs(line - first.begin, runs.line(), pitch, hashes);
    if (first.tile == last_tile) continue;
    last_tile = first.tile;
    for (const TileRun& run : runs.line()) tiles.push_back(run.tile);
  }
  for (const std::size_t tile : tiles) {
    if (done[tile]) continue;
    if (hashes[tile] != chunk.tile_hashes[tile] && hashes_are_compared())
      refuse(key, chunk, str("bytes of tile ", tile, " of the chunk at ", chunk.offset));
    bytes_verified_ += grid.tile_bytes(tile);
    done[tile] = true;
  }
}

const std::byte* Reader::bytes(const SavedChunk& chunk, std::uint64_t begin, std::size_t size) {
  return file(chunk.file).view(chunk.offset + begin, size);
}

// ---- copies ----
void Reader::copy_piece(const SavedTensor& saved, const Piece& piece, const Box& local, std::byte* to) {
  constexpr std::size_t least_streamed = 1024;
  const SavedChunk& chunk = saved.chunks[piece.chunk];
  const std::size_t element = size_of(saved.dtype);
  const std::vector<ByteRange> from_ranges = byte_ranges(chunk.box, piece.box, element);
  const std::vector<ByteRange> to_ranges = byte_ranges(local, {piece.at, piece.box.sizes}, element);
  InputFile& input = file(chunk.file);
  ByteRange source, target;  // what is left of the current ranges
  auto next_source = from_ranges.begin();
  auto next_target = to_ranges.begin();
  while (source.length > 0 || next_source != from_ranges.end()) {
    if (source.length == 0) source = *next_source++;
    if (target.length == 0) target = *next_target++;
    const auto size = static_cast<std::size_t>(std::min(source.length, target.length));
    const std::byte* const from = input.view(chunk.offset + begin_of_copy(source.begin), size);
    if (size >= least_streamed)
      copy_nontemporal(to + target.begin, from, size);
    else
      std::memcpy(to + target.begin, from, size);
    source = {source.begin + size, source.length - size};
    target = {target.begin + size, target.length - size};
  }
}

void Reader::copy_pieces(const SavedTensor& saved, const std::vector<Piece>& pieces, const Tensor& local) {
  const Box whole{Dims(local.sizes().size(), 0), local.sizes()};
  const auto copy_all = [&](std::byte* to) {
    for (const Piece& piece : pieces) copy_piece(saved, piece, whole, to);
  };
  if (local.is_contiguous()) {
    with_writable_bytes(local, copy_all);
  } else {
    const std::unique_ptr<std::byte[]> bytes(new std::byte[static_cast<std::size_t>(local.num_bytes())]);
    copy_all(bytes.get());
    write_row_major(local, bytes.get());
  }
  local.bump_version();
}

}  // namespace lockstep::state
