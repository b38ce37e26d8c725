#include "engine/state/inspect.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <unistd.h>

#include "engine/core/printable.hpp"
#include "engine/core/resources.hpp"
#include "engine/state/reader.hpp"
#include "engine/state/safetensors.hpp"

namespace lockstep::state {

namespace {

std::uint64_t bytes_of(const SavedTensor& tensor) {
  return bounded_bytes(num_elements(tensor.sizes), size_of(tensor.dtype));
}

// The bytes of a full tensor, verified.
std::vector<std::byte> full_bytes(Reader& reader, const std::string& key) {
  const SavedTensor& tensor = reader.index().tensors.at(key);
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(tensor)));
  const Box whole{Dims(tensor.sizes.size(), 0), tensor.sizes};
  for (const SavedChunk& chunk : tensor.chunks) {
    reader.check_file(chunk.file);
    reader.verify(key, tensor, chunk, chunk.box);
    std::uint64_t at = 0;
    for (const ByteRange& range : byte_ranges(whole, chunk.box, size_of(tensor.dtype))) {
      const auto size = static_cast<std::size_t>(range.length);
      std::memcpy(bytes.data() + range.begin, reader.bytes(chunk, at, size), size);
      at += range.length;
    }
  }
  return bytes;
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// The header of a file has exactly the chunks of the index.
void check_header(Reader& reader, const std::string& folder, const std::string& name) {
  const InputFile file(folder + "/" + name);
  std::string first(static_cast<std::size_t>(std::min<std::uint64_t>(8, file.bytes())), '\0');
  file.read(0, first.data(), first.size());
  const std::uint64_t header = safetensors_header_bytes(first, file.bytes(), name);
  first.resize(static_cast<std::size_t>(header));
  file.read(0, first.data(), first.size());
  using Place = std::tuple<std::uint64_t, std::uint64_t, DType, std::string>;
  std::map<Place, std::string> in_header;           // names
  std::map<Place, std::set<std::string>> in_index;  // the names that a chunk may have; tied tensors share chunks
  for (const SafetensorsEntry& entry : read_safetensors_header(first, file.bytes(), name))
    in_header[{header + entry.begin, header + entry.end, entry.dtype, to_text(entry.sizes)}] = entry.name;
  for (const auto& [key, tensor] : reader.index().tensors)
    for (const SavedChunk& chunk : tensor.chunks)
      if (chunk.file == name)
        in_index[{chunk.offset, chunk.offset + tensor.chunk_bytes(chunk), tensor.dtype, to_text(chunk.box.sizes)}]
            .insert(name_of_chunk(key, tensor.sizes, chunk.box));
  const bool agree =
      in_header.size() == in_index.size() && std::all_of(in_header.begin(), in_header.end(), [&](const auto& entry) {
        const auto found = in_index.find(entry.first);
        return found != in_index.end() && found->second.contains(entry.second);
      });
  if (!agree)
    throw Error(str("the header of `", name, "` lists other tensors than the index"),
                "restore the checkpoint from a copy");
}

}  // namespace

std::string show_checkpoint(const CheckpointFolder& folder) {
  const Reader reader(folder.path, folder.shown);
  const Index& index = reader.index();
  std::size_t width = 6;
  std::uint64_t total = 0;
  for (const auto& [key, tensor] : index.tensors) {
    width = std::max(width, printable_line(key).size());
    total += bytes_of(tensor);
  }
  std::string text = str(padded("tensor", width), "  type  chunks  bytes         shape\n");
  for (const auto& [key, tensor] : index.tensors)
    text += str(padded(printable_line(key), width), "  ", padded(std::string(safetensors_type(tensor.dtype)), 4), "  ",
                padded(str(tensor.chunks.size()), 6), "  ", padded(str(bytes_of(tensor)), 12), "  ",
                to_text(tensor.sizes), "\n");
  for (const auto& [key, value] : index.values) {
    constexpr std::size_t most = 100;
    text += str(printable_line(key), " = ", value.size() > most ? value.substr(0, most) + "..." : value, "\n");
  }
  for (const auto& [name, bytes] : index.files) text += str(printable_line(name), ": ", bytes, " bytes\n");
  return text + str(index.tensors.size(), " tensors of ", total, " bytes, ", index.values.size(), " values, ",
                    index.files.size(), " files, format version ", index.version, "\n");
}

Verification verify_checkpoint(const CheckpointFolder& folder) {
  Reader reader(folder.path, folder.shown);
  Verification result;
  const auto note = [&result](const auto& check) {
    try {
      check();
      return true;
    } catch (const ResourceError&) {
      throw;  // it says nothing about the checkpoint
    } catch (const Error& error) {
      result.problems.push_back(error.message());
      return false;
    }
  };
  std::set<std::string> unusable;
  for (const auto& file : reader.index().files) {
    const std::string& name = file.first;
    if (!note([&] { reader.check_file(name); }))
      unusable.insert(name);
    else
      note([&] { check_header(reader, folder.path, name); });
  }
  std::map<std::pair<std::string, std::uint64_t>, std::vector<ChunkOfTensor>> seen;  // by file and offset
  for (const auto& entry : reader.index().tensors) {
    const std::string& key = entry.first;
    const SavedTensor& tensor = entry.second;
    result.num_tensors += 1;
    for (const SavedChunk& chunk : tensor.chunks) {
      if (unusable.contains(chunk.file)) continue;
      std::vector<ChunkOfTensor>& here = seen[{chunk.file, chunk.offset}];
      const ChunkOfTensor own{&tensor, &chunk};
      if (std::any_of(here.begin(), here.end(), [&](const ChunkOfTensor& one) { return says_the_same(one, own); }))
        continue;  // tied tensors share chunks
      if (here.empty()) {
        result.num_chunks += 1;
        result.bytes += tensor.chunk_bytes(chunk);
      }
      here.push_back(own);
      note([&] { reader.verify_all(key, tensor, chunk); });
    }
  }
  return result;
}

namespace {

// "" if the tensors have the same bits.
std::string difference(Reader& a, Reader& b, const std::string& key) {
  const SavedTensor &left = a.index().tensors.at(key), &right = b.index().tensors.at(key);
  if (left.dtype != right.dtype || !(left.sizes == right.sizes))
    return str(name_of(left.dtype), " ", to_text(left.sizes), " and ", name_of(right.dtype), " ", to_text(right.sizes));
  const std::vector<std::byte> x = full_bytes(a, key), y = full_bytes(b, key);
  if (x == y) return "";
  const std::size_t element = size_of(left.dtype);
  std::int64_t differing = 0, first = -1;
  for (std::size_t at = 0; at < x.size(); at += element) {
    if (std::memcmp(x.data() + at, y.data() + at, element) == 0) continue;
    if (first < 0) first = static_cast<std::int64_t>(at / element);
    ++differing;
  }
  Dims index = left.sizes;
  for (int dim = index.size() - 1; dim >= 0; --dim) {
    index[dim] = first % left.sizes[dim];
    first /= left.sizes[dim];
  }
  return str(differing, " of ", num_elements(left.sizes), " elements differ, the first at ", to_text(index));
}

// The differences of two maps; compare(key) is called for keys of both.
template <class Map, class F>
void compare_keys(const Map& a, const Map& b, std::vector<std::string>& lines, F&& compare) {
  for (const auto& [key, value] : a) {
    const std::string found = b.contains(key) ? compare(key) : "only in the first";
    if (!found.empty()) lines.push_back(str(key, ": ", found));
  }
  for (const auto& [key, value] : b)
    if (!a.contains(key)) lines.push_back(str(key, ": only in the second"));
}

}  // namespace

std::vector<std::string> diff_checkpoints(const CheckpointFolder& first, const CheckpointFolder& second) {
  Reader a(first.path, first.shown), b(second.path, second.shown);
  std::vector<std::string> lines;
  compare_keys(a.index().tensors, b.index().tensors, lines,
               [&](const std::string& key) { return difference(a, b, key); });
  compare_keys(a.index().values, b.index().values, lines, [&](const std::string& key) -> std::string {
    const std::string &left = a.index().values.at(key), &right = b.index().values.at(key);
    return left == right ? "" : str(left, " and ", right);
  });
  return lines;
}

void export_checkpoint(const CheckpointFolder& folder, const std::string& file, const std::string& shown_file,
                       const std::function<void(std::uint64_t bytes)>& before_write) {
  Reader reader(folder.path, folder.shown);
  if (exists(file)) throw Error(str("`", shown_file, "` already exists"), "choose another name");
  std::vector<SafetensorsEntry> entries;
  std::uint64_t begin = 0;
  for (const auto& [key, tensor] : reader.index().tensors) {
    entries.push_back({key, tensor.dtype, tensor.sizes, begin, begin + bytes_of(tensor)});
    begin = entries.back().end;
  }
  const std::string header = safetensors_header(entries);
  if (before_write) before_write(header.size() + begin);
  FileSystem& files = real_files();
  const std::string part = file + ".part";
  if (exists(part)) files.remove_file(part);
  int descriptor = files.create(part);
  try {
    files.write(descriptor, part, header.data(), header.size());
    for (const SafetensorsEntry& entry : entries) {
      const std::vector<std::byte> bytes = full_bytes(reader, entry.name);
      files.write(descriptor, part, bytes.data(), bytes.size());
    }
    files.sync(descriptor, part);
    files.close(std::exchange(descriptor, -1), part);
    files.rename(part, file);
  } catch (...) {
    if (descriptor >= 0) ::close(descriptor);
    ::unlink(part.c_str());
    throw;
  }
}

}  // namespace lockstep::state
