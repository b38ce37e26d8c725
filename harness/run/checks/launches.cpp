#include "harness/run/checks/launches.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>

#include "engine/core/error.hpp"
#include "engine/device/stream.hpp"
#include "harness/scenario/diagnostics.hpp"

namespace lockstep::run {

namespace {

using Texts = LaunchCheck::Texts;
using device::TracedLaunch;

// A launch of a check: "compute linear#2".
struct LaunchText {
  std::string stream;
  std::string name;
  std::size_t number = 0;  // from 1; 0: the only one
  std::string kind() const { return str(stream, " ", name); }
};

LaunchText parse_launch(const std::string& text) {
  LaunchText launch;
  const std::size_t space = text.find(' '), hash = text.find('#');
  const std::string digits = hash == std::string::npos ? "1" : text.substr(hash + 1);
  const bool is_number = !digits.empty() && digits.size() < 6 && digits.front() != '0' &&
                         digits.find_first_not_of("0123456789") == std::string::npos;
  if (space == std::string::npos || space == 0 || space + 1 >= std::min(hash, text.size()) || !is_number)
    throw Error(str("`", text, "` is no launch"), "write the stream and the name, such as `compute linear#2`");
  launch.stream = text.substr(0, space);
  launch.name = text.substr(space + 1, hash == std::string::npos ? hash : hash - space - 1);
  if (hash != std::string::npos) launch.number = std::stoul(digits);
  return launch;
}

struct PairText {
  LaunchText first, second;
};

PairText parse_pair(const std::string& text, const char* between) {
  const std::size_t at = text.find(between);
  if (at == std::string::npos)
    throw Error(str("`", text, "` names no two launches"), str("write two launches with `", between, "` between them"));
  return {parse_launch(text.substr(0, at)), parse_launch(text.substr(at + std::string(between).size()))};
}

// `lockstep run --trace-bits` adds launches of this name (observe/trace_bits.cpp). They are none of the scenario.
constexpr std::string_view hashing = "trace_bits";

constexpr const char* before_text = " < ";
constexpr const char* beside_text = " | ";

const Texts& texts_of(const std::optional<Texts>& given) {
  static const Texts none;
  return given ? *given : none;
}

void check_stream(const std::string& name) {
  std::vector<std::string> known(static_cast<std::size_t>(device::num_roles));
  for (std::size_t i = 0; i < known.size(); ++i) known[i] = name_of(static_cast<device::Role>(i));
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  const std::string similar = scenario::nearest_word(name, known);
  throw Error(
      str("`", name, "` is no stream", similar.empty() ? std::string() : str("; did you mean `", similar, "`?")));
}

std::string place_of(const TracedLaunch& launch) {
  return str("line ", launch.scenario_line,
             launch.iteration < 0 ? std::string() : str(" (iteration ", launch.iteration, ")"));
}

std::string listed(const Texts& texts) {
  constexpr std::size_t most = 60;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, texts.size()); ++i) text += str(i ? ", " : "", texts[i]);
  if (texts.size() > most) text += str(" and ", texts.size() - most, " more");
  return texts.empty() ? "nothing" : text;
}

// The launches of the check's device within its window, in the order of issue.
class Window {
 public:
  Window(const device::Trace& trace, const LaunchCheck& check) : check_(check), trace_(trace) {
    for (const device::TracedStream& stream : trace.streams)
      if (stream.name.starts_with(check.device + "/"))
        streams_.emplace_back(stream.id, stream.name.substr(check.device.size() + 1));
    for (std::size_t i = check.window.first; i < check.window.last; ++i) {
      if (name_of_stream(trace.launches[i]).empty() || trace.launches[i].name == hashing) continue;
      launches_.push_back(&trace.launches[i]);
      texts_.push_back(text_of(trace.launches[i]));
    }
  }

  // The names of the check that nothing in the whole case has: they would make a check hold that means another name.
  std::string unknown() const {
    Texts streams = check_.streams;
    for (const std::optional<Texts>* texts : {&check_.exactly, &check_.in_order, &check_.never})
      for (const std::string& text : texts_of(*texts)) streams.push_back(parse_launch(text).stream);
    for (const std::string& stream : streams)
      if (std::none_of(streams_.begin(), streams_.end(), [&](const auto& known) { return known.second == stream; }))
        return str("no launch of this case is on the stream `", stream, "` of ", check_.device);
    for (const std::string& text : texts_of(check_.never)) {
      const std::string name = parse_launch(text).name;
      if (std::none_of(trace_.launches.begin(), trace_.launches.end(),
                       [&](const TracedLaunch& one) { return name == one.name; }))
        return str("no recorded launch of this case has the name `", name, "` of `never`");
    }
    return {};
  }

  std::string names_off() const {
    std::set<std::string> streams(check_.streams.begin(), check_.streams.end());
    if (streams.empty())
      for (const std::optional<Texts>* texts : {&check_.exactly, &check_.in_order})
        for (const std::string& text : texts_of(*texts)) streams.insert(parse_launch(text).stream);
    Texts seen;
    for (std::size_t i = 0; i < launches_.size(); ++i)
      if (streams.contains(name_of_stream(*launches_[i]))) seen.push_back(texts_[i]);
    if (check_.exactly && seen != *check_.exactly) {
      const auto [at, want] = std::mismatch(seen.begin(), seen.end(), check_.exactly->begin(), check_.exactly->end());
      return str("launch ", at - seen.begin(), " is ", at == seen.end() ? "missing" : str("`", *at, "`"), ", expected ",
                 want == check_.exactly->end() ? "no more" : str("`", *want, "`"), ". Seen: ", listed(seen));
    }
    auto from = seen.begin();
    for (const std::string& wanted : texts_of(check_.in_order)) {
      const auto found = std::find(from, seen.end(), wanted);
      if (found == seen.end()) return str("no `", wanted, "` in this order. Seen: ", listed(seen));
      from = found + 1;
    }
    for (const std::string& forbidden : texts_of(check_.never))
      if (std::find(texts_.begin(), texts_.end(), forbidden) != texts_.end())
        return str("there is a launch `", forbidden, "`. Seen: ", listed(texts_));
    return {};
  }

  std::string pairs_off() const {
    for (const std::string& text : texts_of(check_.ordered)) {
      const PairText pair = parse_pair(text, before_text);
      const TracedLaunch &first = find(pair.first), &second = find(pair.second);
      if (!ordered(first, second))
        return str("`", text, "`: nothing orders them, ", place_of(first), " and ", place_of(second));
    }
    for (const std::string& text : texts_of(check_.concurrent)) {
      const PairText pair = parse_pair(text, beside_text);
      const TracedLaunch &first = find(pair.first), &second = find(pair.second);
      const std::string places = str(", ", place_of(first), " and ", place_of(second));
      if (ordered(first, second)) return str("`", text, "`: the second waits for the first", places);
      if (ordered(second, first)) return str("`", text, "`: the first waits for the second", places);
    }
    return {};
  }

  // Each launch has ended, and began after its issue and after the ends of those that it is ordered after. The clocks
  // of a device and of the host agree to some microseconds only, so streams of cuda are compared with themselves alone.
  std::string times_off() const {
    const bool one_clock = !check_.device.starts_with("cuda");
    for (std::size_t i = 0; i < launches_.size(); ++i) {
      const TracedLaunch& one = *launches_[i];
      const std::string name = str("`", texts_[i], "` of line ", one.scenario_line);
      if (one.begin_ns == 0 || one.end_ns == 0) return name + " did not end";
      if (one.issued_ns == 0 || one.begin_ns < one.issued_ns || one.end_ns < one.begin_ns)
        return name + " has times out of order";
      // On cpu a collective begins when it is issued, and ends when something waits for it.
      if ((one.resumed_ns != 0) != (one.deferred && check_.device == "cpu"))
        return str(name, " has ", one.resumed_ns != 0 ? "two halves" : "no second half");
      if (one.resumed_ns != 0 && (one.resumed_ns < one.begin_ns || one.resumed_ns > one.end_ns))
        return name + " was resumed outside its time";
      if (i > 0 && one.issued_ns < launches_[i - 1]->issued_ns) return name + " is not in the order of issue";
      std::set<int> compared;  // the last launch of each stream before this one stands for those before it
      for (std::size_t j = i; j-- > 0;) {
        const TracedLaunch& other = *launches_[j];
        if (!ordered(other, one) || (!one_clock && other.stream != one.stream)) continue;
        if (!compared.insert(other.stream).second) continue;
        // The first half of a collective may run before the second half of another one on its stream.
        const bool in_halves = other.stream == one.stream && other.resumed_ns != 0 && one.resumed_ns != 0;
        if (other.end_ns > (in_halves ? one.resumed_ns : one.begin_ns))
          return str(name, " began before the end of `", texts_[j], "`, which it is ordered after");
        if (compared.size() == streams_.size()) break;
      }
    }
    return {};
  }

 private:
  std::string name_of_stream(const TracedLaunch& launch) const {
    for (const auto& [id, name] : streams_)
      if (id == launch.stream) return name;
    return {};
  }
  std::string text_of(const TracedLaunch& launch) const { return str(name_of_stream(launch), " ", launch.name); }

  const TracedLaunch& find(const LaunchText& wanted) const {
    std::vector<const TracedLaunch*> found;
    for (std::size_t i = 0; i < launches_.size(); ++i)
      if (texts_[i] == wanted.kind()) found.push_back(launches_[i]);
    if (found.empty() || wanted.number > found.size() || (wanted.number == 0 && found.size() > 1))
      throw Error(str("`", wanted.kind(), wanted.number == 0 ? std::string() : str("#", wanted.number),
                      "`: the window has ", found.size(), " of them. Seen: ", listed(texts_)));
    return *found[std::max<std::size_t>(wanted.number, 1) - 1];
  }

  const LaunchCheck& check_;
  const device::Trace& trace_;
  std::vector<std::pair<int, std::string>> streams_;  // of the device: id and role
  std::vector<const TracedLaunch*> launches_;
  Texts texts_;  // of launches_
};

std::int64_t total(const device::MemorySample& sample) {
  return std::accumulate(sample.bytes.begin(), sample.bytes.end(), std::int64_t{0});
}

// The samples of memory in the trace against the statistics.
std::string memory_off(const device::Trace& trace, std::int64_t peak_bytes) {
  std::int64_t peak = 0, time = 0;
  for (const device::MemorySample& sample : trace.memory) {
    if (sample.time_ns <= time) return "the samples of memory are not in order of time";
    time = sample.time_ns;
    peak = std::max(peak, total(sample));
  }
  if (peak != peak_bytes) return str("the trace has a peak of ", peak, " bytes, the statistics one of ", peak_bytes);
  if (trace.memory.empty() || trace.memory.back().bytes != device::memory_stats().current)
    return "the last sample of memory in the trace is not that of the statistics";
  if (trace.memory.size() > device::TraceOptions{}.max_samples)
    return str("the trace has ", trace.memory.size(), " samples of memory");
  return {};
}

}  // namespace

void check_launch_texts(const LaunchCheck& check) {
  for (const std::string& stream : check.streams) check_stream(stream);
  const auto given = [](const char* name, const std::optional<Texts>& texts) {
    if (texts && texts->empty()) throw Error(str("`", name, "` lists no launch"));
  };
  given("in_order", check.in_order);
  given("never", check.never);
  given("ordered", check.ordered);
  given("concurrent", check.concurrent);
  if (check.exactly && check.exactly->empty() && check.streams.empty())
    throw Error("`exactly` names no stream", "give `streams`");
  for (const std::optional<Texts>* texts : {&check.exactly, &check.in_order, &check.never})
    for (const std::string& text : texts_of(*texts)) {
      const LaunchText launch = parse_launch(text);
      check_stream(launch.stream);
      if (launch.number != 0) throw Error(str("`", text, "`: only `ordered` and `concurrent` number their launches"));
      const bool is_chosen =
          check.streams.empty() || texts == &check.never ||
          std::find(check.streams.begin(), check.streams.end(), launch.stream) != check.streams.end();
      if (!is_chosen) throw Error(str("`", launch.stream, "` is not among the `streams`"));
    }
  const auto check_pairs = [](const std::optional<Texts>& texts, const char* between) {
    for (const std::string& text : texts_of(texts)) {
      const PairText pair = parse_pair(text, between);
      check_stream(pair.first.stream);
      check_stream(pair.second.stream);
    }
  };
  check_pairs(check.ordered, before_text);
  check_pairs(check.concurrent, beside_text);
}

std::string launches_off(const device::Trace& trace, const LaunchCheck& check) {
  if (check.window.last > trace.launches.size())
    return str("the trace of this rank keeps ", trace.launches.size(), " launches, and the window ends after ",
               check.window.last, ". Observe earlier in the case");
  const Window window(trace, check);
  try {
    for (const std::string& off : {window.unknown(), window.names_off(), window.pairs_off(), window.times_off()})
      if (!off.empty()) return off;
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::size_t LaunchChecks::num_traced() {
  if (!device::tracing()) {
    device::start_trace({});
    memory_.emplace();
  }
  const device::Trace trace = device::trace();
  return trace.launches.size() + static_cast<std::size_t>(trace.num_dropped);
}

void LaunchChecks::judge(verdict::Evidence& evidence, const Fail& fail) const {
  if (checks_.empty()) return;
  const device::Trace trace = device::trace();
  for (const LaunchCheck& check : checks_) {
    (check.window.first == check.window.last ? evidence.trivial : evidence.orders_checked) += 1;
    if (const std::string off = launches_off(trace, check); !off.empty()) fail(check.site, off);
  }
  if (!memory_) return;
  if (const std::string off = memory_off(trace, memory_->peak_bytes()); !off.empty()) fail(checks_.back().site, off);
}

}  // namespace lockstep::run
