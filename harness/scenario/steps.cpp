// Reads steps: the verb of a step and its modifiers. step_arguments.cpp reads the arguments.
#include <algorithm>
#include <map>

#include "engine/core/text.hpp"
#include "harness/scenario/reader.hpp"

namespace lockstep::scenario {

namespace {

// A short YAML form of a value on one line, for messages.
std::string short_form(const YamlNode& value) {
  if (value.is_list()) return value.items.empty() ? "[]" : "[...]";
  if (value.is_map()) return value.entries.empty() ? "{}" : "{...}";
  if (value.kind == YamlNode::Kind::null) return "none";
  const bool quoted = value.text.empty() || value.text.find_first_of(",[]{}:#\"'\n") != std::string::npos;
  return quoted ? str('"', value.text, '"') : value.text;
}

// The step with all arguments written within the verb: `fully_shard: {modules: m, reshard_after_forward: false}`.
std::string step_with_all_arguments(const VerbSpec& spec, const YamlNode& value, const YamlNode& step) {
  std::string inside;
  const auto add = [&](const std::string& name, const std::string& text) {
    inside += str(inside.empty() ? "" : ", ", name, ": ", text);
  };
  if (value.is_map()) {
    for (const auto& [key, node] : value.entries) add(key->text, short_form(*node));
  } else if (value.is_list() && spec.num_in_order > 0) {
    for (std::size_t i = 0; i < std::min(value.items.size(), spec.arguments.size()); ++i)
      add(spec.arguments[i].name, short_form(*value.items[i]));
  } else if (value.kind != YamlNode::Kind::null && spec.alone() != nullptr) {
    add(spec.alone()->name, short_form(value));
  }
  for (const auto& [key, node] : step.entries)
    if (spec.index_of(key->text)) add(key->text, short_form(*node));
  return str(spec.name, ": {", inside, "}");
}

const std::vector<std::string>& verbs_and_modifiers() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const VerbSpec& spec : verbs()) all.emplace_back(spec.name);
    all.insert(all.end(), step_modifiers().begin(), step_modifiers().end());
    return all;
  }();
  return names;
}

bool is_modifier(const std::string& key) {
  const std::vector<std::string>& known = step_modifiers();
  return std::find(known.begin(), known.end(), key) != known.end();
}

// Whether a pattern consists of stars only; it then matches every message.
bool matches_empty(const std::string& pattern) { return pattern.find_first_not_of('*') == std::string::npos; }

}  // namespace

Steps Reader::steps(const YamlNode& node, std::string_view what) {
  Steps out;
  if (!require_list(node, what)) return out;
  if (node.items.empty()) error(node.place, str(what, " must hold at least one step"));
  for (const YamlPtr& item : node.items) {
    if (std::optional<Step> made = step(*item)) out.push_back(std::move(*made));
  }
  return out;
}

// The verb of a step and the keys that are neither a verb nor a modifier.
struct Reader::StepKeys {
  const VerbSpec* spec = nullptr;
  YamlPtr verb;
  YamlPtr value;
  std::vector<YamlPtr> unknown;
};

std::optional<Step> Reader::step(const YamlNode& node) {
  if (!node.is_map()) {
    const bool bare = node.is_scalar() && find_verb(node.text) != nullptr;
    error(node.place, bare ? str("a step is a map: write `", node.text, ": ...`, or `", node.text, ": {}`")
                           : str("a step must be a map with one verb, got ", kind_text(node)));
    return std::nullopt;
  }
  const StepKeys keys = find_step_keys(node);
  for (const YamlPtr& key : keys.unknown) report_unknown_key(*key, keys, node);
  if (keys.spec == nullptr) {
    if (keys.unknown.empty()) error(node.place, "a step without a verb");
    assume_names_of_step(node);
    return std::nullopt;
  }
  Step step;
  step.verb = keys.spec->id;
  step.place = keys.verb->place;
  step.arguments.resize(keys.spec->arguments.size());
  step.given.resize(keys.spec->arguments.size());
  read_arguments(step, *keys.spec, *keys.value);
  read_modifiers(step, *keys.spec, node);
  check_rules(step, *keys.spec);
  if (!step.raises) check_ranges(step, *keys.spec);
  return step;
}

Reader::StepKeys Reader::find_step_keys(const YamlNode& node) {
  StepKeys keys;
  for (const auto& [key, value] : node.entries) {
    if (is_modifier(key->text)) continue;
    const VerbSpec* found = find_verb(key->text);
    if (found == nullptr) {
      keys.unknown.push_back(key);
    } else if (keys.spec != nullptr) {
      error(key->place, str("a step has one verb; this step has `", keys.spec->name, "` already"));
    } else {
      keys.spec = found;
      keys.verb = key;
      keys.value = value;
    }
  }
  return keys;
}

void Reader::report_unknown_key(const YamlNode& key, const StepKeys& keys, const YamlNode& step) {
  if (keys.spec != nullptr && keys.spec->index_of(key.text)) {
    error(key.place, str("`", key.text, "` is an argument of `", keys.spec->name, "`; write it within the verb: `",
                         step_with_all_arguments(*keys.spec, *keys.value, step), "`"));
    return;
  }
  const bool verb = keys.spec == nullptr && &key == keys.unknown.front().get();
  const std::vector<std::string>& known = verb ? verbs_and_modifiers() : step_modifiers();
  error(key.place, verb ? str("unknown verb `", key.text, "`", suggestion(key.text, known))
                        : str("unknown key `", key.text, "` in a step", suggestion(key.text, known)));
}

void Reader::assume_names_of_step(const YamlNode& step) {
  if (const YamlNode* as = find(step, "as")) assume_names_of_as(*as);
  for (std::string_view block : {"steps", "else"}) {
    const YamlNode* inner = find(step, block);
    if (inner != nullptr && inner->is_list()) assume_names_of_steps(steps(*inner, "`steps`"));
  }
}

void Reader::assume_names_of_steps(const Steps& list) {
  for (const Step& step : list) {
    for (const NamedExpr& entry : step.entries) assumed_names_.insert(entry.name);
    for (const auto& [its, mine] : step.as_names) assumed_names_.insert(mine);
    if (!step.as.empty()) assumed_names_.insert(step.as);
    assume_names_of_steps(step.steps);
    assume_names_of_steps(step.otherwise);
    for (const Branch& branch : step.among) assume_names_of_steps(branch.steps);
  }
}

void Reader::assume_names_of_as(const YamlNode& as) {
  if (as.is_scalar()) assumed_names_.insert(as.text);
  for (const auto& [its, mine] : as.entries) assumed_names_.insert(mine->text);
}

void Reader::read_modifiers(Step& step, const VerbSpec& spec, const YamlNode& node) {
  if (const YamlNode* with = find(node, "with"); with != nullptr && spec.id != Verb::use) {
    error(with->place, str("`with` is for `use` only, not for `", spec.name, "`"));
  }
  if (spec.id == Verb::use) {
    read_use(step, node);
  } else if (const YamlNode* as = find(node, "as")) {
    read_as(step, spec, *as);
  }
  if (const YamlNode* when = find(node, "when")) {
    ArgumentSpec condition;
    condition.name = "when";
    condition.type = ArgType::boolean;
    step.when = argument(*when, condition);
  }
  if (const YamlNode* raises = find(node, "raises")) read_raises(step, *raises);
  if (const YamlNode* note = find(node, "note")) step.note = text(*note, "`note`").value_or("");
  if (const YamlNode* place = find(node, "place")) {
    if (spec.block != Block::none || spec.id == Verb::use)
      error(place->place, str("`place` is for steps that issue collectives themselves; give it to the steps within `",
                              spec.name, "`"));
    step.call_site_name = name(*place, "`place`");
  }
  read_blocks(step, spec, node);
}

void Reader::read_blocks(Step& step, const VerbSpec& spec, const YamlNode& node) {
  const YamlNode* block = find(node, "steps");
  const bool takes = spec.block == Block::required || spec.block == Block::with_else;
  if (takes && block == nullptr) {
    error(step.place, str("`", spec.name, "` needs `steps`"));
  } else if (takes) {
    step.steps = steps(*block, "`steps`");
  } else if (block != nullptr) {
    error(block->place, str("`", spec.name, "` takes no `steps`"));
  }
  const YamlNode* otherwise = find(node, "else");
  if (otherwise != nullptr && spec.block == Block::with_else) {
    step.otherwise = steps(*otherwise, "`else`");
  } else if (otherwise != nullptr) {
    error(otherwise->place, str("`else` is for `if` only, not for `", spec.name, "`"));
  }
  read_branches(step, spec, node);
}

void Reader::read_branches(Step& step, const VerbSpec& spec, const YamlNode& node) {
  const YamlNode* among = find(node, "among");
  if (among != nullptr && spec.block == Block::among) {
    if (require_map(*among, "`among`")) {
      if (among->entries.empty()) error(among->place, "`among` must hold at least one branch");
      for (const auto& [key, value] : among->entries) {
        Branch branch{literal(*key).value_or(Literal()), key->place, steps(*value, "a branch")};
        step.among.push_back(std::move(branch));
      }
    }
  } else if (among != nullptr) {
    error(among->place, str("`among` is for `choose` only, not for `", spec.name, "`"));
  } else if (spec.block == Block::among) {
    error(step.place, str("`", spec.name, "` needs `among`"));
  }
}

void Reader::read_as(Step& step, const VerbSpec& spec, const YamlNode& node) {
  if (spec.result.empty()) {
    error(node.place, str("`", spec.name, "` has no result that `as` could name"));
    assume_names_of_as(node);
    return;
  }
  if (node.is_map()) {
    error(node.place, str("`as` must be one name; only `use` takes a map of names"));
    return;
  }
  step.as = name(node, "`as`");
}

void Reader::read_raises(Step& step, const YamlNode& node) {
  Raises raises;
  raises.place = node.place;
  const YamlNode* message = &node;
  if (node.is_map()) {
    check_keys(node, {"message", "when", "within_ms"}, "`raises`");
    message = find(node, "message");
    if (message == nullptr) {
      error(node.place, "`raises` needs `message`");
      return;
    }
    ArgumentSpec spec;
    spec.name = "when";
    spec.type = ArgType::boolean;
    if (const YamlNode* when = find(node, "when")) raises.when = argument(*when, spec);
    spec.name = "within_ms";
    spec.type = ArgType::number;
    if (const YamlNode* within = find(node, "within_ms")) raises.within_ms = argument(*within, spec);
  }
  raises.message = literal_text(*message, "the message under `raises`");
  if (raises.message == nullptr) return;
  if (raises.message->kind == ExprKind::literal && matches_empty(raises.message->value.as_text())) {
    error(message->place, "the message under `raises` matches every error; give a text that the error must contain");
  }
  step.raises = std::move(raises);
}

}  // namespace lockstep::scenario
