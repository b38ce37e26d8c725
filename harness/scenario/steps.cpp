// Steps: one verb, its arguments, and what may stand beside it.
#include <algorithm>
#include <map>

#include "engine/core/text.hpp"
#include "harness/scenario/reader.hpp"

namespace lockstep::scenario {

namespace {

std::string list_of(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += str(out.empty() ? "`" : ", `", word, "`");
  return out;
}

std::vector<std::string> argument_names(const VerbSpec& spec) {
  std::vector<std::string> names;
  for (const ArgumentSpec& argument : spec.arguments) names.push_back(argument.name);
  return names;
}

// A value on one line, as YAML: enough of it to recognise it by.
std::string short_form(const YamlNode& value) {
  if (value.is_list()) return value.items.empty() ? "[]" : "[...]";
  if (value.is_map()) return value.entries.empty() ? "{}" : "{...}";
  if (value.kind == YamlNode::Kind::null) return "none";
  const bool quoted = value.text.empty() || value.text.find_first_of(",[]{}:#\"'\n") != std::string::npos;
  return quoted ? str('"', value.text, '"') : value.text;
}

// The step with all its arguments within its verb: `fully_shard: {modules: m, reshard_after_forward: false}`.
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

bool is_modifier(const std::string& key) {
  const std::vector<std::string>& known = step_modifiers();
  return std::find(known.begin(), known.end(), key) != known.end();
}

// A pattern of stars alone fits the empty text, and so every message.
bool matches_empty(const std::string& pattern) { return pattern.find_first_not_of('*') == std::string::npos; }

// The number that an expression is, where it is one: `0.1`, `-1`.
std::optional<double> literal_number(const Expr& value) {
  if (value.kind == ExprKind::literal && value.value.is_number()) return value.value.as_double();
  if (value.kind != ExprKind::unary || value.op != Op::negate) return std::nullopt;
  const std::optional<double> inner = literal_number(*value.children[0]);
  return inner ? std::optional(-*inner) : std::nullopt;
}

bool is_false(const Expr* value) {
  return value == nullptr || (value->kind == ExprKind::literal && value->value == Literal(false));
}

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

std::optional<Step> Reader::step(const YamlNode& node) {
  static const std::vector<std::string> verb_names = [] {
    std::vector<std::string> names;
    for (const VerbSpec& spec : verbs()) names.emplace_back(spec.name);
    return names;
  }();
  static const std::vector<std::string> all_keys = [] {
    std::vector<std::string> names = verb_names;
    names.insert(names.end(), step_modifiers().begin(), step_modifiers().end());
    return names;
  }();
  if (!node.is_map()) {
    const bool bare = node.is_scalar() && find_verb(node.text) != nullptr;
    error(node.place, bare ? str("a step is a map: write `", node.text, ": ...`, or `", node.text, ": {}`")
                           : str("a step must be a map with one verb, got ", kind_text(node)));
    return std::nullopt;
  }
  const VerbSpec* spec = nullptr;
  YamlPtr verb_key;
  YamlPtr verb_value;
  std::vector<YamlPtr> unknown;
  for (const auto& [key, value] : node.entries) {
    if (is_modifier(key->text)) continue;
    const VerbSpec* found = find_verb(key->text);
    if (found == nullptr) {
      unknown.push_back(key);
    } else if (spec != nullptr) {
      error(key->place, str("a step has one verb; this one has `", spec->name, "` already"));
    } else {
      spec = found;
      verb_key = key;
      verb_value = value;
    }
  }
  for (const YamlPtr& key : unknown) {
    if (spec != nullptr && spec->index_of(key->text)) {
      error(key->place, str("`", key->text, "` is an argument of `", spec->name, "` and stands within it: `",
                            step_with_all_arguments(*spec, *verb_value, node), "`"));
      continue;
    }
    const bool verb = spec == nullptr && key == unknown.front();
    const std::vector<std::string>& known = verb ? all_keys : step_modifiers();
    error(key->place, verb ? str("unknown verb `", key->text, "`", suggestion(key->text, known))
                           : str("unknown key `", key->text, "` in a step", suggestion(key->text, known)));
  }
  if (spec == nullptr) {
    if (unknown.empty()) error(node.place, "a step without a verb");
    excuse(node);
    return std::nullopt;
  }
  Step step;
  step.verb = spec->id;
  step.place = verb_key->place;
  step.arguments.resize(spec->arguments.size());
  step.given.resize(spec->arguments.size());
  read_arguments(step, *spec, *verb_value);
  read_modifiers(step, *spec, node);
  check_rules(step, *spec);
  if (!step.raises) check_ranges(step, *spec);
  return step;
}

// What a step that cannot be read would have bound, so that its names cause no errors of their own.
void Reader::excuse(const YamlNode& step) {
  if (const YamlNode* as = find(step, "as")) excuse_names(*as);
  for (std::string_view block : {"steps", "else"}) {
    const YamlNode* inner = find(step, block);
    if (inner != nullptr && inner->is_list()) excuse_bound(steps(*inner, "`steps`"));
  }
}

void Reader::excuse_bound(const Steps& list) {
  for (const Step& step : list) {
    for (const NamedExpr& entry : step.entries) excused_.insert(entry.name);
    for (const auto& [its, mine] : step.as_names) excused_.insert(mine);
    if (!step.as.empty()) excused_.insert(step.as);
    excuse_bound(step.steps);
    excuse_bound(step.otherwise);
    for (const Branch& branch : step.among) excuse_bound(branch.steps);
  }
}

void Reader::excuse_names(const YamlNode& as) {
  if (as.is_scalar()) excused_.insert(as.text);
  for (const auto& [its, mine] : as.entries) excused_.insert(mine->text);
}

void Reader::read_arguments(Step& step, const VerbSpec& spec, const YamlNode& value) {
  const auto take = [&](std::size_t i, const YamlNode& node) {
    step.given[i] = true;
    step.arguments[i] = argument(node, spec.arguments[i]);
  };
  bool complete = true;
  if (spec.free_names) {
    if (!value.is_map() || value.entries.empty()) {
      error(value.place, str("`", spec.name, "` takes names and their expressions: {name: expression}"));
      return;
    }
    bool torn = false;  // by a comma without quotes: what follows is no entry, but may hold names
    for (const auto& [key, node] : value.entries) {
      if (torn) {
        excused_.insert(key->text);
        continue;
      }
      NamedExpr entry{key->text, key->place, nullptr};
      check_name(entry.name, key->place);
      entry.value = expression(*node);
      torn = entry.value == nullptr && node->in_flow && node->plain;
      step.entries.push_back(std::move(entry));
    }
    return;
  }
  if (value.is_map()) {
    for (const auto& [key, node] : value.entries) {
      const std::optional<std::size_t> index = spec.index_of(key->text);
      if (!index) {
        error(key->place, str("unknown argument `", key->text, "` of `", spec.name, "`",
                              suggestion(key->text, argument_names(spec))));
        continue;
      }
      take(*index, *node);
      if (step.arguments[*index] == nullptr && node->in_flow && node->plain) {
        complete = false;
        break;
      }
    }
  } else if (value.is_list() && spec.num_in_order > 0) {
    const std::size_t wanted = static_cast<std::size_t>(spec.num_in_order);
    if (value.items.size() != wanted) {
      const bool torn = value.items.size() > wanted && value.in_flow;
      error(value.place, str("`", spec.name, "` as a list takes ", wanted, " items, got ", value.items.size(),
                             torn ? "; within [] an expression with a comma, bracket or brace must be quoted" : ""));
      return;
    }
    for (std::size_t i = 0; i < wanted; ++i) take(i, *value.items[i]);
  } else if (value.kind == YamlNode::Kind::null) {
    if (value.text.empty())
      error(step.place, str("`", spec.name, "` has no value; write `", spec.name, ": {}` for none"));
    return;
  } else if (const ArgumentSpec* alone = spec.alone()) {
    take(*spec.index_of(alone->name), value);
  } else {
    error(value.place, str("`", spec.name, "` takes its arguments by name: ", list_of(argument_names(spec))));
    return;
  }
  for (std::size_t i = 0; i < spec.arguments.size(); ++i) {
    const ArgumentSpec& argument = spec.arguments[i];
    if (step.given[i]) continue;
    if (argument.has_default()) {
      step.arguments[i] = default_of(argument, step.place);
    } else if (!argument.optional && complete) {
      error(step.place, str("`", spec.name, "` needs `", argument.name, "`"));
    }
  }
}

void Reader::read_modifiers(Step& step, const VerbSpec& spec, const YamlNode& node) {
  if (const YamlNode* with = find(node, "with"); with != nullptr && spec.id != Verb::use) {
    error(with->place, str("`with` goes with `use` only, not with `", spec.name, "`"));
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
      error(place->place, str("`place` goes with a step that makes collectives itself; give it to the steps within `",
                              spec.name, "`"));
    step.meeting_place = name(*place, "`place`");
  }

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
    error(otherwise->place, str("`else` goes with `if` only, not with `", spec.name, "`"));
  }
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
    error(among->place, str("`among` goes with `choose` only, not with `", spec.name, "`"));
  } else if (spec.block == Block::among) {
    error(step.place, str("`", spec.name, "` needs `among`"));
  }
}

void Reader::read_as(Step& step, const VerbSpec& spec, const YamlNode& node) {
  if (spec.result.empty()) {
    error(node.place, str("`", spec.name, "` gives nothing that `as` could name"));
    excuse_names(node);
    return;
  }
  if (node.is_map()) {
    error(node.place, str("`as` is one name here; a map of names goes with `use`"));
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
    error(message->place, "the message under `raises` fits any error, even an empty text; say what it must contain");
  }
  step.raises = std::move(raises);
}

void Reader::read_use(Step& step, const YamlNode& node) {
  const YamlNode* with = find(node, "with");
  const YamlNode* as = find(node, "as");
  const Expr* named = step.arguments[0].get();
  if (named == nullptr) return;
  if (named->kind != ExprKind::literal) {
    error(step.place, "a routine is named outright, without `${}`; `choose` picks one of several");
    return;
  }
  step.routine = routines_(named->value.as_text(), Place{step.place.file, named->line, named->column});
  if (step.routine == nullptr) {
    if (as != nullptr) excuse_names(*as);
    return;
  }
  const Routine& routine = *step.routine;

  std::vector<std::string> known;
  for (const RoutineParameter& parameter : routine.parameters) known.push_back(parameter.name);
  if (with != nullptr && require_map(*with, "`with`")) {
    for (const auto& [key, value] : with->entries) {
      const RoutineParameter* parameter = routine.parameter(key->text);
      if (parameter == nullptr) {
        error(key->place,
              str("unknown argument `", key->text, "` of the routine ", routine.name, suggestion(key->text, known)));
        continue;
      }
      ArgumentSpec spec;
      spec.name = parameter->name;
      spec.type = argument_type_of(parameter->type);
      NamedExpr entry{key->text, key->place, argument(*value, spec)};
      if (entry.value == nullptr && value->in_flow && value->plain) return;
      step.entries.push_back(std::move(entry));
    }
  }
  for (const RoutineParameter& parameter : routine.parameters) {
    const bool given = with != nullptr && with->is_map() && find(*with, parameter.name) != nullptr;
    if (parameter.required && !given) {
      error(step.place, str("the routine ", routine.name, " needs `", parameter.name, "` under `with`"));
    }
  }
  if (as == nullptr) return;
  if (!as->is_map()) {
    error(as->place, "with `use`, `as` is a map: {its name: my name}");
    return;
  }
  for (const auto& [key, value] : as->entries) {
    if (std::find(routine.gives.begin(), routine.gives.end(), key->text) == routine.gives.end()) {
      error(key->place,
            str("the routine ", routine.name, " gives no `", key->text, "`", suggestion(key->text, routine.gives)));
    }
    const std::string mine = name(*value, "a name under `as`");
    if (!mine.empty()) step.as_names.emplace_back(key->text, mine);
  }
}

// What a verb asks of its arguments together.
// Numbers as they are written; the run checks those that it computes. A step that must raise may be meant to be wrong.
void Reader::check_ranges(const Step& step, const VerbSpec& spec) {
  for (std::size_t i = 0; i < spec.arguments.size(); ++i) {
    const Expr* value = step.arguments[i].get();
    const std::optional<double> number = value != nullptr ? literal_number(*value) : std::nullopt;
    const std::string why = number ? out_of_range(spec.arguments[i].name, *number, spec.arguments[i].range) : "";
    if (!why.empty()) error(Place{step.place.file, value->line, value->column}, why);
  }
}

void Reader::check_rules(const Step& step, const VerbSpec& spec) {
  const auto given = [&](std::string_view argument) {
    const std::optional<std::size_t> index = spec.index_of(argument);
    return index && step.given[*index];
  };
  const auto count = [&](std::initializer_list<std::string_view> arguments) {
    return std::count_if(arguments.begin(), arguments.end(), given);
  };
  switch (step.verb) {
    case Verb::optimizer:
      if (count({"model", "parameters", "groups"}) != 1) {
        error(step.place, "`optimizer` needs one of `model`, `parameters` and `groups`");
      }
      break;
    case Verb::to:
      if (count({"dtype", "device"}) == 0) error(step.place, "`to` needs `dtype` or `device`");
      break;
    case Verb::set_flags:
      if (count({"requires_gradient_sync", "requires_all_reduce", "is_last_backward", "reshard_after_backward",
                 "reshard_after_forward", "reduce_divide_factor"}) == 0) {
        error(step.place, "`set_flags` sets nothing: it needs a flag");
      }
      break;
    case Verb::prefetch:
      if (count({"forward", "backward"}) == 0) error(step.place, "`prefetch` needs `forward` or `backward`");
      break;
    case Verb::expect_events:
      if (count({"exactly", "in_order", "never"}) == 0) {
        error(step.place, "`expect_events` needs `exactly`, `in_order` or `never`");
      }
      break;
    case Verb::expect_collectives:
      if (count({"exactly", "total", "bytes"}) == 0) {
        error(step.place, "`expect_collectives` needs `exactly`, `total` or `bytes`");
      }
      break;
    case Verb::hook: {
      if (count({"modules", "parameters", "optimizer"}) != 1) {
        error(step.place, "`hook` needs one of `modules`, `parameters` and `optimizer`");
        break;
      }
      const Expr* at = step.argument("at");
      if (at == nullptr || at->kind != ExprKind::literal) break;
      for (const HookPointSpec& point : hook_points()) {
        if (point.name != at->value.as_text()) continue;
        static constexpr std::string_view targets[] = {"modules", "parameters", "optimizer"};
        const std::string_view target = targets[static_cast<int>(point.target)];
        if (!given(target)) error(step.place, str("`at: ", point.name, "` goes with `", target, "`"));
      }
      break;
    }
    case Verb::observe: {
      const Expr* memory = step.argument("memory");
      if (memory == nullptr) break;
      for_each_node(*memory, [&](const Expr& word) {
        if (word.kind != ExprKind::literal || !word.value.is_text()) return;
        const std::vector<std::string>& known = memory_purposes();
        if (memory->kind == ExprKind::concat) return;
        if (std::find(known.begin(), known.end(), word.value.as_text()) != known.end()) return;
        error(Place{step.place.file, word.line, word.column},
              str("unknown purpose of memory `", word.value.as_text(), "`", suggestion(word.value.as_text(), known)));
      });
      break;
    }
    case Verb::read:
    case Verb::write: {
      const Expr* file = step.argument("file");
      if (file == nullptr || file->kind != ExprKind::literal) break;
      const std::string& path = file->value.as_text();
      const Place place{step.place.file, file->line, file->column};
      if (step.verb == Verb::write && path.starts_with("/")) {
        error(place, "`write` writes to the case's folder only; a leading `/` is for reading");
      }
      if (path == ".." || path.starts_with("../") || path.find("/../") != std::string::npos || path.ends_with("/..")) {
        error(place, "`..` is refused in files");
      }
      if (!path.ends_with(".json") && !path.ends_with(".safetensors")) {
        error(place, "a file must end in .json or .safetensors");
      }
      break;
    }
    default:
      break;
  }
  if (!step.as.empty() && spec.result == "handle" && spec.index_of("async") && is_false(step.argument("async"))) {
    error(step.place, str("`", spec.name, "` gives a handle only with `async: true`"));
  }
}

}  // namespace lockstep::scenario
