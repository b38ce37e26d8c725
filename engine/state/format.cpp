#include "engine/state/format.hpp"

#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/state/hash.hpp"
#include "engine/state/safetensors.hpp"

namespace lockstep::state {

namespace {

using Json = nlohmann::json;

constexpr const char* format_name = "lockstep checkpoint";

Json list_of(const Dims& dims) { return std::vector<std::int64_t>(dims.begin(), dims.end()); }

// The hashes of all chunks, 8 bytes each (little-endian).
class HashTable {
 public:
  // The number of hashes before those of the chunk. Chunks of tied tensors are one.
  std::uint64_t add(const SavedChunk& chunk) {
    const std::uint64_t next = bytes_.size() / sizeof(std::uint64_t);
    const auto [at, is_new] = first_.emplace(std::pair(chunk.file, chunk.offset), next);
    // Of an index that a reader accepts, chunks at one place may have other blocks.
    if (!is_new && holds(at->second, chunk)) return at->second;
    at->second = next;
    append(chunk.hashes);
    append(chunk.tile_hashes);
    return next;
  }
  std::string take() { return std::move(bytes_); }

 private:
  static std::string_view bytes_of(const std::vector<std::uint64_t>& hashes) {
    return {reinterpret_cast<const char*>(hashes.data()), bounded_bytes<std::uint64_t>(std::ssize(hashes))};
  }
  bool holds(std::uint64_t first, const SavedChunk& chunk) const {
    const std::string_view blocks = bytes_of(chunk.hashes), tiles = bytes_of(chunk.tile_hashes);
    const std::string_view there =
        std::string_view(bytes_).substr(bounded_bytes<std::uint64_t>(static_cast<std::int64_t>(first)));
    return there.starts_with(blocks) && there.substr(blocks.size()).starts_with(tiles);
  }
  void append(const std::vector<std::uint64_t>& hashes) { bytes_.append(bytes_of(hashes)); }

  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> first_;  // by file and offset
  std::string bytes_;
};

Json json_of(const SavedChunk& chunk, HashTable& table) {
  return {{"file", chunk.file},
          {"byte_offset", chunk.offset},
          {"offsets", list_of(chunk.box.offsets)},
          {"shape", list_of(chunk.box.sizes)},
          {"hash_block", chunk.hash_block},
          {"tile_parts", list_of(chunk.tile_parts)},
          {"first_hash", table.add(chunk)}};
}

class IndexReader {
 public:
  // `hashes`: the bytes of hashes.bin.
  IndexReader(const std::string& folder, std::string_view hashes)
      : folder_(folder), file_(folder + "/" + index_name), hashes_(hashes) {}

  Index read(std::string_view text) const {
    const Json whole = parsed(text);
    check_head(whole);
    const Json& content = member(whole, "content", "the index");
    const Json& hash = member(whole, "hash", "the index");
    if (!hash.is_string() || hash.get<std::string>() != hash_text(hash_of(content.dump())))
      refuse("its content does not have the hash that it states");
    Index index;
    index.version = whole.at("version").get<int>();
    if (index.version > 1) check_hashes(content);
    for (const auto& [name, bytes] : object(content, "files").items()) index.files[name] = file_bytes(name, bytes);
    for (const auto& [key, tensor] : object(content, "tensors").items())
      index.tensors[key] = tensor_of(key, tensor, index.files);
    for (const auto& [key, value] : object(content, "values").items()) index.values[key] = value.dump();
    return index;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(str("`", file_, "` is no index of a checkpoint: ", why), "restore the checkpoint from a copy");
  }

  // The parser recurses per level, so that the levels are counted first. Its own callback for this purpose would take
  // time that grows with the square of the number of tensors.
  Json parsed(std::string_view text) const {
    if (depth_of(text) > max_index_depth) refuse(str("it nests deeper than ", max_index_depth));
    try {
      return Json::parse(text);
    } catch (const Json::exception& error) {
      refuse(error.what());
    }
  }

  // The version is checked before the hash, so that a newer format is named as such.
  void check_head(const Json& whole) const {
    if (!whole.is_object()) refuse("it is no map");
    const Json& format = member(whole, "format", "the index");
    if (format != format_name) refuse(str("its format is ", format.dump(), ", not \"", format_name, "\""));
    const Json& version = member(whole, "version", "the index");
    if (!version.is_number_integer() || version < 1 || version > format_version)
      throw Error(str("`", file_, "` has format version ", version.dump(), ", and this program reads versions up to ",
                      format_version),
                  "load it with the program that wrote it");
  }

  const Json& member(const Json& map, const char* name, const std::string& subject) const {
    if (!map.is_object()) refuse(str(subject, " is no map"));
    const auto found = map.find(name);
    if (found == map.end()) refuse(str(subject, " has no `", name, "`"));
    return *found;
  }
  const Json& object(const Json& content, const char* name) const {
    const Json& found = member(content, name, "the index");
    if (!found.is_object()) refuse(str("`", name, "` is no map"));
    return found;
  }
  std::uint64_t natural(const Json& value, const std::string& subject) const {
    constexpr auto most = static_cast<std::uint64_t>(max_tensor_bytes);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most)
      refuse(str(subject, " is ", value.dump(), ", which is no integer from 0 to ", most));
    return value.get<std::uint64_t>();
  }
  Dims dims(const Json& value, const std::string& subject) const {
    if (!value.is_array() || value.size() > static_cast<std::size_t>(max_dims))
      refuse(str(subject, " is no list of at most ", max_dims, " integers"));
    Dims result;
    for (const Json& item : value) result.push_back(static_cast<std::int64_t>(natural(item, subject)));
    return result;
  }

  std::uint64_t file_bytes(const std::string& name, const Json& bytes) const {
    if (name.empty() || name.find('/') != std::string::npos || name.starts_with('.'))
      refuse(str("`", name, "` is no name of a file in its folder"));
    return natural(bytes, str("the size of `", name, "`"));
  }

  SavedTensor tensor_of(const std::string& key, const Json& value,
                        const std::map<std::string, std::uint64_t>& files) const {
    const std::string subject = str("tensor `", key, "`");
    SavedTensor tensor;
    const Json& type = member(value, "dtype", subject);
    const auto dtype = type.is_string() ? dtype_of_safetensors(type.get<std::string>()) : std::nullopt;
    if (!dtype) refuse(str(subject, " has the unknown type ", type.dump()));
    tensor.dtype = *dtype;
    tensor.sizes = dims(member(value, "shape", subject), str("the shape of ", subject));
    checked_bytes(tensor.sizes, size_of(tensor.dtype), subject.c_str());
    const Json& chunks = member(value, "chunks", subject);
    if (!chunks.is_array()) refuse(str("the chunks of ", subject, " are no list"));
    std::vector<Box> boxes;
    for (const Json& chunk : chunks) {
      tensor.chunks.push_back(chunk_of(subject, chunk, tensor, files));
      boxes.push_back(tensor.chunks.back().box);
    }
    if (const std::string problem = tiling_problem(tensor.sizes, boxes); !problem.empty())
      refuse(str(subject, ": ", problem));
    return tensor;
  }

  SavedChunk chunk_of(const std::string& subject, const Json& value, const SavedTensor& tensor,
                      const std::map<std::string, std::uint64_t>& files) const {
    SavedChunk chunk;
    const Json& file = member(value, "file", subject);
    const auto known = file.is_string() ? files.find(file.get<std::string>()) : files.end();
    if (known == files.end()) refuse(str(subject, " has a chunk in ", file.dump(), ", which is not listed"));
    chunk.file = known->first;
    chunk.offset = natural(member(value, "byte_offset", subject), str("a byte offset of ", subject));
    chunk.box.offsets = dims(member(value, "offsets", subject), str("the offsets of a chunk of ", subject));
    chunk.box.sizes = dims(member(value, "shape", subject), str("the shape of a chunk of ", subject));
    check_box(subject, chunk.box, tensor.sizes);
    const std::uint64_t bytes = tensor.chunk_bytes(chunk);
    if (chunk.offset > known->second || bytes > known->second - chunk.offset)
      refuse(str(subject, " has a chunk of ", bytes, " bytes at ", chunk.offset, " of `", chunk.file, "`, which has ",
                 known->second));
    chunk.hash_block = natural(member(value, "hash_block", subject), str("the hash block of ", subject));
    if (chunk.hash_block == 0) refuse(str("the hash block of ", subject, " is 0"));
    const std::uint64_t num_blocks = bytes / chunk.hash_block + (bytes % chunk.hash_block != 0);
    if (const auto hashes = value.find("hashes"); hashes != value.end())
      chunk.hashes = hashes_of_version_1(*hashes, subject);
    else
      take_hashes(subject, value, num_blocks, tensor, chunk);
    if (chunk.hashes.size() != num_blocks)
      refuse(str(subject, " has a chunk with another number of hashes than of blocks"));
    return chunk;
  }

  std::vector<std::uint64_t> hashes_of_version_1(const Json& value, const std::string& subject) const {
    const std::string named = str("`", file_, "`: a hash of ", subject);
    if (!value.is_array()) refuse(str("the hashes of ", subject, " are no list"));
    std::vector<std::uint64_t> hashes;
    for (const Json& hash : value) {
      if (!hash.is_string()) refuse(str("a hash of ", subject, " is no text"));
      hashes.push_back(hash_from_text(hash.get_ref<const std::string&>(), named));
    }
    return hashes;
  }

  // The hashes of a chunk from hashes.bin: those of its blocks, then those of its tiles.
  void take_hashes(const std::string& subject, const Json& value, std::uint64_t num_blocks, const SavedTensor& tensor,
                   SavedChunk& chunk) const {
    const Dims parts = dims(member(value, "tile_parts", subject), str("the tile parts of a chunk of ", subject));
    // The bytes of the chunk are within its file, so that the product of the parts cannot wrap around.
    bool fits = parts.empty() || parts.size() == chunk.box.sizes.size();
    for (int dim = 0; fits && dim < parts.size(); ++dim) fits = parts[dim] >= 1 && parts[dim] <= chunk.box.sizes[dim];
    if (!fits)
      refuse(str(subject, " has a chunk of shape ", to_text(chunk.box.sizes), " with tiles in ", to_text(parts),
                 " parts"));
    chunk.tile_parts = parts;
    const std::uint64_t first = natural(member(value, "first_hash", subject), str("the first hash of ", subject));
    const auto num_tiles = static_cast<std::uint64_t>(tensor.grid(chunk).num_tiles());
    const std::uint64_t known = hashes_.size() / sizeof(std::uint64_t);
    if (first > known || num_blocks > known - first || num_tiles > known - first - num_blocks)
      refuse(str(subject, " has the hashes from ", first, " to ", first + num_blocks + num_tiles, " of `", hashes_name,
                 "`, which has ", known));
    chunk.hashes = hashes_at(first, num_blocks);
    chunk.tile_hashes = hashes_at(first + num_blocks, num_tiles);
  }

  std::vector<std::uint64_t> hashes_at(std::uint64_t first, std::uint64_t count) const {
    std::vector<std::uint64_t> hashes(static_cast<std::size_t>(count));
    const char* const from = hashes_.data() + bounded_bytes<std::uint64_t>(static_cast<std::int64_t>(first));
    std::copy_n(from, bounded_bytes<std::uint64_t>(static_cast<std::int64_t>(count)),
                reinterpret_cast<char*>(hashes.data()));
    return hashes;
  }

  void check_hashes(const Json& content) const {
    const Json& stated = object(content, "hashes");
    const std::uint64_t bytes = natural(member(stated, "bytes", "`hashes`"), "the bytes of `hashes`");
    const Json& hash = member(stated, "hash", "`hashes`");
    if (bytes == hashes_.size() && hash.is_string() && hash.get<std::string>() == hash_text(hash_of(hashes_))) return;
    throw Error(str("the file `", hashes_name, "` of the checkpoint `", folder_, "` is damaged: it has ",
                    hashes_.size(), " bytes, and not the ", bytes, " bytes or the hash that the index says"),
                "restore the checkpoint from a copy");
  }

  void check_box(const std::string& subject, const Box& box, const Dims& sizes) const {
    bool fits = box.offsets.size() == sizes.size() && box.sizes.size() == sizes.size();
    for (int dim = 0; fits && dim < sizes.size(); ++dim)
      fits = box.sizes[dim] > 0 && box.offsets[dim] <= sizes[dim] && box.sizes[dim] <= sizes[dim] - box.offsets[dim];
    if (!fits)
      refuse(str(subject, " of shape ", to_text(sizes), " has a chunk at ", to_text(box.offsets), " of shape ",
                 to_text(box.sizes)));
  }

  const std::string& folder_;
  const std::string file_;
  const std::string_view hashes_;
};

}  // namespace

int depth_of(std::string_view json) {
  int depth = 0, deepest = 0;
  bool is_text = false;
  for (std::size_t at = 0; at < json.size(); ++at) {
    if (is_text && json[at] == '\\')
      ++at;
    else if (json[at] == '"')
      is_text = !is_text;
    else if (!is_text && (json[at] == '{' || json[at] == '['))
      deepest = std::max(deepest, ++depth);
    else if (!is_text && (json[at] == '}' || json[at] == ']'))
      --depth;
  }
  return deepest;
}

IndexFiles index_files(const Index& index) {
  Json files = Json::object(), tensors = Json::object(), values = Json::object();
  HashTable table;
  for (const auto& [name, bytes] : index.files) files[name] = bytes;
  for (const auto& [key, tensor] : index.tensors) {
    Json chunks = Json::array();
    for (const SavedChunk& chunk : tensor.chunks) chunks.push_back(json_of(chunk, table));
    tensors[key] = {
        {"dtype", safetensors_type(tensor.dtype)}, {"shape", list_of(tensor.sizes)}, {"chunks", std::move(chunks)}};
  }
  for (const auto& [key, value] : index.values) values[key] = Json::parse(value);
  const std::string hashes = table.take();
  const Json content = {{"files", std::move(files)},
                        {"tensors", std::move(tensors)},
                        {"values", std::move(values)},
                        {"hashes", {{"bytes", hashes.size()}, {"hash", hash_text(hash_of(hashes))}}}};
  const std::string text = content.dump();
  return {str("{\"format\":\"", format_name, "\",\"version\":", format_version, ",\"hash\":\"",
              hash_text(hash_of(text)), "\",\n\"content\":", text, "}\n"),
          hashes};
}

Index index_from_files(const IndexFiles& files, const std::string& folder) {
  return IndexReader(folder, files.hashes).read(files.text);
}

}  // namespace lockstep::state
