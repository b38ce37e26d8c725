#include "harness/scenario/yaml_tree.hpp"

#include <algorithm>
#include <map>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "engine/core/text.hpp"
#include "harness/scenario/yaml_checks.hpp"

namespace lockstep::scenario {

namespace {

// Thrown by an event handler to stop the parser early, after it has reported the error.
struct Stop {};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& text, const std::string& file, Diagnostics& diagnostics)
      : text_(text), file_(file), diagnostics_(diagnostics) {}

  const YamlPtr& root() const { return root_; }
  bool broken() const { return broken_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlPtr node = make(YamlNode::Kind::null, mark);
    const std::size_t at = static_cast<std::size_t>(std::max(0, mark.pos));
    std::size_t end = at;
    while (end < text_.size() && text_[end] != ' ' && text_[end] != '\n' && text_[end] != ',' && text_[end] != ']' &&
           text_[end] != '}' && text_[end] != ':') {
      ++end;
    }
    const std::string word = at < text_.size() ? text_.substr(at, end - at) : std::string();
    if (is_null_word(word)) {
      report(node->place, refused_scalar(word));
      node->refused = true;
    }
    add(node, anchor);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlPtr node = make(YamlNode::Kind::scalar, mark);
    node->text = value;
    node->plain = tag == "?";
    check_tag(tag, node->place);
    if (node->plain) {
      const std::string why =
          value == "<<" ? "merge keys (`<<`) are refused; write the entries out" : refused_scalar(value);
      if (!why.empty()) report(node->place, why);
      node->refused = !why.empty();
    } else if (!is_quote_closed(text_, static_cast<std::size_t>(std::max(0, mark.pos)))) {
      report(node->place, "the quote is not closed");
      throw Stop();
    }
    add(node, anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const Place place = place_of(mark);
    if (++num_aliases_ > limits::yaml_aliases) {
      report(place, str("the file has more than ", limits::yaml_aliases, " aliases"));
      throw Stop();
    }
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      report(place, "an alias without an anchor before it");
      throw Stop();
    }
    for (const Open& open : open_) {
      if (open.node == found->second) {
        report(place, "an alias within the node of its own anchor: a cycle");
        throw Stop();
      }
    }
    // The nodes of an alias count again, so that a small file cannot become a large tree.
    num_nodes_ += sizes_[found->second.get()];
    check_nodes(place);
    insert(found->second);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    start(YamlNode::Kind::list, mark, tag, anchor, style);
  }
  void OnSequenceEnd() override { finish(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    start(YamlNode::Kind::map, mark, tag, anchor, style);
  }
  void OnMapEnd() override { finish(); }

 private:
  struct Open {
    YamlPtr node;
    YamlPtr key;  // in a map: the key of the next value
    bool flow = false;
    int nodes_before = 0;
  };

  Place place_of(const YAML::Mark& mark) const { return Place{file_, mark.line + 1, mark.column + 1}; }

  void report(const Place& place, const std::string& message) {
    broken_ = true;
    diagnostics_.error(place, message);
  }

  YamlPtr make(YamlNode::Kind kind, const YAML::Mark& mark) {
    auto node = std::make_shared<YamlNode>();
    node->kind = kind;
    node->place = place_of(mark);
    node->in_flow = !open_.empty() && open_.back().flow;
    ++num_nodes_;
    check_nodes(node->place);
    return node;
  }

  void check_nodes(const Place& place) {
    if (num_nodes_ <= limits::yaml_nodes) return;
    report(place, str("the file has more than ", limits::yaml_nodes, " nodes, counting the nodes of every alias"));
    throw Stop();
  }

  void check_tag(const std::string& tag, const Place& place) {
    if (!tag.empty() && tag != "?" && tag != "!") report(place, str("tags are refused: `", tag, "`"));
  }

  void start(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
             YAML::EmitterStyle::value style) {
    YamlPtr node = make(kind, mark);
    check_tag(tag, node->place);
    if (open_.size() >= static_cast<std::size_t>(limits::yaml_depth)) {
      report(node->place, str("nested deeper than ", limits::yaml_depth));
      throw Stop();
    }
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    const bool flow = style == YAML::EmitterStyle::Flow || node->in_flow;
    node->in_flow = flow;
    open_.push_back(Open{node, nullptr, flow, num_nodes_ - 1});
  }

  void finish() {
    const Open done = open_.back();
    open_.pop_back();
    sizes_[done.node.get()] = num_nodes_ - done.nodes_before;
    insert(done.node);
  }

  void add(const YamlPtr& node, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    sizes_[node.get()] = 1;
    insert(node);
  }

  void insert(const YamlPtr& node) {
    if (open_.empty()) {
      root_ = node;
      return;
    }
    Open& open = open_.back();
    if (open.node->is_list()) {
      open.node->items.push_back(node);
    } else if (open.key == nullptr) {
      if (!node->is_scalar()) {
        report(node->place, node->kind == YamlNode::Kind::null ? "a key is missing" : "a key must be a word or a text");
        auto placeholder = std::make_shared<YamlNode>(*node);
        placeholder->kind = YamlNode::Kind::scalar;
        placeholder->items.clear();
        placeholder->entries.clear();
        open.key = placeholder;
        return;
      }
      for (const auto& [key, value] : open.node->entries) {
        if (key->text == node->text) {
          report(node->place, str("the key `", node->text, "` occurs twice; the first is in line ", key->place.line));
          break;
        }
      }
      open.key = node;
    } else {
      // A missing value has no place, so it gets the place of its key.
      if (node->kind == YamlNode::Kind::null && !node->refused) node->place = open.key->place;
      open.node->entries.emplace_back(open.key, node);
      open.key = nullptr;
    }
  }

  const std::string& text_;
  const std::string& file_;
  Diagnostics& diagnostics_;
  YamlPtr root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlPtr> anchors_;
  std::map<const YamlNode*, int> sizes_;
  int num_nodes_ = 0;
  int num_aliases_ = 0;
  bool broken_ = false;
};

// Stops at the first node of a further document.
class RefuseDocument : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { at = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override { throw Stop(); }
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override { throw Stop(); }
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override { throw Stop(); }
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    throw Stop();
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    throw Stop();
  }
  void OnMapEnd() override {}
  YAML::Mark at;
};

void check_single_document(YAML::Parser& parser, const std::string& file, Diagnostics& diagnostics) {
  RefuseDocument refuse;
  try {
    parser.HandleNextDocument(refuse);
  } catch (const Stop&) {
    diagnostics.error(Place{file, refuse.at.line + 1, refuse.at.column + 1},
                      "a second YAML document; a file holds one scenario or routine");
  }
}

void report_invalid(const YAML::Exception& error, const std::string& file, Diagnostics& diagnostics) {
  const Place place{file, std::max(0, error.mark.line) + 1, std::max(0, error.mark.column) + 1};
  std::string message = str("not valid YAML: ", error.msg);
  if (error.msg.find("flow") != std::string::npos) {
    message += "; within {} and [] an expression with a comma, bracket or brace must be quoted";
  } else if (error.msg.find("map value") != std::string::npos || error.msg.find("mapping") != std::string::npos) {
    message += "; a text with `: ` in it must be quoted";
  }
  diagnostics.error(place, message);
}

}  // namespace

std::string_view kind_text(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "nothing";
    case YamlNode::Kind::scalar:
      return "a single value";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      return "a map";
  }
  return "?";
}

YamlFile::YamlFile(const std::string& text, const std::string& file, Diagnostics& diagnostics) : text_(text) {
  if (text_.starts_with("\xef\xbb\xbf")) text_.erase(0, 3);
  if (text_.size() > limits::file_bytes) {
    diagnostics.error(Place{file, 1, 1},
                      str("the file has ", text_.size(), " bytes; at most ", limits::file_bytes, " are allowed"));
    return;
  }
  line_starts_.push_back(0);
  for (std::size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '\n') line_starts_.push_back(i + 1);
  }
  if (check_text(file, diagnostics)) parse(file, diagnostics);
}

Place YamlFile::place_of(std::size_t at, const std::string& file) const {
  const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), at);
  const std::size_t line = static_cast<std::size_t>(next - line_starts_.begin());
  return Place{file, static_cast<int>(line), static_cast<int>(at - line_starts_[line - 1]) + 1};
}

bool YamlFile::check_text(const std::string& file, Diagnostics& diagnostics) const {
  if (const auto bad = find_bad_byte(text_)) {
    diagnostics.error(place_of(bad->first, file), bad->second);
    return false;
  }
  diagnostics.add_source(file, text_);
  if (const auto at = find_excess_bracket(text_)) {
    diagnostics.error(place_of(*at, file), str("nested deeper than ", limits::yaml_depth));
    return false;
  }
  return true;
}

void YamlFile::parse(const std::string& file, Diagnostics& diagnostics) {
  TreeBuilder builder(text_, file, diagnostics);
  try {
    std::istringstream stream(text_);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder) || builder.root() == nullptr ||
        builder.root()->kind == YamlNode::Kind::null) {
      if (!builder.broken()) diagnostics.error(Place{file, 1, 1}, "the file is empty");
      return;
    }
    root_ = builder.root();
    check_single_document(parser, file, diagnostics);
  } catch (const Stop&) {
    root_ = nullptr;
  } catch (const YAML::Exception& error) {
    root_ = nullptr;
    report_invalid(error, file, diagnostics);
  }
}

SourceText YamlFile::source_of(const YamlNode& scalar) const {
  SourceText source{scalar.text, scalar.place, {}};
  const std::size_t line = static_cast<std::size_t>(std::max(1, scalar.place.line));
  if (line > line_starts_.size()) return source;
  std::size_t at = line_starts_[line - 1] + static_cast<std::size_t>(std::max(1, scalar.place.column) - 1);
  const auto skip_spaces = [&] {
    while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\n')) ++at;
  };
  // The place of a scalar with an anchor is that of the anchor.
  while (at < text_.size() && text_[at] == '&') {
    while (at < text_.size() && text_[at] != ' ' && text_[at] != '\n') ++at;
    skip_spaces();
  }
  if (at < text_.size() && !scalar.plain) {
    if (text_[at] == '|' || text_[at] == '>') {
      at = std::min(text_.find('\n', at), text_.size());
    } else {
      ++at;
    }
  }
  // The text and the file contain the same characters except white space and escapes, so the next equal character in
  // the file is the right one.
  std::size_t current_line = line;
  for (char c : scalar.text) {
    if (c != ' ' && c != '\n' && c != '\t') {
      const std::size_t found = text_.find(c, at);
      if (found != std::string::npos) at = found;
    }
    while (current_line < line_starts_.size() && line_starts_[current_line] <= at) ++current_line;
    source.places.emplace_back(static_cast<int>(current_line),
                               static_cast<int>(at - line_starts_[current_line - 1]) + 1);
    if (at + 1 < text_.size()) ++at;
  }
  source.start.column = scalar.place.column;
  return source;
}

}  // namespace lockstep::scenario
