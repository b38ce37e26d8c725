// The files of a save: the chunks of each rank, the index, and the exchange of the temporary folder for the final one.
// README.md lists the operations of a save in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/state/file_system.hpp"
#include "engine/state/format.hpp"
#include "engine/state/plan.hpp"

namespace lockstep::state {

// The paths of a save.
struct SavePaths {
  // Throws Error for a path without a name, and for a name that the temporary folder of a save has.
  explicit SavePaths(const std::string& folder);
  std::string folder;  // of the checkpoint
  std::string parent;
  std::string temporary;  // beside it: ".NAME.saving"
  std::string file(const std::string& name) const { return temporary + "/" + name; }
};

// Removes what an unfinished save has left, and makes the empty temporary folder, with the folders above it. Throws
// Error if the checkpoint exists and must not be overwritten, and if the folder exists without being a checkpoint or
// contains another folder.
void prepare_folder(FileSystem& files, const SavePaths& paths, bool overwrite);
// Removes the temporary folder of a save that failed, as far as possible.
void discard_folder(FileSystem& files, const SavePaths& paths) noexcept;

std::string file_of_rank(std::size_t rank);                           // "rank-00000.safetensors"
std::string header_of_file(const std::vector<PlannedChunk>& chunks);  // of a rank's file
std::uint64_t bytes_of_file(const std::vector<PlannedChunk>& chunks);

// Calls consume(bytes, size) once with the bytes of a chunk.
using ChunkBytes = std::function<void(std::size_t chunk,
                                      const std::function<void(const std::byte* bytes, std::size_t size)>& consume)>;
// The file of a rank while it is written. The object closes the file if finish() is not called.
class RankFile {
 public:
  RankFile(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}
  ~RankFile();
  RankFile(const RankFile&) = delete;
  RankFile& operator=(const RankFile&) = delete;
  // Creates the file and writes header and chunks; nothing if there are no chunks. Returns the hashes of each chunk, 8
  // bytes each, in order: those of its blocks, then those of its tiles.
  std::string write(const std::vector<PlannedChunk>& chunks, const ChunkBytes& bytes_of_chunk);
  // Flushes and closes the file.
  void finish();

 private:
  void append(const void* bytes, std::size_t size);
  void write_chunk(const PlannedChunk& chunk, const std::byte* bytes, std::string& hashes);

  FileSystem& files_;
  const std::string path_;
  int file_ = -1;
  std::uint64_t written_ = 0, begun_ = 0;  // bytes written; bytes that the disk was given
};

// The index of a plan. `hashes`: the result of RankFile::write on each rank. Throws Error if a rank gave another number
// of hashes.
Index index_of(const WritePlan& plan, const std::vector<std::string>& hashes,
               const std::map<std::string, std::string>& values);
// Writes the index, flushes the temporary folder, and gives it the name of the checkpoint by one rename. An old
// checkpoint stays complete until then, and is removed afterwards.
void publish(FileSystem& files, const SavePaths& paths, const Index& index);

}  // namespace lockstep::state
