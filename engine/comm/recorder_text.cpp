// The dump of the flight recorder: one JSON line per rank.
#include <nlohmann/json.hpp>

#include "engine/comm/recorder.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {
using nlohmann::json;

constexpr const char* state_names[] = {"issued", "waiting", "running", "done", "failed"};

CollectiveState state_from_name(const std::string& name) {
  for (int i = 0; i < 5; ++i)
    if (name == state_names[i]) return static_cast<CollectiveState>(i);
  throw Error(str("unknown state `", name, "` of a collective"), "one of issued, waiting, running, done, failed");
}

json to_json(const RecordedCollective& c) {
  return {{"group", c.group_id},      {"sequence", c.sequence},
          {"operation", c.operation}, {"dtype", c.dtype},
          {"family", c.family},       {"phase", c.phase},
          {"axis", c.axis},           {"owner", c.owner},
          {"members", c.members},     {"arrived", c.arrived},
          {"bytes", c.bytes},         {"line", c.scenario_line},
          {"issued_ns", c.issued_ns}, {"state", state_names[static_cast<int>(c.state)]}};
}

RecordedCollective collective_from_json(const json& j) {
  RecordedCollective c;
  c.group_id = j.at("group").get<std::uint64_t>();
  c.sequence = j.at("sequence").get<std::uint64_t>();
  c.operation = j.at("operation").get<std::string>();
  c.dtype = j.at("dtype").get<std::string>();
  c.family = j.at("family").get<std::string>();
  c.phase = j.at("phase").get<std::string>();
  c.axis = j.at("axis").get<std::string>();
  c.owner = j.at("owner").get<std::string>();
  c.members = j.at("members").get<std::vector<int>>();
  c.arrived = j.value("arrived", std::vector<int>());  // an earlier version has not written it
  c.bytes = j.at("bytes").get<std::int64_t>();
  c.scenario_line = j.at("line").get<int>();
  c.state = state_from_name(j.at("state").get<std::string>());
  c.issued_ns = j.at("issued_ns").get<std::int64_t>();
  return c;
}
}  // namespace

std::string to_text(const std::vector<RankHistory>& stories) {
  std::string out;
  for (const RankHistory& story : stories) {
    json collectives = json::array();
    for (const RecordedCollective& collective : story.collectives) collectives.push_back(to_json(collective));
    const json line = {{"rank", story.rank},     {"ended", story.ended},
                       {"failed", story.failed}, {"died", story.died},
                       {"why", story.why},       {"step", story.step},
                       {"file", story.file},     {"line", story.line},
                       {"column", story.column}, {"collectives", std::move(collectives)}};
    out += line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  }
  return out;
}

std::vector<RankHistory> histories_from_text(const std::string& text) {
  std::vector<RankHistory> stories;
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    try {
      const json j = json::parse(line);
      RankHistory story;
      story.rank = j.at("rank").get<int>();
      story.ended = j.at("ended").get<bool>();
      story.failed = j.at("failed").get<bool>();
      story.died = j.at("died").get<bool>();
      story.why = j.at("why").get<std::string>();
      story.step = j.at("step").get<std::string>();
      story.file = j.at("file").get<std::string>();
      story.line = j.at("line").get<int>();
      story.column = j.at("column").get<int>();
      for (const json& collective : j.at("collectives")) story.collectives.push_back(collective_from_json(collective));
      stories.push_back(std::move(story));
    } catch (const json::exception& error) {
      throw Error(str("line ", number, " is not a record of a flight recorder dump: ", error.what()),
                  "give a dump that `lockstep run` wrote");
    }
  }
  return stories;
}

}  // namespace lockstep::comm
