#include "harness/run/observe/timeline.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include "engine/autograd/checkpoint.hpp"
#include "engine/comm/process_group.hpp"
#include "engine/core/json_text.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/device/trace.hpp"
#include "harness/run/observe/observation.hpp"

namespace lockstep::run {

using scenario::Expr;
using scenario::ExprKind;
using scenario::Op;
using scenario::Verb;

namespace {

constexpr std::size_t max_spans = 10000;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The log entries of launches, by the index of the launch in the trace. The launch of a collective is issued right
// after its log entry.
std::map<std::size_t, const comm::LogEntry*> collectives_of(const std::vector<device::TracedLaunch>& launches) {
  const std::vector<comm::LogEntry>& log = comm::log();
  std::map<std::size_t, const comm::LogEntry*> found;
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const device::TracedLaunch& launch = launches[i];
    if (!launch.deferred || launch.tag <= last || launch.tag > log.size()) continue;  // not a logged collective
    const comm::LogEntry& entry = log[launch.tag - 1];
    if (name_of(entry.operation) != launch.name) continue;
    found[i] = &entry;
    last = launch.tag;
  }
  return found;
}

std::string collective_json(const comm::LogEntry& entry) {
  return str("{\"family\":\"", name_of(entry.family), "\",\"phase\":\"", name_of(entry.phase),
             "\",\"axis\":", json_text(entry.axis), ",\"group_size\":", entry.group_size, ",\"group\":", entry.group_id,
             ",\"sequence\":", entry.sequence, ",\"bytes\":", entry.bytes, ",\"owner\":", json_text(entry.owner), "}");
}

std::string memory_names() {
  std::string names;
  for (int i = 0; i < device::num_purposes; ++i)
    names += str(i ? "," : "", json_text(name_of(static_cast<device::Purpose>(i))));
  return names;
}

}  // namespace

struct Timeline::Spans {
  struct Entry {
    const char* what;  // step, module
    std::string name;
    int line;
    int iteration;
    std::int64_t begin_ns;
    std::int64_t end_ns = 0;
    const nn::Module* module = nullptr;
  };
  std::vector<Entry> list;
  std::vector<std::size_t> open;  // innermost last; a span that an error left open ends with the span around it
  std::int64_t num_dropped = 0;

  // Returns the index of the span, or max_spans if the list is full.
  std::size_t begin(const char* what, std::string name, int line, const nn::Module* module = nullptr) {
    if (list.size() >= max_spans) {
      ++num_dropped;
      return max_spans;
    }
    list.push_back({what, std::move(name), line, RankContext::current().iteration, now_ns(), 0, module});
    open.push_back(list.size() - 1);
    return list.size() - 1;
  }
  void end(std::size_t at) {
    if (std::find(open.begin(), open.end(), at) == open.end()) return;
    const std::int64_t now = now_ns();
    while (true) {
      const std::size_t last = open.back();
      list[last].end_ns = now;
      open.pop_back();
      if (last == at) return;
    }
  }
  void end_module(const nn::Module* module) {
    const auto at =
        std::find_if(open.rbegin(), open.rend(), [&](std::size_t index) { return list[index].module == module; });
    if (at != open.rend()) end(*at);
  }
};

Timeline::Span::~Span() {
  if (timeline_ != nullptr) timeline_->spans_->end(at_);
}

Timeline::Timeline() : spans_(std::make_shared<Spans>()) {
  device::start_trace({.tag = [] { return static_cast<std::uint64_t>(comm::log().size()); }});
}
Timeline::~Timeline() = default;

Timeline::Span Timeline::step(const scenario::Step& step) {
  std::string name(scenario::name_of(step.verb));
  if (!step.as.empty()) name += " " + step.as;
  return Span(this, spans_->begin("step", std::move(name), step.place.line));
}

void Timeline::after_step(const scenario::Step& step, const Scope& scope, const Value& result) {
  if (const nn::ModulePtr* model = bound_model(step.verb, result)) add_hooks(step.as, *model);
  if (step.verb == Verb::observe) {
    Window window;
    window.as = step.as;
    const Expr* purposes = step.argument("memory");
    const Value words = purposes == nullptr ? Value() : evaluate(*purposes, scope);
    if (words.is(Value::Kind::text)) window.purposes.push_back(words.as_text("memory"));
    if (words.is(Value::Kind::list))
      for (const Value& word : words.as_list("memory")) window.purposes.push_back(word.as_text("memory"));
    window.begin_ns = spans_->open.empty() ? 0 : spans_->list[spans_->open.back()].begin_ns;
    window.end_ns = now_ns();
    windows_[result.as_observation("observe")] = std::move(window);
  }
  if (step.verb != Verb::expect || windows_.empty()) return;
  const Expr* that = step.argument("that");
  if (that == nullptr) return;
  if (that->kind == ExprKind::list) {
    for (const auto& condition : that->children) note_bound(*condition, scope);
  } else {
    note_bound(*that, scope);
  }
}

// `a <= b` with one peak on the smaller side sets a bound for that peak: the observed peak plus b - a.
void Timeline::note_bound(const Expr& condition, const Scope& scope) {
  if (condition.kind != ExprKind::binary) return;
  const bool ascending = condition.op == Op::less || condition.op == Op::less_equal || condition.op == Op::equal;
  const bool descending = condition.op == Op::greater || condition.op == Op::greater_equal;
  if (!ascending && !descending) return;
  const Expr& smaller = *condition.children[ascending ? 0 : 1];
  const Expr& larger = *condition.children[ascending ? 1 : 0];
  std::vector<const Expr*> peaks;
  scenario::for_each_node(smaller, [&peaks](const Expr& node) {
    if (node.kind == ExprKind::attribute && node.name == "peak_bytes") peaks.push_back(&node);
  });
  if (peaks.size() != 1) return;
  try {
    const Value observed = evaluate(*peaks[0]->children[0], scope);
    const auto window = windows_.find(observed.as_observation("peak_bytes"));
    if (window == windows_.end()) return;
    const double spare =
        evaluate(larger, scope).as_number("a bound") - evaluate(smaller, scope).as_number("the bounded value");
    Bound bound;
    bound.window = window->second;
    bound.peak = window->first->peak_bytes;
    bound.bytes = bound.peak + static_cast<std::int64_t>(spare);
    bound.line = condition.line;
    bound.text = scenario::to_text(condition);
    bounds_.push_back(std::move(bound));
  } catch (const Error&) {
    // The check reports the error.
  }
}

void Timeline::add_hooks(const std::string& name, const nn::ModulePtr& root) {
  for (const nn::NamedModule& entry : nn::named_modules(root)) {
    const std::string path = full_path(name, entry.path);
    entry.module->add_pre_forward(
        [spans = spans_, path](nn::Module& module, nn::Inputs&) {
          spans->begin("module", recomputing() ? path + " (recomputed)" : path, RankContext::current().scenario_line,
                       &module);
        },
        nn::Module::Place::user, true);
    entry.module->add_post_forward(
        [spans = spans_](nn::Module& module, const nn::Inputs&, nn::Structure&) { spans->end_module(&module); },
        nn::Module::Place::user);
  }
}

void Timeline::write(const std::string& path, const RecordingHeader& header) const {
  const device::Trace trace = device::trace();
  std::string text = str("{", header_members("timeline", header), ",\"purposes\":[", memory_names(), "]}\n");
  for (const device::TracedStream& stream : trace.streams)
    text += str("{\"kind\":\"stream\",\"id\":", stream.id, ",\"name\":", json_text(stream.name), "}\n");
  const std::map<std::size_t, const comm::LogEntry*> collectives = collectives_of(trace.launches);
  for (std::size_t i = 0; i < trace.launches.size(); ++i) {
    const device::TracedLaunch& launch = trace.launches[i];
    if (launch.begin_ns == 0) continue;  // never started
    text += str("{\"kind\":\"launch\",\"name\":", json_text(launch.name), ",\"stream\":", launch.stream,
                ",\"issued\":", launch.issued_ns, ",\"begin\":", launch.begin_ns, ",\"resumed\":", launch.resumed_ns,
                ",\"end\":", launch.end_ns, ",\"iteration\":", launch.iteration, ",\"line\":", launch.scenario_line);
    if (const auto at = collectives.find(i); at != collectives.end())
      text += str(",\"collective\":", collective_json(*at->second));
    text += "}\n";
  }
  const std::int64_t now = now_ns();
  for (const Spans::Entry& span : spans_->list)
    text += str("{\"kind\":\"span\",\"what\":\"", span.what, "\",\"name\":", json_text(span.name),
                ",\"begin\":", span.begin_ns, ",\"end\":", span.end_ns == 0 ? now : span.end_ns,
                ",\"iteration\":", span.iteration, ",\"line\":", span.line, "}\n");
  for (const device::MemorySample& sample : trace.memory) {
    std::string bytes;
    for (const std::int64_t in_use : sample.bytes) bytes += str(bytes.empty() ? "" : ",", in_use);
    text += str("{\"kind\":\"memory\",\"time\":", sample.time_ns, ",\"bytes\":[", bytes, "]}\n");
  }
  for (const Bound& bound : bounds_) {
    std::string purposes;
    for (const std::string& purpose : bound.window.purposes)
      purposes += str(purposes.empty() ? "" : ",", json_text(purpose));
    text += str("{\"kind\":\"bound\",\"of\":", json_text(bound.window.as), ",\"purposes\":[", purposes,
                "],\"begin\":", bound.window.begin_ns, ",\"end\":", bound.window.end_ns, ",\"bytes\":", bound.bytes,
                ",\"peak\":", bound.peak, ",\"line\":", bound.line, ",\"text\":", json_text(bound.text), "}\n");
  }
  text += str("{\"kind\":\"end\",\"launches_dropped\":", trace.num_dropped, ",\"spans_dropped\":", spans_->num_dropped,
              "}\n");
  write_recording(path, text, "the timeline", "--timeline");
}

}  // namespace lockstep::run
