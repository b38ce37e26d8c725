#include "engine/state/safetensors.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"

namespace lockstep::state {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t max_header_bytes = 100'000'000;
constexpr int max_depth = 3;  // {name: {shape: [..]}}

constexpr std::pair<DType, const char*> type_names[] = {
    {DType::float32, "F32"}, {DType::float64, "F64"}, {DType::float16, "F16"}, {DType::bfloat16, "BF16"},
    {DType::int64, "I64"},   {DType::int32, "I32"},   {DType::boolean, "BOOL"}};

using Entry = SafetensorsEntry;

// The bytes of the header of a file of `file_bytes` bytes that begins with `bytes`.
std::uint64_t length_of_header(std::string_view bytes, std::uint64_t file_bytes, const std::string& file) {
  const auto refuse = [&file](const std::string& why) {
    throw Error(str("`", file, "` is no safetensors file: ", why), "write it again");
  };
  std::uint64_t size = 0;
  if (bytes.size() < sizeof size) refuse(str("it has ", bytes.size(), " bytes, fewer than the 8 of its length"));
  std::memcpy(&size, bytes.data(), sizeof size);
  const std::uint64_t rest = file_bytes - sizeof size;
  if (size > max_header_bytes) refuse(str("a header of ", size, " bytes, more than ", max_header_bytes));
  if (size > rest) refuse(str("a header of ", size, " bytes, of which ", rest, " are there"));
  return size;
}

class Reader {
 public:
  // `header`: the JSON text; `data_bytes`: the bytes of the file after it.
  Reader(std::string_view header, std::uint64_t data_bytes, const std::string& file)
      : file_(file), header_(header), data_bytes_(data_bytes) {}

  std::vector<Entry> entries() const {
    const Json header = parsed();
    if (!header.is_object()) refuse("the header is no map");
    std::vector<Entry> entries;
    for (const auto& [name, value] : header.items())
      if (name == "__metadata__")
        check_metadata(value);
      else
        entries.push_back(entry_of(name, value));
    check_cover(entries);
    return entries;
  }

  std::string_view data_of(const Entry& entry, std::string_view data) const {
    const std::string_view bytes = data.substr(entry.begin, entry.end - entry.begin);
    // Other bit patterns are not valid values of bool.
    if (entry.dtype == DType::boolean &&
        std::any_of(bytes.begin(), bytes.end(), [](char c) { return c != 0 && c != 1; }))
      refuse(entry.name, "a BOOL is neither 0 nor 1");
    return bytes;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(str("`", file_, "` is no safetensors file: ", why), "write it again");
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    throw Error(str("`", file_, "`: tensor `", name, "`: ", why), "write it again");
  }

  // The parser itself accepts duplicate names and any depth of nesting, so the callback refuses both.
  Json parsed() const {
    std::set<std::string> names, fields;
    const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
      using Event = Json::parse_event_t;
      if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth)
        refuse(str("the header nests deeper than ", max_depth));
      if (event == Event::object_start && depth == 1) fields.clear();
      if (event == Event::key && !(depth == 1 ? names : fields).insert(value.get<std::string>()).second)
        refuse(str("`", value.get<std::string>(), "` is given twice"));
      return true;
    };
    try {
      return Json::parse(header_, watch);
    } catch (const Json::exception& error) {
      refuse(error.what());
    }
  }

  void check_metadata(const Json& value) const {
    const bool fits =
        value.is_object() && std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
    if (!fits) refuse("__metadata__ is no map from text to text");
  }

  const Json& field(const std::string& name, const Json& entry, const char* key) const {
    const auto found = entry.find(key);
    if (found == entry.end()) refuse(name, str("it has no ", key));
    return *found;
  }

  // A list of integers that are not negative.
  std::vector<std::int64_t> integers(const std::string& name, const Json& entry, const char* key) const {
    const Json& list = field(name, entry, key);
    if (!list.is_array()) refuse(name, str(key, " is no list"));
    std::vector<std::int64_t> values;
    for (const Json& item : list) {
      if (!item.is_number_unsigned() || item.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
        refuse(name, str(key, " holds ", item.dump(), ", which is no integer from 0 to ", INT64_MAX));
      values.push_back(item.get<std::int64_t>());
    }
    return values;
  }

  Entry entry_of(const std::string& name, const Json& value) const {
    if (!value.is_object()) refuse(name, "its description is no map");
    Entry entry;
    entry.name = name;
    const Json& type = field(name, value, "dtype");
    const auto* const known = std::find_if(std::begin(type_names), std::end(type_names),
                                           [&](const auto& pair) { return type.is_string() && type == pair.second; });
    if (known == std::end(type_names))
      refuse(name, str("the type ", type.dump(), " is none of F32, F64, F16, BF16, I64, I32, BOOL"));
    entry.dtype = known->first;
    const std::vector<std::int64_t> shape = integers(name, value, "shape");
    if (shape.size() > static_cast<std::size_t>(max_dims))
      refuse(name, str("it has ", shape.size(), " dims, more than ", max_dims));
    entry.sizes = Dims(shape);
    std::uint64_t length = 0;
    try {
      length = checked_bytes(entry.sizes, size_of(entry.dtype), "shape");
    } catch (const Error& error) {
      refuse(name, error.message());
    }
    const std::vector<std::int64_t> offsets = integers(name, value, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1])
      refuse(name, str("data_offsets ", value.at("data_offsets").dump(), " are no begin and end"));
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    if (entry.end - entry.begin != length)
      refuse(name, str(entry.end - entry.begin, " bytes of data for ", type.get<std::string>(), " ",
                       to_text(entry.sizes), ", which has ", length));
    if (entry.end > data_bytes_) refuse(name, str("its data ends at ", entry.end, ", the file's at ", data_bytes_));
    return entry;
  }

  // Checks that each byte of the data belongs to exactly one tensor.
  void check_cover(const std::vector<Entry>& entries) const {
    std::vector<const Entry*> order;
    order.reserve(entries.size());
    for (const Entry& entry : entries) order.push_back(&entry);
    std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
      return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
    });
    std::uint64_t covered = 0;
    const Entry* before = nullptr;
    for (const Entry* entry : order) {
      if (entry->begin < covered)
        refuse(entry->name, str("its data begins at ", entry->begin, ", within that of `", before->name,
                                "`, which ends at ", covered));
      if (entry->begin > covered)
        refuse(entry->name, str("bytes ", covered, " to ", entry->begin, " before its data belong to no tensor"));
      covered = entry->end;
      before = entry;
    }
    if (covered != data_bytes_) refuse(str("bytes ", covered, " to ", data_bytes_, " of its data belong to no tensor"));
  }

  const std::string& file_;
  std::string_view header_;
  std::uint64_t data_bytes_;
};

const char* type_name(DType dtype) {
  for (const auto& [known, text] : type_names)
    if (known == dtype) return text;
  throw InternalError(str("safetensors has no name for ", name_of(dtype)));
}

}  // namespace

NamedTensors read_safetensors(std::string_view bytes, const std::string& file, device::Device device) {
  const std::size_t header_bytes = length_of_header(bytes, bytes.size(), file);
  const std::string_view all = bytes.substr(sizeof(std::uint64_t) + header_bytes);
  const Reader reader(bytes.substr(sizeof(std::uint64_t), header_bytes), all.size(), file);
  NamedTensors tensors;
  for (const Entry& entry : reader.entries()) {
    const std::string_view data = reader.data_of(entry, all);
    Tensor tensor = empty(entry.sizes, entry.dtype, device);
    if (!data.empty() && !tensor.is_meta())
      device::write_from_host(tensor.storage()->memory(), 0, data.data(), data.size());
    tensors.emplace_back(entry.name, std::move(tensor));
  }
  return tensors;
}

std::uint64_t safetensors_header_bytes(std::string_view first_bytes, std::uint64_t file_bytes,
                                       const std::string& file) {
  return sizeof(std::uint64_t) + length_of_header(first_bytes, file_bytes, file);
}

std::vector<SafetensorsEntry> read_safetensors_header(std::string_view first_bytes, std::uint64_t file_bytes,
                                                      const std::string& file) {
  const std::uint64_t length = length_of_header(first_bytes, file_bytes, file);
  LOCKSTEP_CHECK(first_bytes.size() >= sizeof length + length, "the header of ", file, " is not complete");
  return Reader(first_bytes.substr(sizeof length, length), file_bytes - sizeof length - length, file).entries();
}

std::string safetensors_header(const std::vector<SafetensorsEntry>& entries) {
  Json header = Json::object();
  auto& members = header.get_ref<Json::object_t&>();  // an assignment by name would search all names before it
  std::unordered_set<std::string_view> names;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.name == "__metadata__" || !names.insert(entry.name).second)
      throw Error(str("a safetensors file cannot hold the name `", entry.name, "`",
                      entry.name == "__metadata__" ? "" : " twice"),
                  "give each tensor its own name");
    const std::vector<std::int64_t> shape(entry.sizes.begin(), entry.sizes.end());
    members.emplace_back(
        entry.name,
        Json{{"dtype", type_name(entry.dtype)}, {"shape", shape}, {"data_offsets", {entry.begin, entry.end}}});
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

std::string write_safetensors(const NamedTensors& tensors) {
  std::vector<SafetensorsEntry> entries;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::vector<std::byte> bytes = to_bytes(tensor);
    entries.push_back({name, tensor.dtype(), tensor.sizes(), data.size(), data.size() + bytes.size()});
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return safetensors_header(entries) + data;
}

std::string_view safetensors_type(DType dtype) { return type_name(dtype); }

std::optional<DType> dtype_of_safetensors(std::string_view name) {
  for (const auto& [known, text] : type_names)
    if (name == text) return known;
  return std::nullopt;
}

}  // namespace lockstep::state
