#include "engine/state/writer.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>

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
  if (name.empty() || name == "/") throw Error(str("`", path, "` is no name of a folder"), "name a folder");
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
  }
  remove_folder_of_files(files, paths.temporary);
  make_folders_above(files, paths.parent);
  files.make_folder(paths.temporary);
  if (defect_armed(Defect::saved_over_old)) [[unlikely]]
    remove_folder_of_files(files, paths.folder);
}

void discard_folder(FileSystem& files, const SavePaths& paths) noexcept {
  try {
    remove_folder_of_files(files, paths.temporary);
  } catch (const std::exception&) {
    // The next save of this checkpoint removes it.
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

// Appends the hashes of the blocks of `bytes`.
void append_hashes(std::string& hashes, const std::byte* bytes, std::size_t size, std::size_t block) {
  for (std::size_t at = 0; at < size; at += block) {
    const std::uint64_t hash = hash_of(bytes + at, std::min(block, size - at));
    hashes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  }
}

// Writes and hashes the bytes of a chunk, so that each is read from memory once.
void write_chunk(FileSystem& files, int file, const std::string& path, const std::byte* bytes, std::size_t size,
                 std::string& hashes) {
  const auto block = static_cast<std::size_t>(hash_block_of(size));
  const std::size_t step = std::max<std::size_t>(block, 1 << 20);  // a multiple of the block
  for (std::size_t at = 0; at < size; at += step) {
    const std::size_t count = std::min(step, size - at);
    append_hashes(hashes, bytes + at, count, block);
    files.write(file, path, bytes + at, count);
  }
}

bool is_left_out(std::size_t chunk, std::size_t num_chunks) {
  return chunk + 1 == num_chunks && defect_armed(Defect::saved_chunk_of_zeros);
}

}  // namespace

std::string write_chunks(FileSystem& files, const std::string& path, const std::vector<PlannedChunk>& chunks,
                         const ChunkBytes& bytes_of_chunk) {
  std::string hashes;
  if (chunks.empty()) return hashes;
  const std::string header = header_of_file(chunks);
  const int file = files.create(path);
  try {
    files.write(file, path, header.data(), header.size());
    for (std::size_t i = 0; i < chunks.size(); ++i)
      bytes_of_chunk(i, [&](const std::byte* bytes, std::size_t size) {
        const std::vector<std::byte> zeros(is_left_out(i, chunks.size()) ? size : 0);
        write_chunk(files, file, path, zeros.empty() ? bytes : zeros.data(), size, hashes);
      });
    files.sync(file, path);
  } catch (...) {
    ::close(file);
    throw;
  }
  files.close(file, path);
  return hashes;
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
    for (const PlannedChunk& chunk : chunks) {
      SavedChunk saved{file_of_rank(rank), header + chunk.begin, chunk.box, hash_block_of(chunk.bytes()), {}};
      for (std::uint64_t begin = 0; begin < chunk.bytes(); begin += saved.hash_block) {
        std::uint64_t hash = 0;
        if (hashes[rank].size() < at + sizeof hash)
          throw Error(str("rank ", rank, " reports too few hashes"), "save again");
        std::memcpy(&hash, hashes[rank].data() + at, sizeof hash);
        at += sizeof hash;
        saved.hashes.push_back(hash);
      }
      index.tensors[chunk.key].chunks.push_back(std::move(saved));
    }
    if (at != hashes[rank].size()) throw Error(str("rank ", rank, " reports too many hashes"), "save again");
  }
  for (const auto& [key, tensor] : plan.tensors)
    if (!tensor.same_as.empty()) index.tensors[key].chunks = index.tensors[tensor.same_as].chunks;
  return index;
}

void publish(FileSystem& files, const SavePaths& paths, const Index& index) {
  write_file(files, paths.file(index_name), index_text(index));
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
