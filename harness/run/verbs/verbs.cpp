#include "harness/run/verbs/verbs.hpp"

#include <algorithm>
#include <array>
#include <new>

#include "harness/run/live_run.hpp"
#include "harness/run/trace/dry_run.hpp"

namespace lockstep::run {

namespace {

using Implementation = Value (*)(StepCall&);

constexpr Implementation implementations[] = {
#define LOCKSTEP_VERB(id, name, group, block, signature, doc) &verbs::id,
#include "harness/scenario/verbs.def"
#undef LOCKSTEP_VERB
};

}  // namespace

Value run_verb(StepCall& call) {
  try {
    return implementations[static_cast<std::size_t>(call.step.verb)](call);
  } catch (const std::bad_alloc&) {
    throw Error(str(scenario::name_of(call.step.verb), ": the host has no memory left for the step's values"),
                "use smaller sizes");
  }
}

LiveRun& StepCall::live() const {
  LOCKSTEP_CHECK(live_run != nullptr, "a dry run performs ", scenario::name_of(step.verb), ", which only a run can");
  return *live_run;
}

bool StepCall::has(std::string_view name) const {
  return scenario::spec_of(step.verb).index_of(name).has_value() && step.argument(name) != nullptr;
}

bool StepCall::given(std::string_view name) const {
  const std::optional<std::size_t> index = scenario::spec_of(step.verb).index_of(name);
  LOCKSTEP_CHECK(index.has_value(), scenario::name_of(step.verb), " has no argument ", name);
  return *index < step.given.size() && step.given[*index];
}

const scenario::Expr& StepCall::expr(std::string_view name) const {
  const scenario::Expr* found = step.argument(name);
  if (!found) throw Error(str(scenario::name_of(step.verb), " needs `", name, "`"));
  return *found;
}

Value StepCall::value(std::string_view name) const {
  const scenario::Expr* found = step.argument(name);
  Value value = found ? evaluate(*found, scope) : Value();
  if (live_run != nullptr)
    live_run->control().argument(name, value);
  else
    LOCKSTEP_CHECK(DryRun::reads(step.verb, name), "the dry run of ", scenario::name_of(step.verb), " reads `", name,
                   "`, on which its plan is said not to depend");
  return value;
}

namespace {

void check_range(const scenario::Step& step, std::string_view name, double number) {
  const scenario::VerbSpec& spec = scenario::spec_of(step.verb);
  const std::optional<std::size_t> index = spec.index_of(name);
  const std::string why = index ? scenario::out_of_range(name, number, spec.arguments[*index].range) : std::string();
  if (!why.empty()) throw Error(why);
}

[[noreturn]] void refuse_empty_list(std::string_view name) {
  throw Error(str("`", name, "` is an empty list"), "guard the step with `when`");
}

}  // namespace

std::int64_t StepCall::integer(std::string_view name) const {
  const std::int64_t number = value(name).as_int(name);
  check_range(step, name, static_cast<double>(number));
  return number;
}

double StepCall::number(std::string_view name) const {
  const double number = value(name).as_number(name);
  check_range(step, name, number);
  return number;
}

std::optional<double> StepCall::maybe_number(std::string_view name) const {
  if (!has(name)) return std::nullopt;
  return number(name);
}

std::optional<bool> StepCall::maybe_boolean(std::string_view name) const {
  if (!has(name)) return std::nullopt;
  return boolean(name);
}

std::string StepCall::text(std::string_view name) const {
  const std::string found = value(name).as_text(name);
  const scenario::VerbSpec& spec = scenario::spec_of(step.verb);
  const std::optional<std::size_t> index = spec.index_of(name);
  // The name of a device is checked where it is looked up, because it may have an index.
  if (!index || spec.arguments[*index].type != scenario::ArgType::choice || name == "device") return found;
  const std::string why = scenario::unknown_choice(spec.arguments[*index], found);
  if (!why.empty()) throw Error(why);
  return found;
}

std::vector<std::string> StepCall::words(std::string_view name) const {
  std::vector<std::string> result;
  const Value found = value(name);
  if (found.is_none()) return result;
  if (!found.is(Value::Kind::list)) return {to_text(found)};
  for (const Value& item : found.as_list(name)) result.push_back(item.as_text(str("an item of `", name, "`")));
  return result;
}

std::vector<ModuleMatch> StepCall::modules(std::string_view name) const {
  std::vector<ModuleMatch> result;
  const std::vector<std::string> paths = words(name);
  // A step needs a module to work on, while `ignored` and the lists of `prefetch` may be empty.
  if (paths.empty() && name == "modules") refuse_empty_list(name);
  for (const std::string& path : paths)
    for (ModuleMatch& found : find_modules(path, scope))
      if (std::none_of(result.begin(), result.end(), [&](const ModuleMatch& at) { return at.module == found.module; }))
        result.push_back(std::move(found));
  return result;
}

std::vector<TensorMatch> StepCall::parameters(std::string_view name) const {
  std::vector<TensorMatch> result;
  const std::vector<std::string> paths = words(name);
  if (paths.empty() && name == "parameters") refuse_empty_list(name);
  for (const std::string& path : paths)
    for (TensorMatch& found : find_parameters(path, scope))
      if (std::none_of(result.begin(), result.end(),
                       [&](const TensorMatch& at) { return at.tensor().same_as(found.tensor()); }))
        result.push_back(std::move(found));
  return result;
}

ModuleMatch StepCall::module(std::string_view name) const {
  std::vector<ModuleMatch> found = modules(name);
  if (found.size() != 1) throw Error(str("`", name, "` must name one module, not ", found.size()));
  return found.front();
}

std::string StepCall::source(std::string_view name) const { return to_text(expr(name)); }

}  // namespace lockstep::run
