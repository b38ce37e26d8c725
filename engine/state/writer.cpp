#include "engine/state/writer.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <unistd.h>

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/state/hash.hpp"
#include "engine/state/safetensors.hpp"

namespace lockstep::state {

namespace fs = std::filesystem;

SavePaths::SavePaths(const std::string& path) {
  fs::path full = fs::absolute(path).lexically_normal();
  if (full.filename().empty()) full = full.parent_path();
  const std::string name = full.filename().string();
  if (name.empty()) throw Error(str("`", path, "` is no name of a folder"), "name a folder");
  if (name.starts_with('.') && name.ends_with(".saving"))
    throw Error(str("`", path, "`: a save that was not finished has such a name"), "choose another name");
  folder = full.string();
  parent = full.parent_path().string();
  temporary = (full.parent_path() / str(".", name, ".saving")).string();
}

namespace {

void make_folders_above(FileSystem& files, const fs::path& path) {
  if (path.empty() || exists(path.string())) return;
  make_folders_above(files, path.parent_path());
  files.make_folder(path.string());
}

}  // namespace

void prepare_folder(FileSystem& files, const SavePaths& paths, bool overwrite) {
  if (exists(paths.folder)) {
    if (!exists(paths.folder + "/" + index_name))
      throw Error(str("`", paths.folder, "` already exists and is no checkpoint"), "choose another name");
    if (!overwrite)
      throw Error(str("checkpoint `", paths.folder, "` already exists"), "choose another name, or set `overwrite`");
    // remove_folder_of_files() could not remove it.
    for (const std::string& name : names_in(paths.folder))
      if (is_folder(str(paths.folder, "/", name)))
        throw Error(str("`", paths.folder, "` holds the folder `", name, "`, which is no part of a checkpoint"),
                    "move it first");
  }
  remove_folder_of_files(files, paths.temporary);
  make_folders_above(files, paths.parent);
  files.make_folder(paths.temporary);
  if (defect_armed(Defect::saved_over_old)) [[unlikely]]
    remove_folder_of_files(files, paths.folder);
}

void discard_folder(FileSystem& files, const SavePaths& paths) noexcept {
  // A second attempt, because a call may have failed for a moment. The next save of this checkpoint removes what is
  // left.
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      return remove_folder_of_files(files, paths.temporary);
    } catch (const std::exception&) {
    }
  }
}

std::string file_of_rank(std::size_t rank) {
  char name[40];
  std::snprintf(name, sizeof name, "rank-%05zu.safetensors", rank);
  return name;
}

std::string header_of_file(const std::vector<PlannedChunk>& chunks) {
  std::vector<SafetensorsEntry> entries;
  entries.reserve(chunks.size());
  for (const PlannedChunk& chunk : chunks)
    entries.push_back({chunk.name, chunk.dtype, chunk.box.sizes, chunk.begin, chunk.begin + chunk.bytes()});
  return safetensors_header(entries);
}

std::uint64_t bytes_of_file(const std::vector<PlannedChunk>& chunks) {
  return header_of_file(chunks).size() + (chunks.empty() ? 0 : chunks.back().begin + chunks.back().bytes());
}

namespace {

void append_hash(std::string& hashes, std::uint64_t hash) {
  hashes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
}

TileGrid grid_of_chunk(const PlannedChunk& chunk) { return grid_of(chunk.box.sizes, size_of(chunk.dtype)); }

bool is_left_out(std::size_t chunk, std::size_t num_chunks) {
  return chunk + 1 == num_chunks && defect_armed(Defect::saved_chunk_of_zeros);
}

}  // namespace

RankFile::~RankFile() {
  if (file_ >= 0) ::close(file_);
}

// The disk writes while the rank goes on, so that less is left for the flush at the end.
void RankFile::append(const void* bytes, std::size_t size) {
  constexpr std::uint64_t begun_together = 8 << 20;
  files_.write(file_, path_, bytes, size);
  written_ += size;
  if (written_ - begun_ < begun_together) return;
  files_.begin_sync(file_, begun_, written_ - begun_);
  begun_ = written_;
}

// Writes and hashes in steps, so that each byte is read from memory once.
void RankFile::write_chunk(const PlannedChunk& chunk, const std::byte* bytes, std::string& hashes) {
  const auto size = static_cast<std::size_t>(chunk.bytes()), block = static_cast<std::size_t>(hash_block_of(size));
  const std::size_t step = std::max<std::size_t>(block, 1 << 20);  // a multiple of the block
  const TileGrid grid = grid_of_chunk(chunk);
  TileHashes tiles(grid);
  for (std::size_t at = 0; at < size; at += step) {
    const std::size_t end = std::min(at + step, size);
    for (std::size_t begin = at; begin < end; begin += block)
      append_hash(hashes, hash_of(bytes + begin, std::min(block, end - begin)));
    if (!grid.is_empty()) tiles.add_lines(bytes, static_cast<std::int64_t>(end / grid.line_bytes()));
    append(bytes + at, end - at);
  }
  for (const std::uint64_t hash : tiles.values()) append_hash(hashes, hash);
}

std::string RankFile::write(const std::vector<PlannedChunk>& chunks, const ChunkBytes& bytes_of_chunk) {
  std::string hashes;
  if (chunks.empty()) return hashes;
  const std::string header = header_of_file(chunks);
  file_ = files_.create(path_);
  append(header.data(), header.size());
  for (std::size_t i = 0; i < chunks.size(); ++i)
    bytes_of_chunk(i, [&](const std::byte* bytes, std::size_t size) {
      const std::vector<std::byte> zeros(is_left_out(i, chunks.size()) ? size : 0);
      write_chunk(chunks[i], zeros.empty() ? bytes : zeros.data(), hashes);
    });
  return hashes;
}

void RankFile::finish() {
  if (file_ < 0) return;
  files_.sync(file_, path_);
  files_.close(std::exchange(file_, -1), path_);
}

Index index_of(const WritePlan& plan, const std::vector<std::string>& hashes,
               const std::map<std::string, std::string>& values) {
  Index index;
  index.values = values;
  for (const auto& [key, tensor] : plan.tensors) index.tensors[key] = {tensor.dtype, tensor.sizes, {}};
  for (std::size_t rank = 0; rank < plan.by_rank.size(); ++rank) {
    const std::vector<PlannedChunk>& chunks = plan.by_rank[rank];
    if (chunks.empty()) continue;
    const std::uint64_t header = header_of_file(chunks).size();
    index.files[file_of_rank(rank)] = bytes_of_file(chunks);
    std::size_t at = 0;
    const auto next = [&] {
      std::uint64_t hash = 0;
      if (hashes[rank].size() < at + sizeof hash)
        throw Error(str("rank ", rank, " reports too few hashes"), "save again");
      std::memcpy(&hash, hashes[rank].data() + at, sizeof hash);
      at += sizeof hash;
      return hash;
    };
    for (const PlannedChunk& chunk : chunks) {
      const TileGrid grid = grid_of_chunk(chunk);
      SavedChunk saved{
          file_of_rank(rank), header + chunk.begin, chunk.box, hash_block_of(chunk.bytes()), {}, grid.parts, {}};
      for (std::uint64_t begin = 0; begin < chunk.bytes(); begin += saved.hash_block) saved.hashes.push_back(next());
      for (std::int64_t tile = 0; tile < grid.num_tiles(); ++tile) saved.tile_hashes.push_back(next());
      index.tensors[chunk.key].chunks.push_back(std::move(saved));
    }
    if (at != hashes[rank].size()) throw Error(str("rank ", rank, " reports too many hashes"), "save again");
  }
  for (const auto& [key, tensor] : plan.tensors)
    if (!tensor.same_as.empty()) index.tensors[key].chunks = index.tensors[tensor.same_as].chunks;
  return index;
}

void publish(FileSystem& files, const SavePaths& paths, const Index& index) {
  const IndexFiles contents = index_files(index);
  write_file(files, paths.file(hashes_name), contents.hashes);
  write_file(files, paths.file(index_name), contents.text);
  files.sync_folder(paths.temporary);
  const bool replaces = exists(paths.folder);
  if (replaces)
    files.exchange(paths.temporary, paths.folder);
  else
    files.rename(paths.temporary, paths.folder);
  files.sync_folder(paths.parent);
  if (replaces) discard_folder(files, paths);
}

}  // namespace lockstep::state
