#include "engine/state/reader.hpp"

#include <algorithm>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/state/hash.hpp"
#include "engine/state/host_bytes.hpp"

namespace lockstep::state {

Reader::Reader(const std::string& folder, const std::string& shown) : folder_(folder), shown_(shown) {
  const std::string path = path_of(index_name);
  if (!exists(folder)) throw Error(str("there is no checkpoint `", shown, "`"), "name a folder that a save wrote");
  if (!exists(path))
    throw Error(str("`", shown, "` has no ", index_name, ": it is no checkpoint"), "name a folder that a save wrote");
  index_ = index_from_text(read_text(path), shown + "/" + index_name);
}

const InputFile& Reader::file(const std::string& name) {
  std::unique_ptr<InputFile>& open = files_[name];
  if (!open) open = std::make_unique<InputFile>(path_of(name));
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

// The offset in its file at which a piece is read.
std::uint64_t offset_of(const SavedChunk& chunk, std::uint64_t begin) {
  return defect_armed(Defect::loaded_from_wrong_offset) ? chunk.offset : chunk.offset + begin;
}

}  // namespace

void Reader::verify(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk,
                    const std::vector<ByteRange>& ranges) {
  const std::uint64_t end = tensor.chunk_bytes(chunk);
  std::vector<bool>& done = verified_[{chunk.file, chunk.offset}];
  done.resize(chunk.hashes.size());
  block_.resize(static_cast<std::size_t>(std::min(chunk.hash_block, end)));
  for (const ByteRange& range : whole_blocks(ranges, chunk.hash_block, end))
    for (std::uint64_t begin = range.begin; begin < range.begin + range.length; begin += chunk.hash_block) {
      const auto block = static_cast<std::size_t>(begin / chunk.hash_block);
      if (done[block]) continue;
      const auto size = static_cast<std::size_t>(std::min(chunk.hash_block, end - begin));
      file(chunk.file).read(chunk.offset + begin, block_.data(), size);
      bytes_verified_ += size;
      if (hash_of(block_.data(), size) != chunk.hashes[block] && hashes_are_compared())
        throw Error(
            str("the file `", chunk.file, "` of the checkpoint `", shown_, "` is damaged: bytes ", chunk.offset + begin,
                " to ", chunk.offset + begin + size, ", of `", key, "`, do not have the hash of the index"),
            "restore the checkpoint from a copy");
      done[block] = true;
    }
}

void Reader::read(const SavedChunk& chunk, std::uint64_t begin, void* to, std::size_t size) {
  file(chunk.file).read(offset_of(chunk, begin), to, size);
  bytes_read_ += size;
}

void Reader::read_pieces(const SavedTensor& saved, const std::vector<Piece>& pieces, const Tensor& local) {
  const std::size_t element = size_of(saved.dtype);
  for (const Piece& piece : pieces) {
    const SavedChunk& chunk = saved.chunks[piece.chunk];
    const Tensor to = view_of_box(local, piece.at, piece.box.sizes);
    const auto read_into = [&](std::byte* bytes) {
      for (const ByteRange& range : byte_ranges(chunk.box, piece.box, element)) {
        read(chunk, range.begin, bytes, static_cast<std::size_t>(range.length));
        bytes += range.length;
      }
    };
    if (to.is_contiguous()) {
      with_writable_bytes(to, read_into);
    } else {
      std::vector<std::byte> bytes(static_cast<std::size_t>(to.num_bytes()));
      read_into(bytes.data());
      write_row_major(to, bytes.data());
    }
  }
  local.bump_version();
}

}  // namespace lockstep::state
