#include "harness/run/observe/observation.hpp"

#include <algorithm>

#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/core/text.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::run {

std::vector<const comm::LogEntry*> select(const Observation& observation, const CollectiveFilter& filter) {
  std::vector<const comm::LogEntry*> chosen;
  for (const comm::LogEntry& entry : observation.collectives) {
    if (entry.family == comm::Family::start_up && !filter.start_up) continue;
    if (entry.family == comm::Family::checkpoint && !filter.checkpoint) continue;
    if (entry.family == comm::Family::uncounted) continue;
    if (filter.phase && entry.phase != *filter.phase) continue;
    if (filter.dtype && entry.dtype != *filter.dtype) continue;
    if (!filter.groups.empty() &&
        std::find(filter.groups.begin(), filter.groups.end(), entry.group) == filter.groups.end())
      continue;
    chosen.push_back(&entry);
  }
  return chosen;
}

CollectiveCounts count_collectives(const std::vector<const comm::LogEntry*>& entries, bool bytes) {
  CollectiveCounts counts;
  for (const comm::LogEntry* entry : entries)
    counts[{std::string(name_of(entry->family)), std::string(name_of(entry->operation))}] += bytes ? entry->bytes : 1;
  return counts;
}

std::string list_collectives(const std::vector<const comm::LogEntry*>& entries, std::size_t limit) {
  std::string text;
  for (std::size_t i = 0; i < std::min(limit, entries.size()); ++i) {
    const comm::LogEntry& entry = *entries[i];
    text += str(i ? ", " : "", name_of(entry.family), "/", name_of(entry.operation), " of ", entry.bytes, " bytes in ",
                name_of(entry.phase), entry.owner.empty() ? "" : " for ", entry.owner);
    if (entry.scenario_line > 0) text += str(" (line ", entry.scenario_line, ")");
  }
  if (entries.size() > limit) text += str(" and ", entries.size() - limit, " more");
  return text;
}

namespace {

struct TrivialReadingCount {
  explicit TrivialReadingCount(RankContext&) {}
  std::int64_t count = 0;
};

std::int64_t& num_trivial_readings() { return RankContext::current().service<TrivialReadingCount>().count; }

// Whether an expression calls a module, or a function that creates or computes tensors.
bool calls_engine(const scenario::Expr& expr) {
  using scenario::FunctionKind;
  bool found = false;
  scenario::for_each_node(expr, [&found](const scenario::Expr& node) {
    if (node.kind != scenario::ExprKind::call) return;
    if (node.function == scenario::Function::none) {
      found = true;
      return;
    }
    const FunctionKind kind = scenario::spec_of(node.function).kind;
    found = found || (kind != FunctionKind::plain && kind != FunctionKind::object);
  });
  return found;
}

// The modules of each owner. An owner has several entries if routines used its name for several models.
struct Owners {
  explicit Owners(RankContext&) {}
  std::map<std::string, std::vector<std::vector<std::weak_ptr<nn::Module>>>> by_name;
};

Owners& owners() { return RankContext::current().service<Owners>(); }

std::string path_below(const nn::ModulePtr& model, const nn::Module* module) {
  for (const nn::NamedModule& entry : nn::named_modules(model))
    if (entry.module.get() == module) return entry.path.empty() ? "(root)" : entry.path;
  return {};
}

// The paths of these modules below the model, joined by `+`; empty if one of them is outside.
std::string joined_below(const nn::ModulePtr& model, const std::vector<std::weak_ptr<nn::Module>>& modules) {
  std::string text;
  for (const std::weak_ptr<nn::Module>& module : modules) {
    const nn::ModulePtr alive = module.lock();
    const std::string path = alive ? path_below(model, alive.get()) : std::string();
    if (path.empty()) return {};
    text += str(text.empty() ? "" : "+", path);
  }
  return text;
}

}  // namespace

void note_trivial_reading() { ++num_trivial_readings(); }
TrivialReadings::TrivialReadings() : num_before_(num_trivial_readings()) {}
bool TrivialReadings::any() const { return num_trivial_readings() > num_before_; }

bool does_work(const scenario::Step& step) {
  using scenario::Group;
  switch (scenario::spec_of(step.verb).group) {
    case Group::models:
    case Group::parallel:
    case Group::training:
    case Group::collectives:
    case Group::state:
      return true;
    default:
      return step.verb == scenario::Verb::let &&
             std::any_of(step.entries.begin(), step.entries.end(),
                         [](const scenario::NamedExpr& entry) { return calls_engine(*entry.value); });
  }
}

void note_owner(const std::string& owner, const std::vector<nn::ModulePtr>& modules) {
  owners().by_name[owner].emplace_back(modules.begin(), modules.end());
}

std::string path_of_owner(const parallel::ParallelEvent& event, const nn::ModulePtr& model,
                          const std::string& model_name) {
  const std::string& owner = event.owner;
  const auto found = owners().by_name.find(owner);
  if (found == owners().by_name.end()) {
    if (owner == model_name) return "(root)";
    return owner.starts_with(model_name + ".") ? owner.substr(model_name.size() + 1) : std::string();
  }
  const nn::ModulePtr of = event.module.lock();
  const auto is_of = [&of](const std::weak_ptr<nn::Module>& module) { return of && module.lock() == of; };
  std::string path;
  for (const auto& modules : found->second) {
    if (std::none_of(modules.begin(), modules.end(), is_of)) continue;
    if (std::string joined = joined_below(model, modules); !joined.empty()) path = std::move(joined);
  }
  return path;
}

std::vector<std::string> paths_of_owners(const nn::ModulePtr& model) {
  std::vector<std::string> paths;
  for (const auto& [name, all] : owners().by_name)
    for (const auto& modules : all)
      if (std::string path = joined_below(model, modules); !path.empty()) paths.push_back(std::move(path));
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

std::string event_text(const parallel::ParallelEvent& event, const nn::ModulePtr& model,
                       const std::string& model_name) {
  const std::string path = path_of_owner(event, model, model_name);
  return str(name_of(event.kind), " ", path.empty() ? event.owner : path);
}

parallel::EventKind event_kind(const std::string& name) {
  std::vector<std::string> known;
  for (int i = 0; i < parallel::num_event_kinds; ++i) {
    const auto kind = static_cast<parallel::EventKind>(i);
    if (name_of(kind) == name) return kind;
    known.emplace_back(name_of(kind));
  }
  throw Error(str("unknown kind of event `", name, "`", scenario::suggestion(name, known)));
}

}  // namespace lockstep::run
