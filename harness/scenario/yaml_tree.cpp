#include "harness/scenario/yaml_tree.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "engine/core/text.hpp"

namespace lockstep::scenario {

namespace {

// Thrown by the handler to stop a hostile text early; the error is already reported.
struct Stop {};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return out;
}

// Why a plain scalar is refused, or nothing.
std::string refusal(const std::string& text) {
  const std::string word = lower(text);
  for (std::string_view refused : {"yes", "no", "on", "off", "null", "~"}) {
    if (word == refused) {
      const bool none = refused == "null" || refused == "~";
      return str("the plain word `", text, "` is refused, as YAML 1.1 reads it in its own way; write ",
                 none                            ? "`none`, "
                 : word == "no" || word == "off" ? "`false`, "
                                                 : "`true`, ",
                 "or quote it");
    }
  }
  if ((word == "true" || word == "false") && word != text) {
    return str("the plain word `", text, "` is refused; write `", word, "`, or quote it");
  }
  std::size_t i = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  if (i + 1 < text.size() && text[i] == '0' && text[i + 1] >= '0' && text[i + 1] <= '9' &&
      text.find_first_not_of("0123456789._eE+-", i) == std::string::npos) {
    return str("leading zeros are refused: `", text, "`, which YAML 1.1 reads as octal; quote it if it is a text");
  }
  return {};
}

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
    if (word == "~" || lower(word) == "null") {
      report(node->place, refusal(word));
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
      const std::string why = value == "<<" ? "merge keys (`<<`) are refused; write the entries out" : refusal(value);
      if (!why.empty()) report(node->place, why);
      node->refused = !why.empty();
    } else if (!is_closed(mark)) {
      report(node->place, "the quote is not closed");
      throw Stop();
    }
    add(node, anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const Place place = place_of(mark);
    if (++num_aliases_ > limits::yaml_aliases) {
      report(place, str("more than ", limits::yaml_aliases, " aliases"));
      throw Stop();
    }
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      report(place, "an alias of something that does not stand before it");
      throw Stop();
    }
    for (const Open& open : open_) {
      if (open.node == found->second) {
        report(place, "an alias within what it stands for: a cycle");
        throw Stop();
      }
    }
    // What the alias stands for counts again, so that no small file grows into a large tree.
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
    YamlPtr key;  // of a map: the key whose value comes next
    bool flow = false;
    int nodes_before = 0;
  };

  Place place_of(const YAML::Mark& mark) const { return Place{file_, mark.line + 1, mark.column + 1}; }

  // yaml-cpp takes a quoted text that the end of the file cuts off.
  bool is_closed(const YAML::Mark& mark) const {
    std::size_t at = static_cast<std::size_t>(std::max(0, mark.pos));
    if (at >= text_.size() || (text_[at] != '"' && text_[at] != '\'')) return true;
    const char quote = text_[at];
    for (++at; at < text_.size(); ++at) {
      if (quote == '"' && text_[at] == '\\') {
        ++at;
      } else if (text_[at] == quote) {
        if (quote == '"' || at + 1 >= text_.size() || text_[at + 1] != quote) return true;
        ++at;
      }
    }
    return false;
  }

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
    report(place, str("more than ", limits::yaml_nodes, " nodes, aliases written out"));
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
        auto stand_in = std::make_shared<YamlNode>(*node);
        stand_in->kind = YamlNode::Kind::scalar;
        stand_in->items.clear();
        stand_in->entries.clear();
        open.key = stand_in;
        return;
      }
      for (const auto& [key, value] : open.node->entries) {
        if (key->text == node->text) {
          report(node->place, str("the key `", node->text, "` stands twice; first in line ", key->place.line));
          break;
        }
      }
      open.key = node;
    } else {
      // A missing value has no place of its own: show its key.
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

// The first byte that no text may hold, with what is wrong with it.
std::optional<std::pair<std::size_t, std::string>> bad_byte(const std::string& text) {
  static constexpr char hex[] = "0123456789abcdef";
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c == 0) return std::pair(i, std::string("a NUL byte: this is no text file"));
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f) {
      return std::pair(i, str("a control character (0x", hex[c >> 4], hex[c & 0xf], ")"));
    }
    std::size_t following = 0;
    if (c >= 0xc2 && c < 0xe0) {
      following = 1;
    } else if (c >= 0xe0 && c < 0xf0) {
      following = 2;
    } else if (c >= 0xf0 && c < 0xf5) {
      following = 3;
    } else if (c >= 0x80) {
      return std::pair(i, std::string("not UTF-8"));
    }
    for (std::size_t k = 1; k <= following; ++k) {
      if (i + k >= text.size() || (static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) {
        return std::pair(i, std::string("not UTF-8"));
      }
    }
    i += following + 1;
  }
  return std::nullopt;
}

// Brackets open at once in one place, as a bound on what the YAML scanner must remember; quotes and comments are not
// told apart, which only matters for texts full of brackets.
std::optional<std::size_t> too_many_brackets(const std::string& text) {
  constexpr int bound = 4 * limits::yaml_depth;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '{') {
      if (++depth > bound) return i;
    } else if (text[i] == ']' || text[i] == '}') {
      depth = std::max(0, depth - 1);
    } else if (text[i] == '\n') {
      // An unclosed quote must not add up over the lines; real nesting past the bound is found by the events.
      if (i + 1 < text.size() && text[i + 1] != ' ') depth = 0;
    }
  }
  return std::nullopt;
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
  const auto place_of = [&](std::size_t at) {
    const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), at);
    const std::size_t line = static_cast<std::size_t>(next - line_starts_.begin());
    return Place{file, static_cast<int>(line), static_cast<int>(at - line_starts_[line - 1]) + 1};
  };
  if (const auto bad = bad_byte(text_)) {
    diagnostics.error(place_of(bad->first), bad->second);
    return;
  }
  diagnostics.add_source(file, text_);
  if (const auto at = too_many_brackets(text_)) {
    diagnostics.error(place_of(*at), str("nested deeper than ", limits::yaml_depth));
    return;
  }

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
    class Refuse : public YAML::EventHandler {
     public:
      void OnDocumentStart(const YAML::Mark& mark) override { at = mark; }
      void OnDocumentEnd() override {}
      void OnNull(const YAML::Mark&, YAML::anchor_t) override { throw Stop(); }
      void OnAlias(const YAML::Mark&, YAML::anchor_t) override { throw Stop(); }
      void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {
        throw Stop();
      }
      void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
        throw Stop();
      }
      void OnSequenceEnd() override {}
      void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
        throw Stop();
      }
      void OnMapEnd() override {}
      YAML::Mark at;
    } refuse;
    try {
      parser.HandleNextDocument(refuse);
    } catch (const Stop&) {
      diagnostics.error(Place{file, refuse.at.line + 1, refuse.at.column + 1},
                        "a second document; a file holds one scenario or routine");
    }
  } catch (const Stop&) {
    root_ = nullptr;
  } catch (const YAML::Exception& error) {
    root_ = nullptr;
    Place place{file, std::max(0, error.mark.line) + 1, std::max(0, error.mark.column) + 1};
    std::string message = str("not valid YAML: ", error.msg);
    if (error.msg.find("flow") != std::string::npos) {
      message += "; within {} and [] an expression with a comma, bracket or brace must be quoted";
    } else if (error.msg.find("map value") != std::string::npos || error.msg.find("mapping") != std::string::npos) {
      message += "; a text with `: ` in it must be quoted";
    }
    diagnostics.error(place, message);
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
  // The mark of a scalar with an anchor is the anchor's.
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
  // Both run over the same characters but for white space and escapes, so that the next equal one is the right one.
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
