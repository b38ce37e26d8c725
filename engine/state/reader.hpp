// A checkpoint that is open for reading: the index, the files, verified by blocks or tiles and copied from memory that
// maps the files.
//
// Threads: one thread uses an object. Files are opened when they are first read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/state/file_system.hpp"
#include "engine/state/format.hpp"
#include "engine/state/plan.hpp"
#include "engine/tensor/tensor.hpp"

namespace lockstep::state {

struct ChunkOfTensor {
  const SavedTensor* tensor;
  const SavedChunk* chunk;
};
// Whether two chunks at one place of a file state the same type, box and hashes, as those of tied tensors do.
bool says_the_same(const ChunkOfTensor& a, const ChunkOfTensor& b);

class Reader {
 public:
  // Reads and checks the index. `shown` is the name of the folder in messages. Throws Error for a missing folder, a
  // folder without an index, and an invalid index.
  Reader(const std::string& folder, const std::string& shown, FileSystem& files = real_files());

  const Index& index() const { return index_; }
  const std::string& shown() const { return shown_; }
  // Checks that the file of the index exists and has its size. Throws Error naming the file.
  void check_file(const std::string& name);
  // Compares the blocks of a chunk that contain `box`, or its tiles if they have fewer bytes, with their hashes. Throws
  // Error naming file and key. Nothing is compared twice.
  void verify(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk, const Box& box);
  // Compares all blocks and all tiles of a chunk.
  void verify_all(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk);
  // The bytes of a chunk, valid as long as this object; `begin` counts from the begin of the chunk.
  const std::byte* bytes(const SavedChunk& chunk, std::uint64_t begin, std::size_t size);
  // Copies the pieces of a tensor into the local tensor that they were planned for (plan_reads). Waits for the tensor's
  // stream, and increments the version of its storage.
  void copy_pieces(const SavedTensor& saved, const std::vector<Piece>& pieces, const Tensor& local);

  std::uint64_t bytes_verified() const { return bytes_verified_; }  // of chunks

 private:
  // What was compared of a chunk, and of those of tied tensors, which are equal.
  struct Verified {
    ChunkOfTensor of;
    std::vector<bool> blocks, tiles;
  };
  Verified& verified(const SavedTensor& tensor, const SavedChunk& chunk);
  InputFile& file(const std::string& name);
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }
  void verify_blocks(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk,
                     const std::vector<ByteRange>& blocks);
  void verify_tiles(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk, const TileRange& range);
  [[noreturn]] void refuse(const std::string& key, const SavedChunk& chunk, const std::string& where) const;
  void copy_piece(const SavedTensor& saved, const Piece& piece, const Box& local, std::byte* to);

  std::string folder_, shown_;
  FileSystem& file_system_;
  Index index_;
  std::map<std::string, std::unique_ptr<InputFile>> files_;
  std::map<std::pair<std::string, std::uint64_t>, std::vector<Verified>> verified_;  // by file and offset
  std::uint64_t bytes_verified_ = 0;
};

}  // namespace lockstep::state
