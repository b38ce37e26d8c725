#include "harness/run/values/safetensors.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"

namespace lockstep::run {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t max_header_bytes = 100'000'000;
constexpr int max_depth = 3;  // {name: {shape: [..]}}

constexpr std::pair<DType, const char*> type_names[] = {
    {DType::float32, "F32"}, {DType::float64, "F64"}, {DType::float16, "F16"}, {DType::bfloat16, "BF16"},
    {DType::int64, "I64"},   {DType::int32, "I32"},   {DType::boolean, "BOOL"}};

struct Entry {
  std::string name;
  DType dtype = DType::float32;
  Dims sizes;
  std::uint64_t begin = 0, end = 0;  // in the data
};

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& file) : file_(file) {
    std::uint64_t size = 0;
    if (bytes.size() < sizeof size) refuse(str("it has ", bytes.size(), " bytes, fewer than the 8 of its length"));
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (size > max_header_bytes) refuse(str("a header of ", size, " bytes, more than ", max_header_bytes));
    if (size > bytes.size()) refuse(str("a header of ", size, " bytes, of which ", bytes.size(), " are there"));
    header_ = bytes.substr(0, static_cast<std::size_t>(size));
    data_ = bytes.substr(static_cast<std::size_t>(size));
  }

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

  std::string_view data_of(const Entry& entry) const {
    const std::string_view bytes = data_.substr(entry.begin, entry.end - entry.begin);
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
    if (entry.end > data_.size()) refuse(name, str("its data ends at ", entry.end, ", the file's at ", data_.size()));
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
    if (covered != data_.size())
      refuse(str("bytes ", covered, " to ", data_.size(), " of its data belong to no tensor"));
  }

  const std::string& file_;
  std::string_view header_, data_;
};

const char* type_name(DType dtype) {
  for (const auto& [known, text] : type_names)
    if (known == dtype) return text;
  throw InternalError(str("safetensors has no name for ", name_of(dtype)));
}

}  // namespace

NamedTensors read_safetensors(std::string_view bytes, const std::string& file, device::Device device) {
  const Reader reader(bytes, file);
  NamedTensors tensors;
  for (const Entry& entry : reader.entries()) {
    const std::string_view data = reader.data_of(entry);
    Tensor tensor = empty(entry.sizes, entry.dtype, device);
    if (!data.empty() && !tensor.is_meta())
      device::write_from_host(tensor.storage()->memory(), 0, data.data(), data.size());
    tensors.emplace_back(entry.name, std::move(tensor));
  }
  return tensors;
}

std::string write_safetensors(const NamedTensors& tensors) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__" || header.contains(name))
      throw Error(str("a safetensors file cannot hold the name `", name, "`", name == "__metadata__" ? "" : " twice"),
                  "give each tensor its own name");
    const std::vector<std::byte> bytes = to_bytes(tensor);
    const std::vector<std::int64_t> shape(tensor.sizes().begin(), tensor.sizes().end());
    header[name] = {{"dtype", type_name(tensor.dtype())},
                    {"shape", shape},
                    {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t size = text.size();
  std::string out(reinterpret_cast<const char*>(&size), sizeof size);
  return out + text + data;
}

}  // namespace lockstep::run
