// expect_events: what the parallel APIs did within a window, and in which order.
#include <algorithm>
#include <set>

#include "harness/run/observation.hpp"
#include "harness/run/verbs.hpp"

namespace lockstep::run::verbs {

namespace {

using Texts = std::vector<std::string>;

std::string kind_of(const std::string& text) {
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || space == 0 || space + 1 == text.size())
    throw Error(str("`", text, "` is no event"), "write the kind and the path, such as `unshard layers.0`");
  return text.substr(0, space);
}

// The kinds that are looked at: those asked for, else those that the texts name.
std::set<parallel::EventKind> kinds_of(const Texts& asked, std::initializer_list<const Texts*> named) {
  std::set<parallel::EventKind> kinds;
  for (const std::string& kind : asked) kinds.insert(event_kind(kind));
  std::set<parallel::EventKind> in_texts;
  for (const Texts* texts : named)
    for (const std::string& text : *texts) in_texts.insert(event_kind(kind_of(text)));
  if (asked.empty()) return in_texts;
  for (const parallel::EventKind kind : in_texts)
    if (!kinds.contains(kind)) throw Error(str("`", name_of(kind), "` is not among the `kinds` looked at"));
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

// Each text once, after the one before it; others may stand between.
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

std::string never_off(const Texts& seen, const Texts& barred) {
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (std::find(barred.begin(), barred.end(), seen[i]) != barred.end())
      return str("`", seen[i], "` is event ", i, ". Seen: ", listed(seen));
  return {};
}

}  // namespace

Value expect_events(StepCall& call) {
  const Value during = call.value("during");
  const Observation& window = *during.as_observation("during");
  const Texts exactly = call.words("exactly"), in_order = call.words("in_order"), never = call.words("never");
  if (!call.has("exactly") && in_order.empty() && never.empty())
    throw Error("expect_events says nothing", "give `exactly`, `in_order` or `never`");
  const std::set<parallel::EventKind> kinds = kinds_of(call.words("kinds"), {&exactly, &in_order, &never});
  if (kinds.empty()) throw Error("expect_events looks at no kind of events", "give `kinds`");
  ModuleAt model;
  if (call.has("model")) model = call.module("model");
  Texts seen;
  for (const parallel::ParallelEvent& event : window.events)
    if (kinds.contains(event.kind)) seen.push_back(event_text(event, model.module, model.path));
  const Site site = call.in.site_of(call.step, call.scope);
  // That something did not happen says nothing of a window in which nothing did.
  const bool silent = window.events.empty();
  const auto judge = [&](bool asked, const std::string& off) {
    if (!asked) return;
    (silent ? call.in.evidence().trivial : call.in.evidence().orders_checked) += 1;
    if (!off.empty()) call.in.fail(site, off);
  };
  judge(call.has("exactly"), exactly_off(seen, exactly));
  judge(!in_order.empty(), in_order_off(seen, in_order));
  judge(!never.empty(), never_off(seen, never));
  return Value();
}

}  // namespace lockstep::run::verbs
