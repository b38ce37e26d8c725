#include "harness/run/files.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "engine/core/rank_context.hpp"
#include "engine/core/resources.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/tensor.hpp"
#include "harness/run/safetensors.hpp"

namespace lockstep::run {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::int64_t most_numbers = 10'000'000;  // of a tensor that goes into a .json file

Value from_json(const Json& json) {
  switch (json.type()) {
    case Json::value_t::null:
      return Value();
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<std::int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
        throw Error(str("the integer ", json.get<std::uint64_t>(), " does not fit in 64 bits with a sign"));
      return Value(json.get<std::int64_t>());
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value(json.get<std::string>());
    case Json::value_t::array: {
      List items;
      for (const Json& item : json) items.push_back(from_json(item));
      return Value::list(std::move(items));
    }
    case Json::value_t::object: {
      Map entries;
      for (const auto& [key, item] : json.items()) entries.emplace_back(key, from_json(item));
      return Value::map(std::move(entries));
    }
    default:
      throw Error("a JSON value of unknown kind");
  }
}

std::string contents_of(const std::string& file, const std::string& shown) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(str("cannot read `", shown, "`"), "a file that a step writes lies in the case's own folder");
  std::ostringstream out;
  out << in.rdbuf();
  return std::move(out).str();
}

void replace_contents(const std::string& file, const std::string& shown, const std::string& bytes) {
  // Written apart and moved into place, so that a reader never sees half a file.
  const std::string part = file + ".part" + std::to_string(RankContext::current().rank());
  {
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) {
      const int reason = errno;
      if (is_exhaustion(reason)) throw resource_error(str("writing `", shown, "`"), reason);
      throw Error(str("cannot write `", shown, "`"), "see that the case's folder can be written");
    }
  }
  fs::rename(part, file);
}

Value tensors_of(const std::string& bytes, const std::string& shown, device::Device device) {
  Map entries;
  for (auto& [name, tensor] : read_safetensors(bytes, shown, device))
    entries.emplace_back(name, Value(std::move(tensor)));
  return Value::map(std::move(entries));
}

std::string to_safetensors(const Map& map) {
  NamedTensors tensors;
  for (const auto& [key, value] : map) {
    const Tensor& tensor = value.as_tensor(str("the value of `", key.text, "`"));
    if (tensor.is_sharded())
      throw Error(str("`", key.text, "` is ", describe_sharded(tensor)), "take full_tensor of it, or its local part");
    tensors.emplace_back(key.text, tensor);
  }
  return write_safetensors(tensors);
}

}  // namespace

Value parse_json(const std::string& text) {
  try {
    return from_json(Json::parse(text));
  } catch (const Json::exception& error) {
    throw Error(str("malformed JSON: ", error.what()));
  }
}

std::string resolve_path(const std::string& path, const Folders& folders, bool writing) {
  const bool shared = path.starts_with('/');
  if (shared && writing) throw Error(str("`", path, "` lies under the scenarios, which are for reading only"));
  const std::string& folder = shared ? folders.scenarios : folders.of_case;
  if (folder.empty()) throw Error(str("`", path, "`: this case has no folder"));
  const fs::path below = fs::path(path.substr(shared ? 1 : 0));
  for (const fs::path& part : below)
    if (part == "..") throw Error(str("`", path, "` leads out of its folder"));
  std::error_code failed;
  const fs::path root = fs::weakly_canonical(folder, failed);
  const fs::path full = fs::weakly_canonical(root / below, failed);
  const fs::path inside = full.lexically_relative(root);
  if (failed || inside.empty() || *inside.begin() == "..") throw Error(str("`", path, "` leads out of its folder"));
  return full.string();
}

Value read_file(const std::string& path, const Folders& folders, device::Device device) {
  const std::string file = resolve_path(path, folders, false);
  if (path.ends_with(".json")) return parse_json(contents_of(file, path));
  if (path.ends_with(".safetensors")) return tensors_of(contents_of(file, path), path, device);
  throw Error(str("`", path, "` is neither .json nor .safetensors"));
}

void write_file(const std::string& path, const Value& value, const Folders& folders) {
  const std::string file = resolve_path(path, folders, true);
  fs::create_directories(fs::path(file).parent_path());
  if (path.ends_with(".json")) return replace_contents(file, path, to_literal(value, most_numbers).json());
  if (path.ends_with(".safetensors")) return replace_contents(file, path, to_safetensors(value.as_map("value")));
  throw Error(str("`", path, "` is neither .json nor .safetensors"));
}

}  // namespace lockstep::run
