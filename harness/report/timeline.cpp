#include "harness/report/timeline.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

#include "engine/core/error.hpp"
#include "engine/core/json_text.hpp"
#include "harness/report/text.hpp"

namespace lockstep::report {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The file of one rank of one stage.
struct Piece {
  std::size_t stage = 0;
  int rank = 0;
  Json header;
  std::vector<Json> streams, launches, spans, memory, bounds;
  std::int64_t num_dropped = 0;
  bool complete = false;  // it has its last line
};

std::string path_of_piece(const std::string& prefix, std::size_t stage, int rank) {
  return str(prefix, ".stage-", stage, ".rank-", rank, ".jsonl");
}

// Reads the lines up to the first incomplete one. Returns whether there is a header.
bool read_piece(const std::string& path, Piece& piece) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  while (std::getline(in, line)) {
    Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) break;
    const std::string kind = json.value("kind", "");
    if (kind == "timeline")
      piece.header = std::move(json);
    else if (kind == "stream")
      piece.streams.push_back(std::move(json));
    else if (kind == "launch")
      piece.launches.push_back(std::move(json));
    else if (kind == "span")
      piece.spans.push_back(std::move(json));
    else if (kind == "memory")
      piece.memory.push_back(std::move(json));
    else if (kind == "bound")
      piece.bounds.push_back(std::move(json));
    else if (kind == "end") {
      piece.num_dropped =
          json.value("launches_dropped", std::int64_t{0}) + json.value("spans_dropped", std::int64_t{0});
      piece.complete = true;
    }
  }
  return !piece.header.is_null();
}

std::int64_t integer(const Json& json, const char* key) { return json.value(key, std::int64_t{0}); }

// The first and the last time in a piece, in ns.
std::pair<std::int64_t, std::int64_t> extent_of(const Piece& piece) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
  const auto take = [&](const Json& json, const char* key) {
    const std::int64_t time = integer(json, key);
    if (time <= 0) return;
    first = std::min(first, time);
    last = std::max(last, time);
  };
  for (const Json& launch : piece.launches) take(launch, "begin"), take(launch, "resumed"), take(launch, "end");
  for (const Json& span : piece.spans) take(span, "begin"), take(span, "end");
  for (const Json& sample : piece.memory) take(sample, "time");
  return {first, last};
}

// The box of a collective on one rank.
struct Member {
  std::string name;
  int rank = 0;
  std::int64_t thread = 0;
  std::int64_t begin = 0;
};
using JoinKey = std::tuple<std::size_t, std::uint64_t, std::uint64_t>;  // stage, group, sequence

class Joined {
 public:
  Joined(std::int64_t origin) : origin_(origin) {}

  void add(const Piece& piece) {
    const std::int64_t last = extent_of(piece).second;
    name_threads(piece);
    for (const Json& span : piece.spans) add_span(piece, span);
    for (const Json& launch : piece.launches) add_launch(piece, launch, last);
    for (const Json& sample : piece.memory) add_sample(piece, sample);
  }

  // Adds the arrows between ranks. Call it last, when all boxes are known.
  void add_flows() {
    std::int64_t number = 0;
    for (auto& [key, members] : members_) {
      if (members.size() < 2) continue;
      std::sort(members.begin(), members.end(),
                [](const Member& a, const Member& b) { return std::tie(a.begin, a.rank) < std::tie(b.begin, b.rank); });
      ++number;
      for (std::size_t i = 0; i < members.size(); ++i) {
        const Member& member = members[i];
        const char* phase = i == 0 ? "s" : i + 1 == members.size() ? "f\",\"bp\":\"e" : "t";
        event(str("\"ph\":\"", phase, "\",\"id\":", number, ",\"name\":", json_text(member.name),
                  ",\"cat\":\"collective\",\"pid\":", member.rank, ",\"tid\":", member.thread,
                  ",\"ts\":", microseconds(member.begin - origin_)));
      }
    }
  }

  const std::string& events() const { return events_; }

 private:
  static std::string microseconds(std::int64_t nanoseconds) {
    char text[40];
    std::snprintf(text, sizeof text, "%lld.%03d", static_cast<long long>(nanoseconds / 1000),
                  static_cast<int>(nanoseconds % 1000));
    return text;
  }

  void event(const std::string& fields) { events_ += str(events_.empty() ? "\n{" : ",\n{", fields, "}"); }

  void name_thread(int rank, std::int64_t thread, const std::string& name) {
    if (!named_.insert({{rank, thread}, true}).second) return;
    const std::string of = str("\"ph\":\"M\",\"pid\":", rank, ",\"tid\":", thread);
    event(str(of, ",\"name\":\"thread_name\",\"args\":{\"name\":", json_text(name), "}"));
    event(str(of, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":", thread, "}"));
  }

  void name_threads(const Piece& piece) {
    if (named_.insert({{piece.rank, -1}, true}).second) {
      const std::string of = str("\"ph\":\"M\",\"pid\":", piece.rank);
      event(str(of, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank ", piece.rank, "\"}"));
      event(str(of, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":", piece.rank, "}"));
    }
    name_thread(piece.rank, 0, "steps and modules");
    for (const Json& stream : piece.streams)
      name_thread(piece.rank, thread_of(piece, integer(stream, "id")), stream.value("name", ""));
  }

  // Streams are identified by their names, because stages may number them differently.
  std::int64_t thread_of(const Piece& piece, std::int64_t id) {
    std::string name = str("stream ", id);
    for (const Json& stream : piece.streams)
      if (integer(stream, "id") == id) name = stream.value("name", name);
    std::vector<std::string>& of_rank = streams_[piece.rank];
    const auto at = std::find(of_rank.begin(), of_rank.end(), name);
    const std::int64_t thread = at - of_rank.begin() + 1;
    if (at == of_rank.end()) of_rank.push_back(name);
    return thread;
  }

  static std::string place_of(const Piece& piece, const Json& json) {
    std::string args = str("\"line\":", integer(json, "line"));
    if (const std::int64_t iteration = integer(json, "iteration"); iteration >= 0)
      args += str(",\"iteration\":", iteration);
    const std::string stage = piece.header.value("stage", "");
    if (!stage.empty()) args += str(",\"stage\":", json_text(stage));
    return args;
  }

  void box(const Piece& piece, const std::string& name, const std::string& kind, std::int64_t thread,
           std::int64_t begin, std::int64_t end, const std::string& args) {
    event(str("\"ph\":\"X\",\"name\":", json_text(name), ",\"cat\":\"", kind, "\",\"pid\":", piece.rank,
              ",\"tid\":", thread, ",\"ts\":", microseconds(begin - origin_),
              ",\"dur\":", microseconds(std::max<std::int64_t>(end - begin, 0)), ",\"args\":{", args, "}"));
  }

  void add_span(const Piece& piece, const Json& span) {
    box(piece, span.value("name", ""), span.value("what", "step") == "module" ? "module" : "step", 0,
        integer(span, "begin"), integer(span, "end"), place_of(piece, span));
  }

  void add_launch(const Piece& piece, const Json& launch, std::int64_t last) {
    const std::int64_t began = integer(launch, "begin"), ended = integer(launch, "end");
    const std::int64_t thread = thread_of(piece, integer(launch, "stream"));
    const std::string name = launch.value("name", "");
    std::string args = place_of(piece, launch);
    if (const std::int64_t issued = integer(launch, "issued"); issued > 0 && issued <= began)
      args += str(",\"waited\":", microseconds(began - issued));
    // Boxes of a thread do not overlap: a collective that began beside the one before it is drawn from that one's end.
    std::int64_t& busy_until = busy_until_[{piece.rank, thread}];
    const std::int64_t begin = ended == 0 ? began : std::clamp(busy_until, began, std::max(began, ended));
    if (begin != began) args += str(",\"began\":", microseconds(began - origin_));
    busy_until = std::max(busy_until, ended);
    if (ended == 0) args += ",\"unfinished\":true";
    const auto collective = launch.find("collective");
    if (collective == launch.end() || !collective->is_object())
      return box(piece, name, "launch", thread, begin, ended ? ended : last, args);
    if (const std::int64_t resumed = integer(launch, "resumed"); resumed > 0)
      args += str(",\"resumed\":", microseconds(resumed - origin_));
    for (const auto& [key, value] : collective->items()) args += str(",", json_text(key), ":", value.dump());
    box(piece, name, "collective", thread, begin, ended ? ended : last, args);
    const JoinKey key{piece.stage, collective->value("group", std::uint64_t{0}),
                      collective->value("sequence", std::uint64_t{0})};
    members_[key].push_back({name, piece.rank, thread, begin});
  }

  void add_sample(const Piece& piece, const Json& sample) {
    const Json& names = piece.header.at("purposes");
    const Json& bytes = sample.at("bytes");
    std::string args;
    for (std::size_t i = 0; i < std::min(names.size(), bytes.size()); ++i)
      args += str(i ? "," : "", json_text(names[i].get<std::string>()), ":", bytes[i].get<std::int64_t>());
    event(str("\"ph\":\"C\",\"name\":\"memory\",\"pid\":", piece.rank,
              ",\"ts\":", microseconds(integer(sample, "time") - origin_), ",\"args\":{", args, "}"));
  }

  std::int64_t origin_;
  std::string events_;
  std::map<std::pair<int, std::int64_t>, bool> named_;
  std::map<int, std::vector<std::string>> streams_;  // names of the streams per rank; the first has tid 1
  std::map<JoinKey, std::vector<Member>> members_;
  std::map<std::pair<int, std::int64_t>, std::int64_t> busy_until_;  // per rank and thread
};

std::string numbers(const std::vector<std::int64_t>& list) {
  std::string text;
  for (const std::int64_t one : list) text += str(text.empty() ? "" : ",", one);
  return str("[", text, "]");
}

// The facts of the whole case.
std::string other_data(const std::vector<Piece>& pieces, const std::vector<int>& world_sizes, std::int64_t origin) {
  const Json& header = pieces.front().header;
  std::int64_t dropped = 0;
  std::vector<std::int64_t> cut;
  std::string bounds;
  std::vector<bool> seen(static_cast<std::size_t>(*std::max_element(world_sizes.begin(), world_sizes.end())), false);
  for (const Piece& piece : pieces) {
    dropped += piece.num_dropped;
    if (!piece.complete) cut.push_back(piece.rank);
    if (static_cast<std::size_t>(piece.rank) < seen.size()) seen[static_cast<std::size_t>(piece.rank)] = true;
    for (const Json& bound : piece.bounds) {
      Json out = {{"rank", piece.rank}, {"stage", piece.header.value("stage", "")}};
      for (const auto& [key, value] : bound.items())
        if (key != "kind") out[key] = value;
      for (const char* key : {"begin", "end"})
        out[key] = static_cast<double>(std::max<std::int64_t>(integer(bound, key) - origin, 0)) / 1000.0;
      bounds += str(bounds.empty() ? "" : ",", out.dump());
    }
  }
  std::vector<std::int64_t> missing;
  for (std::size_t rank = 0; rank < seen.size(); ++rank)
    if (!seen[rank]) missing.push_back(static_cast<std::int64_t>(rank));
  return str("{\"scenario\":", json_text(header.value("scenario", "")),
             ",\"case\":", json_text(header.value("case", "")),
             ",\"clock\":\"steady_clock of the machine\",\"origin_ns\":", origin, ",\"world_size\":", seen.size(),
             ",\"num_dropped\":", dropped, ",\"ranks_missing\":", numbers(missing), ",\"ranks_cut\":", numbers(cut),
             ",\"purposes\":", header.value("purposes", Json::array()).dump(), ",\"bounds\":[", bounds, "]}");
}

bool is_timeline_name(const std::string& name) {
  return name.starts_with("timeline-") && (name.ends_with(".json") || name.ends_with(".jsonl"));
}

}  // namespace

void clear_timelines(const std::string& folder) { clear_files(folder, is_timeline_name, "--timeline"); }

std::string join_timeline(const std::string& prefix, const std::vector<int>& world_sizes) {
  std::vector<Piece> pieces;
  std::vector<std::string> files;
  for (std::size_t stage = 0; stage < world_sizes.size(); ++stage) {
    for (int rank = 0; rank < world_sizes[stage]; ++rank) {
      Piece piece;
      piece.stage = stage;
      piece.rank = rank;
      const std::string path = path_of_piece(prefix, stage, rank);
      if (!fs::exists(path)) continue;
      files.push_back(path);
      if (read_piece(path, piece)) pieces.push_back(std::move(piece));
    }
  }
  if (pieces.empty()) return "";
  std::int64_t origin = std::numeric_limits<std::int64_t>::max();
  for (const Piece& piece : pieces) origin = std::min(origin, extent_of(piece).first);
  Joined joined(origin);
  for (const Piece& piece : pieces) joined.add(piece);
  joined.add_flows();
  std::string path = prefix + ".json";
  const std::string json = str("{\"displayTimeUnit\":\"ns\",\"otherData\":", other_data(pieces, world_sizes, origin),
                               ",\"traceEvents\":[", joined.events(), "\n]}\n");
  write_whole_file(path, printable_json(json));
  std::error_code ignored;
  for (const std::string& file : files) fs::remove(file, ignored);
  return path;
}

}  // namespace lockstep::report
