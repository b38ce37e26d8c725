#include "harness/run/values/files.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include <unistd.h>

#include "engine/core/checked.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/core/resources.hpp"
#include "engine/mesh/sharded.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/tensor/tensor.hpp"
#include "harness/run/rank_budget.hpp"
#include "harness/run/values/json_values.hpp"
#include "harness/scenario/regular_file.hpp"

namespace lockstep::run {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t max_json_elements = 10'000'000;  // per tensor in a .json file

// Bounded by the budget of the rank only.
std::string contents_of(const std::string& file, const std::string& shown) {
  try {
    return scenario::read_regular_file(file, std::numeric_limits<std::int64_t>::max() - 1, str("`", shown, "`"));
  } catch (const scenario::BudgetError&) {
    throw;
  } catch (const ResourceError&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.message(), "a file that a step writes is in the folder of the case");
  }
}

void replace_contents(const std::string& file, const std::string& shown, const std::string& bytes) {
  // Written under another name and renamed, so that no reader sees an incomplete file.
  const std::string temporary = file + ".part" + std::to_string(RankContext::current().rank());
  try {
    errno = 0;
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (out && std::rename(temporary.c_str(), file.c_str()) == 0) return;
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
  }
  const int reason = errno;
  ::unlink(temporary.c_str());
  if (is_exhaustion(reason)) throw resource_error(str("writing `", shown, "`"), reason);
  throw Error(str("cannot write `", shown, "`"), "make the folder of the case writable");
}

Value json_of(const std::string& file, const std::string& shown) {
  try {
    return parse_json(contents_of(file, shown));
  } catch (const scenario::BudgetError&) {
    throw;
  } catch (const ResourceError&) {
    throw;
  } catch (const Error& error) {
    if (error.message().find(shown) != std::string::npos) throw;
    throw Error(str("`", shown, "`: ", error.message()), error.remedy());
  }
}

Value tensors_of(const std::string& bytes, const std::string& shown, device::Device device) {
  Map entries;
  for (auto& [name, tensor] : state::read_safetensors(bytes, shown, device))
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
  // Counted twice: the bytes of the tensors, and the file that contains them.
  scenario::Budget::ask(scenario::saturating_add(total, total),
                        [&] { return str("a file of ", map.size(), " tensors"); });
  state::NamedTensors tensors;
  for (const auto& [key, value] : map) {
    const Tensor& tensor = value.as_tensor(str("the value of `", key.text, "`"));
    if (tensor.is_sharded())
      throw Error(str("`", key.text, "` is ", describe_sharded(tensor)), "take full_tensor of it, or `.local`");
    tensors.emplace_back(key.text, tensor);
  }
  return state::write_safetensors(tensors);
}

fs::path below(const std::string& folder, const fs::path& path, const std::string& shown) {
  const auto real = [&](const fs::path& of) {
    std::error_code failed;
    fs::path found = fs::weakly_canonical(of, failed);
    if (is_exhaustion(failed.value()))
      throw resource_error(str("finding the folder of `", shown, "`, ", of.string()), failed.value());
    if (failed) throw Error(str("cannot find the folder of `", shown, "`: ", failed.message()), "give another name");
    return found;
  };
  const fs::path root = real(folder), full = real(root / path);
  const fs::path inside = full.lexically_relative(root);
  if (inside.empty() || *inside.begin() == "..") throw Error(str("`", shown, "` leads out of its folder"));
  return full;
}

}  // namespace

std::string resolve_path(const std::string& path, const Folders& folders, bool writing) {
  const bool is_scenario_path = path.starts_with('/');
  if (is_scenario_path && writing)
    throw Error(str("`", path, "` is in the folder of scenarios, which is for reading only"));
  if (is_scenario_path ? folders.scenarios.empty() : folders.of_case.empty())
    throw Error(str("`", path, "`: this case has no folder"));
  const fs::path relative = fs::path(path.substr(is_scenario_path ? 1 : 0));
  for (const fs::path& part : relative)
    if (part == "..") throw Error(str("`", path, "` leads out of its folder"));
  if (!is_scenario_path) return below(folders.of_case, relative, path).string();
  std::string searched;
  for (const std::string& folder : folders.scenarios) {
    const fs::path full = below(folder, relative, path);
    std::error_code error;
    if (fs::exists(full, error)) return full.string();
    if (is_exhaustion(error.value())) throw resource_error(str("looking for ", full.string()), error.value());
    searched += str(searched.empty() ? "" : " and ", full.string());
  }
  throw Error(str("cannot read `", path, "`: there is no ", searched),
              "put the file there; a path without `/` is in the folder of the case, where its steps write");
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
    bytes = to_literal(value, max_json_elements).json();
  else if (path.ends_with(".safetensors"))
    bytes = to_safetensors(value.as_map("value"));
  else
    throw Error(str("`", path, "` is neither .json nor .safetensors"));
  if (budget) budget->write(file, path, bytes.size());
  fs::create_directories(fs::path(file).parent_path());
  replace_contents(file, path, bytes);
}

}  // namespace lockstep::run
