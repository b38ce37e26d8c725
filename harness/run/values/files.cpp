#include "harness/run/values/files.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>

#include "engine/core/checked.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/core/resources.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/tensor/tensor.hpp"
#include "harness/run/rank_budget.hpp"
#include "harness/run/values/json_values.hpp"
#include "harness/run/values/safetensors.hpp"
#include "harness/scenario/regular_file.hpp"

namespace lockstep::run {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t most_numbers = 10'000'000;  // of a tensor that goes into a .json file

// The budget of the rank bounds it, not a size of its own.
std::string contents_of(const std::string& file, const std::string& shown) {
  try {
    return scenario::read_regular_file(file, std::numeric_limits<std::int64_t>::max() - 1, str("`", shown, "`"));
  } catch (const scenario::BudgetError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.message(), "a file that a step writes lies in the case's own folder");
  }
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

Value json_of(const std::string& file, const std::string& shown) {
  try {
    return parse_json(contents_of(file, shown));
  } catch (const scenario::BudgetError&) {
    throw;
  } catch (const Error& error) {
    if (error.message().find(shown) != std::string::npos) throw;
    throw Error(str("`", shown, "`: ", error.message()), error.remedy());
  }
}

Value tensors_of(const std::string& bytes, const std::string& shown, device::Device device) {
  Map entries;
  for (auto& [name, tensor] : read_safetensors(bytes, shown, device))
    entries.emplace_back(name, Value(std::move(tensor)));
  return Value::map(std::move(entries));
}

std::string to_safetensors(const Map& map) {
  std::int64_t total = 0;
  for (const auto& [key, value] : map) {
    const Tensor& tensor = value.as_tensor(str("the value of `", key.text, "`"));
    total = scenario::saturating_add(
        total, static_cast<std::int64_t>(bounded_bytes(tensor.num_elements(), size_of(tensor.dtype()))));
  }
  // The bytes of all and, beside them, the file that they are joined to.
  scenario::Budget::ask(scenario::saturating_add(total, total),
                        [&] { return str("a file of ", map.size(), " tensors"); });
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

namespace {

fs::path below(const std::string& folder, const fs::path& path, const std::string& shown) {
  std::error_code failed;
  const fs::path root = fs::weakly_canonical(folder, failed);
  const fs::path full = fs::weakly_canonical(root / path, failed);
  const fs::path inside = full.lexically_relative(root);
  if (failed || inside.empty() || *inside.begin() == "..") throw Error(str("`", shown, "` leads out of its folder"));
  return full;
}

}  // namespace

std::string resolve_path(const std::string& path, const Folders& folders, bool writing) {
  const bool shared = path.starts_with('/');
  if (shared && writing) throw Error(str("`", path, "` lies under the scenarios, which are for reading only"));
  if (shared ? folders.scenarios.empty() : folders.of_case.empty())
    throw Error(str("`", path, "`: this case has no folder"));
  const fs::path relative = fs::path(path.substr(shared ? 1 : 0));
  for (const fs::path& part : relative)
    if (part == "..") throw Error(str("`", path, "` leads out of its folder"));
  if (!shared) return below(folders.of_case, relative, path).string();
  std::string looked;
  for (const std::string& folder : folders.scenarios) {
    const fs::path full = below(folder, relative, path);
    std::error_code error;
    if (fs::exists(full, error)) return full.string();
    looked += str(looked.empty() ? "" : " and ", full.string());
  }
  throw Error(str("cannot read `", path, "`: there is no ", looked),
              "put the file there; a path without `/` is one that a step of this case writes");
}

Value read_file(const std::string& path, const Folders& folders, device::Device device) {
  const std::string file = resolve_path(path, folders, false);
  if (path.ends_with(".json")) return json_of(file, path);
  if (path.ends_with(".safetensors")) return tensors_of(contents_of(file, path), path, device);
  throw Error(str("`", path, "` is neither .json nor .safetensors"));
}

void write_file(const std::string& path, const Value& value, const Folders& folders, RankBudget* budget) {
  const std::string file = resolve_path(path, folders, true);
  std::string bytes;
  if (path.ends_with(".json"))
    bytes = to_literal(value, most_numbers).json();
  else if (path.ends_with(".safetensors"))
    bytes = to_safetensors(value.as_map("value"));
  else
    throw Error(str("`", path, "` is neither .json nor .safetensors"));
  if (budget) budget->write(file, path, bytes.size());
  fs::create_directories(fs::path(file).parent_path());
  replace_contents(file, path, bytes);
}

}  // namespace lockstep::run
