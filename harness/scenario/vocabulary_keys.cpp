// The keys of scenario files, routine files, models and steps, with their meaning.
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

const std::vector<KeySpec>& scenario_keys() {
  static const std::vector<KeySpec> table = {
      {"scenario", true, "the path of the file below `scenarios/`, without `.yaml`"},
      {"summary", true, "one line: what the scenario shows"},
      {"mirrors", false, "`{document, test, number}` of the test that it mirrors; the number may be left out"},
      {"see", false, "links, as a list"},
      {"ranks", true,
       "`{world_size: [2, 8], launch: process}`: the sizes to run at; `launch` is process (the default), thread, or a "
       "list of both"},
      {"device", false,
       "where it can run, `[cpu, sim, cuda]` unless given. `--device` picks one; otherwise it is cpu, or the first of "
       "the list that the build has"},
      {"parameters", false,
       "constants by name, such as `{seed: 42}`; `--set seed=7` replaces one by a value of the same kind"},
      {"matrix", false,
       "`{name: [value, ...]}`, or `{name: {label: {entry: value}}}`, of which expressions use `name.entry` and "
       "`name.label`. Every combination is a case; the first name varies slowest"},
      {"skip", false, "a list of `{when: condition, reason: text}`: the cases that are not run"},
      {"expect_failure", false,
       "a list of the same form: the cases that must fail (XFAIL; one that passes is XPASS). With `line` and "
       "`message`, a "
       "failure elsewhere, or one that says something else, is still a FAIL"},
      {"timeout", false, "seconds a case may take, 60 unless given; `--timeout` overrides it"},
      {"limits", false,
       "`{memory_mb: 2048, output_mb: 64}`: MiB that each rank may use for tensors and values together, and MiB that "
       "it "
       "may record and write to files. A step that asks for more fails. Unless given, memory is 2048, or the ranks' "
       "share of half the machine's memory where that is less. `--memory-mb` and `--output-mb` override them"},
      {"tags", false, "words that `--tag` selects by"},
      {"bits", false,
       "`required`: every `expect_equal` of float32 values asks for the same bits; `{reported: reason}`: they are "
       "reported only, and why"},
      {"plan", false, "`{unplanned: reason}` where the collectives cannot be worked out beforehand, and why"},
      {"models", false, "models of the file's own"},
      {"steps", false, "what every rank does, in order; every file has either `steps` or `stages`"},
      {"stages", false,
       "`[{name, world_size, steps}]`: each stage is run by ranks launched afresh; nothing but the files in the case's "
       "folder outlives a stage"},
  };
  return table;
}

const std::vector<KeySpec>& routine_keys() {
  static const std::vector<KeySpec> table = {
      {"routine", true, "the name of the file, without `.yaml`"},
      {"summary", true, "one line: what it does"},
      {"parameters", false, "what it is given: `name: type`, or `name: {type: ..., default: ...}`"},
      {"gives", false, "names of its own that the caller may take over with `as`"},
      {"models", false, "models of its own"},
      {"steps", true, "what it does"},
  };
  return table;
}

const std::vector<KeySpec>& model_keys() {
  static const std::vector<KeySpec> table = {
      {"arguments", false, "`{dim: required, mult: 4}`: what it is built with"},
      {"children", false, "modules by name, built in this order"},
      {"parameters", false, "tensors by name, drawn in this order after the children"},
      {"buffers", false, "tensors by name, drawn in this order after the parameters"},
      {"forward", false, "the output as an expression of one input, `x`"},
      {"methods", false,
       "`name(input, option=default): expression`, or in place of the expression a map of names and expressions whose "
       "last is `return`"},
  };
  return table;
}

const std::vector<KeySpec>& modifier_keys() {
  static const std::vector<KeySpec> table = {
      {"as", false, "names what the verb gives; with `use`, a map `{its name: my name}`"},
      {"when", false, "a condition; where it does not hold, this rank leaves the step out"},
      {"raises", false,
       "the step must fail, on every rank that runs it, with a message that contains this text (`*` stands for "
       "anything); or `{message, when, within_ms}`. The case goes on"},
      {"steps", false, "the block of `observe`, `hook`, `repeat`, `for_each` and `if`"},
      {"else", false, "what `if` runs instead"},
      {"among", false, "the branches of `choose`: a map from value to steps"},
      {"with", false, "the arguments of the routine that `use` runs"},
      {"place", false,
       "a name: the step's own collectives agree with those of other steps of this name. Without it all ranks issue a "
       "collective at one line"},
      {"note", false, "a remark that `explain` and failures show"},
  };
  return table;
}

std::vector<std::string> names_of(const std::vector<KeySpec>& keys) {
  std::vector<std::string> names;
  names.reserve(keys.size());
  for (const KeySpec& key : keys) names.emplace_back(key.name);
  return names;
}

const std::vector<std::string>& step_modifiers() {
  static const std::vector<std::string> names = names_of(modifier_keys());
  return names;
}

}  // namespace lockstep::scenario
