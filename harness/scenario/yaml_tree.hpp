// A YAML text as a tree of nodes with exact places. Internal to this layer.
//
// The tree is built from the events of yaml-cpp. It refuses forms that yaml-cpp accepts: duplicate keys, cycles, alias
// bombs, tags, merge keys, words that YAML 1.1 reads as booleans or null, and nesting and size beyond the limits.
// Aliases become shared nodes.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/scenario/diagnostics.hpp"
#include "harness/scenario/expression.hpp"

namespace lockstep::scenario {

struct YamlNode;
using YamlPtr = std::shared_ptr<YamlNode>;

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  Place place;
  bool plain = false;    // a scalar without quotes that is not a block scalar
  bool in_flow = false;  // within [] or {}
  bool refused = false;  // an error is reported already; readers report no second one
  std::string text;      // the text of a scalar
  std::vector<YamlPtr> items;
  std::vector<std::pair<YamlPtr, YamlPtr>> entries;  // keys are scalars

  bool is_scalar() const { return kind == Kind::scalar; }
  bool is_list() const { return kind == Kind::list; }
  bool is_map() const { return kind == Kind::map; }
};

// "a list", "a map", "nothing", "a single value", for messages.
std::string_view kind_text(const YamlNode& node);

class YamlFile {
 public:
  // Reports errors to `diagnostics` and does not throw. root() is null when the text has no usable tree.
  YamlFile(const std::string& text, const std::string& file, Diagnostics& diagnostics);
  const YamlPtr& root() const { return root_; }

  // The text of a scalar with the place of each character, also in quoted texts with escapes and in folded lines.
  SourceText source_of(const YamlNode& scalar) const;

 private:
  Place place_of(std::size_t at, const std::string& file) const;
  // Reports bytes that no text may contain and excessive nesting; false when the text must not be parsed.
  bool check_text(const std::string& file, Diagnostics& diagnostics) const;
  void parse(const std::string& file, Diagnostics& diagnostics);

  std::string text_;
  std::vector<std::size_t> line_starts_;
  YamlPtr root_;
};

}  // namespace lockstep::scenario
