// Reads the file of a machine (machine_model.hpp). Every mistake is reported with its place.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "engine/core/error.hpp"
#include "harness/plan/machine_model.hpp"
#include "harness/scenario/yaml_tree.hpp"

namespace lockstep::plan {

namespace {

using scenario::Diagnostics;
using scenario::YamlNode;
using scenario::YamlPtr;

constexpr double most_ranks = 1 << 20;

class Reader {
 public:
  explicit Reader(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  Machine machine(const YamlNode& root) {
    Machine read;
    const YamlNode* levels = nullptr;
    for (const auto& [key, value] : entries(root, {"machine", "summary", "levels"}, {"machine", "levels"})) {
      if (key->text == "machine") read.name = text(*value);
      if (key->text == "summary") text(*value);
      if (key->text == "levels") levels = value.get();
    }
    if (levels == nullptr) return read;
    if (!levels->is_list() || levels->items.empty()) {
      error(*levels, "`levels` must be a list with at least one level");
      return read;
    }
    for (const YamlPtr& item : levels->items) {
      const int inner = read.num_ranks();
      read.levels.push_back(level(*item));
      const int ranks = read.levels.back().ranks;
      if (inner > 0 && (ranks <= inner || ranks % inner != 0))
        error(*item, str("a level of ", ranks, " ranks around one of ", inner, "; give a larger multiple of ", inner));
    }
    return read;
  }

 private:
  using Entries = std::vector<std::pair<YamlPtr, YamlPtr>>;

  void error(const YamlNode& at, std::string message) { diagnostics_.error(at.place, std::move(message)); }

  // The entries with known keys.
  Entries entries(const YamlNode& map, const std::vector<std::string>& known,
                  const std::vector<std::string>& required) {
    Entries found;
    if (!map.is_map()) {
      error(map, str("expected a map, got ", kind_text(map)));
      return found;
    }
    for (const auto& [key, value] : map.entries) {
      if (std::find(known.begin(), known.end(), key->text) == known.end())
        error(*key, str("unknown key `", key->text, "`", scenario::suggestion(key->text, known)));
      else
        found.emplace_back(key, value);
    }
    for (const std::string& name : required)
      if (std::none_of(found.begin(), found.end(), [&](const auto& entry) { return entry.first->text == name; }))
        error(map, str("the key `", name, "` is missing"));
    return found;
  }

  std::string text(const YamlNode& node) {
    if (!node.is_scalar() || node.text.empty()) error(node, str("expected a text, got ", kind_text(node)));
    return node.text;
  }

  // A finite number in [least, most]; `least` itself only if it is above 0.
  double number(const YamlNode& node, const std::string& name, double least, double most) {
    double value = 0.0;
    const char* end = node.text.data() + node.text.size();
    const bool read =
        node.is_scalar() && std::from_chars(node.text.data(), end, value).ptr == end && !node.text.empty();
    if (!read || !std::isfinite(value) || value < least || value > most || (least == 0.0 && value == 0.0)) {
      error(node,
            str("`", name, "` must be a number ", least == 0.0 ? "above 0" : str("from ", least), " and up to ", most));
      return std::max(least, 1.0);
    }
    return value;
  }

  int count(const YamlNode& node, const std::string& name) {
    const double value = number(node, name, 1.0, most_ranks);
    if (value != std::floor(value)) error(node, str("`", name, "` must be a whole number"));
    return static_cast<int>(value);
  }

  MachineLevel level(const YamlNode& map) {
    MachineLevel read;
    read.bytes_per_second = 1.0;
    for (const auto& [key, value] : entries(map, {"name", "ranks", "latency_us", "bandwidth_gb_per_s", "algorithms"},
                                            {"name", "ranks", "latency_us", "bandwidth_gb_per_s"})) {
      if (key->text == "name") read.name = text(*value);
      if (key->text == "ranks") read.ranks = count(*value, "ranks");
      if (key->text == "latency_us") read.latency_seconds = number(*value, "latency_us", 0.0, 1e9) * 1e-6;
      if (key->text == "bandwidth_gb_per_s")
        read.bytes_per_second = number(*value, "bandwidth_gb_per_s", 0.0, 1e9) * 1e9;
      if (key->text == "algorithms") algorithms(*value, read);
    }
    return read;
  }

  void algorithms(const YamlNode& map, MachineLevel& level) {
    static const std::vector<std::string> operations = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                                        "broadcast",  "gather",     "scatter",        "barrier"};
    for (const auto& [key, value] : entries(map, operations, {})) {
      if (value->text != "ring" && value->text != "tree")
        error(*value, str("unknown algorithm `", value->text, "`; known: ring, tree"));
      level.algorithms[key->text] = value->text == "tree" ? Algorithm::tree : Algorithm::ring;
    }
  }

  Diagnostics& diagnostics_;
};

}  // namespace

Machine machine_from_text(const std::string& text, const std::string& file) {
  Diagnostics diagnostics;
  diagnostics.add_source(file, text);
  const scenario::YamlFile yaml(text, file, diagnostics);
  Machine machine;
  if (yaml.root())
    machine = Reader(diagnostics).machine(*yaml.root());
  else if (diagnostics.empty())
    diagnostics.error({file, 1, 1}, "the file is empty; see scenarios/machines for examples");
  if (!diagnostics.empty()) throw scenario::ScenarioError(diagnostics);
  return machine;
}

}  // namespace lockstep::plan
