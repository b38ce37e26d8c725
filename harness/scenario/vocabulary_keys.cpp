// The keys of scenario files, routine files, models and steps, with their meaning.
#include "harness/scenario/vocabulary.hpp"

namespace lockstep::scenario {

const std::vector<KeySpec>& scenario_keys() {
  static const std::vector<KeySpec> table = {
      {"scenario", true, "the path of the file below `scenarios/`, without `.yaml`"},
      {"summary", true, "one line: the behavior that the scenario shows"},
      {"mirrors", false, "`{document, test, number}` of the test that the scenario mirrors; the number is optional"},
      {"see", false, "links, as a list"},
      {"ranks", true,
       "`{world_size: [2, 8], launch: process}`: the world sizes to run at; `launch` is process (the default), thread, "
       "or "
       "a list of both"},
      {"device", false,
       "the devices that the scenario can run on, by default `[cpu, sim, cuda]`. `--device` chooses one. Without it "
       "the "
       "device is cpu, or the first of the list that the build has"},
      {"parameters", false,
       "constants by name, such as `{seed: 42}`; `--set seed=7` replaces a constant by a value of the same kind"},
      {"matrix", false,
       "`{name: [value, ...]}`, or `{name: {label: {entry: value}}}`; expressions then use `name.entry` and "
       "`name.label`. "
       "Every combination of values is a case; the first name varies slowest"},
      {"skip", false, "a list of `{when: condition, reason: text}`: cases that are not run"},
      {"expect_failure", false,
       "a list of the same form: cases that must fail (verdict XFAIL; XPASS if the case passes). With `line`, `rank` "
       "and `message`, a failure on another line or rank or with another message is still a FAIL. `also` lists the "
       "other failures in order, as `rank 1: text`, and `flight_recorder` is a part of what `lockstep explain-hang` "
       "says about the case. `verdict` is FAIL unless it names another one: HANG, CRASH, INVALID or UNSUPPORTED"},
      {"evidence", false,
       "`{comparisons: 2 * world_size, trivial: 0}`: the evidence that the case must gather to pass, of all ranks "
       "together. Its keys are those of the results (harness/README.md), and `rtol`, `atol` and `of_largest` of the "
       "loosest tolerance; the values are evaluated before launch"},
      {"timeout", false,
       "the time limit of a case in seconds, of all its stages together, by default 60; `--timeout` overrides it"},
      {"deadline", false,
       "the seconds that a collective waits for its ranks, for a scenario in which one waits in vain; otherwise those "
       "of "
       "`--deadline`, by default 10"},
      {"limits", false,
       "`{memory_mb: 2048, output_mb: 64}`: the MiB that each rank may use for tensors and values together, and the "
       "MiB "
       "that it may record and write to files. A step that asks for more fails. The default for memory is 2048, or the "
       "ranks' share of half the machine's memory where that is less. `--memory-mb` and `--output-mb` override both"},
      {"tags", false, "words that `--tag` selects scenarios by"},
      {"bits", false,
       "`required`: every `expect_equal` of float32 values requires the same bits; `{reported: reason}`: different "
       "bits "
       "are reported but do not fail, for this reason"},
      {"sum_order", false,
       "the order in which sums over ranks are added: `fixed` (the default) has the same bits on every device; "
       "`library` "
       "is that of NCCL, needs a GPU per rank and is UNSUPPORTED elsewhere. Where a check requires the same bits of "
       "numbers, it then compares with a tolerance, and the results count it under `bits_relaxed`. `--sum-order` "
       "overrides it"},
      {"plan", false, "`{unplanned: reason}`: the collectives cannot be planned, for this reason"},
      {"models", false, "models that the file defines"},
      {"steps", false, "the steps of every rank, in order; a file has either `steps` or `stages`"},
      {"stages", false,
       "`[{name, world_size, steps}]`: each stage runs on newly launched ranks; only the files in the case's folder "
       "are "
       "kept between stages"},
  };
  return table;
}

const std::vector<KeySpec>& routine_keys() {
  static const std::vector<KeySpec> table = {
      {"routine", true, "the name of the file, without `.yaml`"},
      {"summary", true, "one line: the effect of the routine"},
      {"parameters", false, "the parameters: `name: type`, or `name: {type: ..., default: ...}`"},
      {"gives", false, "names of the routine that its caller may bind with `as`"},
      {"models", false, "models that the routine defines"},
      {"steps", true, "the steps of the routine, in order"},
  };
  return table;
}

const std::vector<KeySpec>& model_keys() {
  static const std::vector<KeySpec> table = {
      {"arguments", false, "`{dim: required, mult: 4}`: the arguments of the model, with defaults"},
      {"children", false, "modules by name, built in this order"},
      {"parameters", false, "tensors by name, drawn in this order after the children are built"},
      {"buffers", false, "tensors by name, drawn in this order after the parameters"},
      {"non_persistent_buffers", false,
       "buffers that state dicts and checkpoints leave out, drawn in this order after the others"},
      {"forward", false, "the output, as an expression of one input named `x`"},
      {"methods", false,
       "`name(input, option=default): expression`; instead of the expression a map of names and expressions whose last "
       "name is `return`"},
  };
  return table;
}

const std::vector<KeySpec>& modifier_keys() {
  static const std::vector<KeySpec> table = {
      {"as", false, "the name for the verb's result; with `use`, a map `{its name: my name}`"},
      {"when", false, "a condition; a rank on which it does not hold skips the step"},
      {"raises", false,
       "the step must fail, on every rank that runs it, with a message that contains this text (`*` matches any text); "
       "or "
       "`{message, when, within_ms}`. After the error the rank waits until all that it has issued is done, collectives "
       "included; no later check finds a wait that is missing before. The case continues with the next step"},
      {"steps", false, "the inner steps of `observe`, `hook`, `repeat`, `for_each` and `if`"},
      {"else", false, "the steps that `if` runs when its condition does not hold"},
      {"among", false, "the branches of `choose`: a map from value to steps"},
      {"with", false, "the arguments of the routine that `use` runs"},
      {"place", false,
       "a name for the step's own collectives: they match those of other steps with the same name. Without it all "
       "ranks "
       "must issue a collective on the same line"},
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
