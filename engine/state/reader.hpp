// A checkpoint that is open for reading: the index, the files, verified and read by blocks.
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

class Reader {
 public:
  // Reads and checks the index. `shown` is the name of the folder in messages. Throws Error for a missing folder, a
  // folder without an index, and an invalid index.
  Reader(const std::string& folder, const std::string& shown);

  const Index& index() const { return index_; }
  const std::string& shown() const { return shown_; }
  // Checks that the file of the index exists and has its size. Throws Error naming the file.
  void check_file(const std::string& name);
  // Compares the blocks of a chunk that contain `ranges` with their hashes. Throws Error naming file and key. Blocks
  // that were verified before are not read again.
  void verify(const std::string& key, const SavedTensor& tensor, const SavedChunk& chunk,
              const std::vector<ByteRange>& ranges);
  // Reads bytes of a chunk; `begin` counts from the begin of the chunk.
  void read(const SavedChunk& chunk, std::uint64_t begin, void* to, std::size_t size);
  // Reads the pieces of a tensor into the local tensor that they were planned for (plan_reads). Contiguous memory is
  // read directly. Waits for the tensor's stream, and increments the version of its storage.
  void read_pieces(const SavedTensor& saved, const std::vector<Piece>& pieces, const Tensor& local);

  std::uint64_t bytes_read() const { return bytes_read_; }  // of chunks, by read() and read_pieces()
  std::uint64_t bytes_verified() const { return bytes_verified_; }

 private:
  const InputFile& file(const std::string& name);
  std::string path_of(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_, shown_;
  Index index_;
  std::map<std::string, std::unique_ptr<InputFile>> files_;
  std::map<std::pair<std::string, std::uint64_t>, std::vector<bool>> verified_;  // blocks by file and offset
  std::vector<std::byte> block_;
  std::uint64_t bytes_read_ = 0, bytes_verified_ = 0;
};

}  // namespace lockstep::state
