// expect_events: the events of the parallel APIs within a window, and their order.
#include <algorithm>
#include <set>

#include "harness/run/checks/event_texts.hpp"
#include "harness/run/live_run.hpp"
#include "harness/run/observe/observation.hpp"
#include "harness/run/verbs/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

using Texts = std::vector<std::string>;

// The kinds of events to check: `kinds` if given, otherwise the kinds in the texts.
std::set<parallel::EventKind> kinds_of(const Texts& given, std::initializer_list<const Texts*> named) {
  std::set<parallel::EventKind> kinds;
  for (const std::string& kind : given) kinds.insert(event_kind(kind));
  std::set<parallel::EventKind> in_texts;
  for (const Texts* texts : named)
    for (const std::string& text : *texts) in_texts.insert(parse_event(text).kind);
  if (given.empty()) return in_texts;
  for (const parallel::EventKind kind : in_texts)
    if (!kinds.contains(kind)) throw Error(str("`", name_of(kind), "` is not among the `kinds`"));
  return kinds;
}

std::string listed(const Texts& texts, std::size_t from = 0) {
  constexpr std::size_t most = 40;
  if (from >= texts.size()) return "nothing";
  std::string text;
  for (std::size_t i = from; i < std::min(texts.size(), from + most); ++i) text += str(i == from ? "" : ", ", texts[i]);
  if (texts.size() > from + most) text += str(" and ", texts.size() - from - most, " more");
  return text;
}

std::string exactly_off(const Texts& seen, const Texts& wanted) {
  const auto [at, want] = std::mismatch(seen.begin(), seen.end(), wanted.begin(), wanted.end());
  if (at == seen.end() && want == wanted.end()) return {};
  const auto position = static_cast<std::size_t>(at - seen.begin());
  return str("event ", position, " is ", at == seen.end() ? "missing" : str("`", *at, "`"), ", expected ",
             want == wanted.end() ? "no more" : str("`", *want, "`"), ". Seen: ", listed(seen));
}

// Finds each text after the previous one. Other events may come between them.
std::string in_order_off(const Texts& seen, const Texts& wanted) {
  auto from = seen.begin();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto found = std::find(from, seen.end(), wanted[i]);
    if (found == seen.end())
      return str("no `", wanted[i], "`", i == 0 ? "" : str(" after `", wanted[i - 1], "`"), ". Seen: ", listed(seen));
    from = found + 1;
  }
  return {};
}

std::string never_off(const Texts& seen, const Texts& forbidden) {
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (std::find(forbidden.begin(), forbidden.end(), seen[i]) != forbidden.end())
      return str("`", seen[i], "` is event ", i, ". Seen: ", listed(seen));
  return {};
}

// The `model` of the step, otherwise the only model that is bound to a name of the scope.
ModuleMatch model_of(const StepCall& call) {
  if (call.has("model")) return call.module("model");
  const std::vector<ModuleMatch> models = outermost_modules(call.scope);
  if (models.size() == 1) return models.front();
  std::string names;
  for (const ModuleMatch& model : models) names += str(names.empty() ? "" : ", ", model.path);
  throw Error(models.empty() ? str("the scope has no model whose events can be checked")
                             : str("there are several models: ", names),
              "give `model`");
}

// A path under `never` that has no events in any window is an error: the check could never fail.
void check_never(const Texts& never, const ModuleMatch& model) {
  const Texts owners = paths_of_owners(model.module);
  for (const std::string& text : never) {
    const std::string path = parse_event(text).path;
    if (std::find(owners.begin(), owners.end(), path) == owners.end())
      throw Error(str("nothing at `", path, "` has events"),
                  owners.empty() ? str("apply fully_shard or activation_checkpoint first")
                                 : str("events come from ", listed(owners)));
  }
}

}  // namespace

Value expect_events(StepCall& call) {
  const Value during = call.value("during");
  const Observation& window = *during.as_observation("during");
  const Texts exactly = call.words("exactly"), in_order = call.words("in_order"), never = call.words("never");
  if (!window.has_all_events)
    throw Error(
        str("this rank has recorded ", parallel::most_events, " events and keeps no more, so the window is cut"),
        "observe earlier in the case, or repeat less");
  if (!call.has("exactly") && !call.has("in_order") && !call.has("never"))
    throw Error("expect_events has nothing to check", "give `exactly`, `in_order` or `never`");
  for (const char* name : {"in_order", "never"})
    if (call.has(name) && call.words(name).empty()) throw Error(str("`", name, "` lists no event"));
  const std::set<parallel::EventKind> kinds = kinds_of(call.words("kinds"), {&exactly, &in_order, &never});
  if (kinds.empty()) throw Error("expect_events names no kind of event", "give `kinds`");
  const ModuleMatch model = model_of(call);
  for (const Texts* texts : {&exactly, &in_order, &never})
    for (const std::string& text : *texts) check_paths(parse_event(text), model.module, model.path);
  check_never(never, model);
  Texts seen;
  bool silent = true;  // no event of this model, of any kind
  for (const parallel::ParallelEvent& event : window.events) {
    if (kinds.contains(event.kind)) seen.push_back(event_text(event, model.module, model.path));
    silent = silent && path_of_owner(event, model.module, model.path).empty();
  }
  const Site site = call.site();
  // In a window without any event of the model the check is trivial.
  const auto judge = [&](bool given, const std::string& off) {
    if (!given) return;
    (silent ? call.live().evidence().trivial : call.live().evidence().orders_checked) += 1;
    if (!off.empty()) call.live().fail(site, off);
  };
  judge(call.has("exactly"), exactly_off(seen, exactly));
  judge(call.has("in_order"), in_order_off(seen, in_order));
  judge(call.has("never"), never_off(seen, never));
  return Value();
}

}  // namespace lockstep::run::verbs
