#include "harness/launch/exchange.hpp"

#include <algorithm>
#include <cstring>

#include "engine/comm/control.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/hosts.hpp"
#include "harness/launch/worker.hpp"
#include "harness/verdict/serialize.hpp"

namespace lockstep::launch {

namespace {

constexpr std::int64_t second_ns = 1'000'000'000;
// How long a host waits for another after the last moment at which the other's ranks can have ended.
constexpr std::int64_t part_ns = 5 * second_ns, result_ns = 10 * second_ns, closing_ns = 5 * second_ns;
// The longest wait after a signal, on host 0 and on the others: mpirun kills what has not ended 2 s after it sent one.
constexpr std::int64_t interrupted_ns[] = {2 * second_ns / 5, 6 * second_ns / 5};
constexpr std::int64_t after_loss_ns = 2 * second_ns;  // for ranks whose peers are lost
constexpr std::int64_t poll_ns = 1'000'000;            // of a link without a descriptor
constexpr int most_spins = 64;                         // of the ferry, between two looks at processes

Hosts& hosts_of(const RunningCase& test_case) { return *test_case.options.hosts; }

std::vector<int> ranks_on(const RunningCase& test_case, int host) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < test_case.hosts.host_of.size(); ++rank)
    if (test_case.hosts.host_of[rank] == host) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

// Times of different hosts are compared on the clock of host 0.
void shift_times(const Hosts& hosts, verdict::RankOutcome& outcome) {
  outcome.end_time_ns = hosts.on_clock_of_first(outcome.end_time_ns);
  for (verdict::Failure& failure : outcome.failures) failure.time_ns = hosts.on_clock_of_first(failure.time_ns);
}

void lose(RunningCase& test_case, int host, const std::string& why) {
  const auto index = static_cast<std::size_t>(host);
  if (test_case.is_lost[index]) return;
  test_case.is_lost[index] = true;
  Hosts& hosts = hosts_of(test_case);
  const std::int64_t now = comm::now_ns();
  const std::int64_t milliseconds = (now - test_case.start_ns) / 1'000'000;
  const std::string text =
      str(hosts.name_of(host), " was lost ", seconds_text(static_cast<double>(milliseconds) * 1e-3),
          " after the start of the case: ", why);
  hosts.note_lost(host, text);
  if (test_case.has_part[index]) return;  // its ranks had ended
  for (int rank : ranks_on(test_case, host)) {
    verdict::RankOutcome& outcome = test_case.outcomes[static_cast<std::size_t>(rank)];
    outcome = {};
    outcome.rank = rank;
    outcome.status = verdict::RankStatus::lost;
    outcome.detail = text;
    outcome.end_time_ns = hosts.on_clock_of_first(now);
    if (test_case.world) comm::announce_death(*test_case.world, rank, text);
    // The ranks that wait for them fail now. Those that do not wait are not needed any more.
    test_case.lost_reason = text;
    test_case.kill_ns = std::min(test_case.kill_ns, now + after_loss_ns);
  }
}

void take_outcomes(RunningCase& test_case, const std::string& text) {
  for (verdict::RankOutcome& outcome : outcomes_from_text(text)) {
    const auto rank = static_cast<std::size_t>(outcome.rank);
    LOCKSTEP_CHECK(rank < test_case.outcomes.size(), "an outcome of rank ", outcome.rank);
    test_case.outcomes[rank] = std::move(outcome);
  }
}

// Whether the case still waits for something from this host. A host that has closed the case may end.
bool is_awaited(const RunningCase& test_case, int host) {
  const Hosts& hosts = hosts_of(test_case);
  if (test_case.exchange != ExchangeState::closing && test_case.exchange != ExchangeState::closed) return true;
  if (hosts.host() == 0) return !hosts.has(host, Topic::closed, test_case.number);
  return host == 0 && !hosts.has(0, Topic::go, test_case.number);
}

// Takes the parts that have arrived, and notices lost hosts. A part is taken before the end of its host is seen.
void look_at_hosts(RunningCase& test_case) {
  Hosts& hosts = hosts_of(test_case);
  std::vector<int> gone;
  for (int host = 0; host < hosts.num_hosts(); ++host)
    if (host != hosts.host() && !test_case.is_lost[static_cast<std::size_t>(host)] && !hosts.is_alive(host))
      gone.push_back(host);
  hosts.progress();
  for (int host = 0; host < hosts.num_hosts(); ++host) {
    const std::optional<std::string> part = hosts.take(host, Topic::part, test_case.number);
    if (!part) continue;
    std::uint64_t num_bytes = 0;  // of the flight recorder, which comes first
    LOCKSTEP_CHECK(part->size() >= sizeof num_bytes, "a part of ", part->size(), " bytes");
    std::memcpy(&num_bytes, part->data(), sizeof num_bytes);
    LOCKSTEP_CHECK(part->size() - sizeof num_bytes >= num_bytes, "a part of ", part->size(), " bytes");
    for (comm::RankHistory& story : comm::histories_from_text(part->substr(sizeof num_bytes, num_bytes)))
      test_case.at_time_out.push_back(std::move(story));
    take_outcomes(test_case, part->substr(sizeof num_bytes + num_bytes));
    test_case.has_part[static_cast<std::size_t>(host)] = true;
  }
  for (int host : gone)
    if (is_awaited(test_case, host)) lose(test_case, host, "its connection ended");
  if (!test_case.ferry) return;
  for (const comm::Ferry::Lost& each : test_case.ferry->lost()) lose(test_case, each.host, each.why);
}

bool is_stopped_elsewhere(RunningCase& test_case) {
  Hosts& hosts = hosts_of(test_case);
  bool stopped = false;
  for (int host = 0; host < hosts.num_hosts(); ++host) {
    const std::optional<std::string> why = hosts.take(host, Topic::stop, test_case.number);
    if (!why) continue;
    stopped = true;
    if (test_case.lost_reason.empty()) test_case.lost_reason = *why;
  }
  return stopped;
}

// The last moment at which ranks of another host can have ended, on the clock of this one.
std::int64_t last_end_ns(const RunningCase& test_case) {
  const auto limit = static_cast<std::int64_t>(test_case.options.timeout_seconds * 1e9);
  return std::max(comm::now_ns(), test_case.interrupted ? 0 : test_case.start_ns + limit + 2 * grace_ns);
}

// `patience_ns`: for how long after `from_ns` the case may stay in the state.
void enter(RunningCase& test_case, ExchangeState state, std::int64_t from_ns, std::int64_t patience_ns) {
  test_case.exchange = state;
  test_case.exchange_deadline_ns = from_ns + patience_ns;
}

void hurry_after_interrupt(RunningCase& test_case) {
  if (!test_case.interrupted || test_case.exchange == ExchangeState::ranks_run) return;
  const std::int64_t latest = comm::now_ns() + interrupted_ns[hosts_of(test_case).host() == 0 ? 0 : 1];
  if (test_case.exchange_deadline_ns > latest) enter(test_case, test_case.exchange, latest, 0);
}

void end_ranks(RunningCase& test_case) {
  Hosts& hosts = hosts_of(test_case);
  complete_outcomes(test_case);
  const std::vector<int> local = ranks_on(test_case, hosts.host());
  for (int rank : local) shift_times(hosts, test_case.outcomes[static_cast<std::size_t>(rank)]);
  if (test_case.ferry) test_case.ferry->end();
  if (hosts.host() == 0) return enter(test_case, ExchangeState::parts, last_end_ns(test_case), part_ns);
  const std::string stories = comm::to_text(test_case.at_time_out);
  const std::uint64_t num_bytes = stories.size();
  const std::string head(reinterpret_cast<const char*>(&num_bytes), sizeof num_bytes);
  hosts.send(0, Topic::part, test_case.number, str(head, stories, text_of_outcomes(test_case.outcomes, local)));
  enter(test_case, ExchangeState::result, last_end_ns(test_case), result_ns);
}

// Host 0: all parts are there, or given up.
bool has_all_parts(RunningCase& test_case) {
  const Hosts& hosts = hosts_of(test_case);
  const bool late = comm::now_ns() >= test_case.exchange_deadline_ns;
  bool all = true;
  for (int host = 1; host < hosts.num_hosts(); ++host) {
    const auto index = static_cast<std::size_t>(host);
    if (test_case.has_part[index] || test_case.is_lost[index]) continue;
    if (late)
      lose(test_case, host, "it did not send the outcomes of its ranks in time");
    else
      all = false;
  }
  return all;
}

bool went_well(const RunningCase& test_case) {
  return std::all_of(test_case.outcomes.begin(), test_case.outcomes.end(), [](const verdict::RankOutcome& outcome) {
    return outcome.status == verdict::RankStatus::finished && outcome.failures.empty();
  });
}

void send_result(RunningCase& test_case) {
  Hosts& hosts = hosts_of(test_case);
  test_case.culprits = comm::awaited_ranks(test_case.at_time_out);
  blame_culprits(test_case);
  std::vector<int> all;
  for (int rank = 0; rank < test_case.options.world_size; ++rank) {
    all.push_back(rank);
    test_case.outcomes[static_cast<std::size_t>(rank)].rank = rank;
  }
  hosts.send_to_others(Topic::result, test_case.number,
                       str(went_well(test_case) ? '0' : '1', text_of_outcomes(test_case.outcomes, all)));
}

void send_stories(RunningCase& test_case) {
  if (test_case.world)
    hosts_of(test_case).send(0, Topic::stories, test_case.number, comm::to_text(local_stories(test_case)));
}

// Another host: takes the result when it is there, or gives host 0 up.
bool has_result(RunningCase& test_case) {
  if (const std::optional<std::string> result = hosts_of(test_case).take(0, Topic::result, test_case.number)) {
    take_outcomes(test_case, result->substr(1));
    if (result->front() == '1') send_stories(test_case);
    return true;
  }
  if (!test_case.is_lost[0] && comm::now_ns() < test_case.exchange_deadline_ns) return false;
  lose(test_case, 0, "it did not send the outcomes of all ranks in time");
  return true;
}

// Ends the ferry, which would take messages of the next case for its own. Without an answer of the other ferries, a
// transfer may still use the memory of the world, which then stays. A case that went well leaves no transfer behind.
bool is_closed(RunningCase& test_case) {
  if (!test_case.ferry) return true;
  if (test_case.ferry->finished()) {
    test_case.ferry.reset();
    return true;
  }
  if (comm::now_ns() < test_case.exchange_deadline_ns) return false;
  if (!test_case.interrupted && went_well(test_case))
    for (const int host : test_case.ferry->awaited())
      lose(test_case, host, "its messages of the case did not end in time");
  [[maybe_unused]] const void* ferry = test_case.ferry.release();
  [[maybe_unused]] const void* world = test_case.world.release();
  return true;
}

// Host 0 waits for the others, and then lets them go on.
bool all_have_closed(RunningCase& test_case) {
  Hosts& hosts = hosts_of(test_case);
  const bool late = comm::now_ns() >= test_case.exchange_deadline_ns;
  if (hosts.host() != 0) {
    if (hosts.has(0, Topic::go, test_case.number) || test_case.is_lost[0]) return true;
    if (late) lose(test_case, 0, "it did not end the case in time");
    return late;
  }
  bool all = true;
  for (int host = 1; host < hosts.num_hosts(); ++host) {
    if (test_case.is_lost[static_cast<std::size_t>(host)] || hosts.has(host, Topic::closed, test_case.number)) continue;
    all = false;
    if (late) lose(test_case, host, "it did not end the case in time");
  }
  if (!all) return false;
  hosts.send_to_others(Topic::go, test_case.number, "");
  for (int host = 1; host < hosts.num_hosts(); ++host)
    if (const std::optional<std::string> text = hosts.take(host, Topic::stories, test_case.number))
      for (comm::RankHistory& story : comm::histories_from_text(*text))
        test_case.stories_of_others.push_back(std::move(story));
  return true;
}

}  // namespace

void join_hosts(RunningCase& test_case) {
  Hosts& hosts = hosts_of(test_case);
  test_case.number = hosts.next_case();
  if (test_case.options.world_size > hosts.num_ranks())
    throw Error(str("launch: ", test_case.options.world_size, " ranks on hosts for ", hosts.num_ranks()),
                "start as many processes as ranks");
  test_case.hosts = hosts.map_of(test_case.options.world_size);
  test_case.has_part.assign(static_cast<std::size_t>(hosts.num_hosts()), false);
  test_case.is_lost = test_case.has_part;
  test_case.exchange = ExchangeState::ranks_run;
}

bool has_local_ranks(const RunningCase& test_case) {
  return !ranks_on(test_case, test_case.options.hosts->host()).empty();
}

void begin_exchange(RunningCase& test_case) {
  Hosts& hosts = hosts_of(test_case);
  const std::size_t num_local = ranks_on(test_case, hosts.host()).size();
  if (num_local == 0 || num_local == test_case.outcomes.size()) return;
  test_case.ferry = std::make_unique<comm::Ferry>(hosts.link(), *test_case.world, test_case.hosts, test_case.number);
}

std::vector<int> descriptors_of_exchange(const RunningCase& test_case) {
  std::vector<int> descriptors;
  if (const int link = hosts_of(test_case).descriptor(); link >= 0) descriptors.push_back(link);
  if (test_case.ferry && test_case.ferry->wake_descriptor() >= 0)
    descriptors.push_back(test_case.ferry->wake_descriptor());
  return descriptors;
}

std::int64_t progress_exchange(RunningCase& test_case) {
  const std::int64_t sleep_ns = hosts_of(test_case).descriptor() >= 0 ? second_ns / 10 : poll_ns;
  // A host that has closed a case leaves messages of the next one to the next ferry.
  if (!test_case.ferry || test_case.exchange == ExchangeState::closed) return sleep_ns;
  std::int64_t of_ferry = 0;
  for (int i = 0; i < most_spins && of_ferry == 0; ++i) of_ferry = test_case.ferry->progress();
  return std::min(sleep_ns, of_ferry);
}

bool advance_exchange(RunningCase& test_case) {
  if (test_case.exchange == ExchangeState::over) return false;
  look_at_hosts(test_case);
  const bool kills = !test_case.interrupted && (is_stopped_elsewhere(test_case) || comm::now_ns() >= test_case.kill_ns);
  test_case.interrupted = test_case.interrupted || kills;
  hurry_after_interrupt(test_case);
  if (test_case.exchange == ExchangeState::ranks_run && !test_case.ranks_run()) end_ranks(test_case);
  if (test_case.exchange == ExchangeState::parts && has_all_parts(test_case)) {
    send_result(test_case);
    enter(test_case, ExchangeState::closing, comm::now_ns(), closing_ns);
  }
  if (test_case.exchange == ExchangeState::result && has_result(test_case))
    enter(test_case, ExchangeState::closing, comm::now_ns(), closing_ns);
  if (test_case.exchange == ExchangeState::closing && is_closed(test_case)) {
    if (hosts_of(test_case).host() != 0) hosts_of(test_case).send(0, Topic::closed, test_case.number, "");
    enter(test_case, ExchangeState::closed, comm::now_ns(), 2 * closing_ns);
  }
  if (test_case.exchange == ExchangeState::closed && all_have_closed(test_case)) {
    hosts_of(test_case).forget_cases(test_case.number);
    test_case.exchange = ExchangeState::over;
  }
  return kills;
}

void stop_other_hosts(RunningCase& test_case, std::string_view why) {
  hosts_of(test_case).send_to_others(Topic::stop, test_case.number, why);
}

std::vector<comm::RankHistory> local_stories(const RunningCase& test_case) {
  std::vector<comm::RankHistory> stories = comm::read_recorder(*test_case.world);
  std::erase_if(stories, [&](const comm::RankHistory& story) { return !test_case.is_local(story.rank); });
  for (comm::RankHistory& story : stories) {
    for (comm::RecordedCollective& collective : story.collectives)
      collective.issued_ns = hosts_of(test_case).on_clock_of_first(collective.issued_ns);
  }
  return stories;
}

std::string text_of_outcomes(const std::vector<verdict::RankOutcome>& outcomes, const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) {
    const std::string bytes = verdict::to_bytes(outcomes[static_cast<std::size_t>(rank)]);
    FrameHead head;
    head.rank = rank;
    head.bytes = bytes.size();
    text.append(reinterpret_cast<const char*>(&head), sizeof head);
    text.append(bytes);
  }
  return text;
}

std::vector<verdict::RankOutcome> outcomes_from_text(const std::string& text) {
  std::vector<verdict::RankOutcome> outcomes;
  for (std::size_t at = 0; at < text.size();) {
    FrameHead head;
    if (text.size() - at < sizeof head) throw Error("the outcomes of a host arrived cut short", "start the run again");
    std::memcpy(&head, text.data() + at, sizeof head);
    at += sizeof head;
    if (text.size() - at < head.bytes) throw Error("the outcomes of a host arrived cut short", "start the run again");
    outcomes.push_back(verdict::outcome_from_bytes(std::string_view(text).substr(at, head.bytes)));
    outcomes.back().rank = head.rank;
    at += head.bytes;
  }
  return outcomes;
}

}  // namespace lockstep::launch
