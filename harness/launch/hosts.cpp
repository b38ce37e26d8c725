#include "harness/launch/hosts.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include "engine/comm/control.hpp"
#include "engine/core/resources.hpp"
#include "harness/launch/launcher_link.hpp"

namespace lockstep::launch {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int num_clock_questions = 9;
constexpr int wait_without_descriptor_ms = 1;
constexpr int wait_ms = 20;
constexpr double bye_seconds = 5.0;

struct LetterHead {
  std::uint64_t number;
  Topic topic;
};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return str("rank ", ranks.front());
  if (ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size()))
    return str("ranks ", ranks.front(), " to ", ranks.back());
  std::string text = "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += str(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

}  // namespace

Hosts::Hosts(Processes& processes, const ProcessOptions& options)
    : link_(*processes.link()), host_of_(processes.host_of()) {
  lost_.assign(static_cast<std::size_t>(num_hosts()), false);
  learn_names(options);
  compare_clocks(options);
}

// Every host sends its system and its name to host 0, which sends all of them to everyone.
void Hosts::learn_names(const ProcessOptions& options) {
  std::string table = str(system_name(), "\n", machine_name(), "\n");
  if (host() == 0) {
    for (int each = 1; each < num_hosts(); ++each)
      table += await(each, Topic::hello, 0, options, "did not give its name");
    send_to_others(Topic::hello, 1, table);
  } else {
    send(0, Topic::hello, 0, table);
    table = await(0, Topic::hello, 1, options, "did not give the names of the others");
  }
  std::istringstream lines(table);
  for (int each = 0; each < num_hosts(); ++each) {
    std::getline(lines, systems_.emplace_back());
    std::getline(lines, machines_.emplace_back());
  }
}

// Host 0 asks each host with another clock for its time.
void Hosts::compare_clocks(const ProcessOptions& options) {
  const auto clock_of = [&](int each) {
    const std::string& system = systems_[static_cast<std::size_t>(each)];
    return system.substr(0, system.find(' '));  // the boot, without the network
  };
  constexpr const char* silent = "did not tell the time";
  if (host() == 0) {
    for (int each = 1; each < num_hosts(); ++each) {
      if (clock_of(each) == clock_of(0)) continue;
      std::vector<ClockAnswer> answers;
      for (std::uint64_t i = 0; i < num_clock_questions; ++i) {
        const std::int64_t asked = comm::now_ns();
        send(each, Topic::clock, i, "");
        const std::string answer = await(each, Topic::clock, i, options, silent);
        answers.push_back({asked, std::stoll(answer), comm::now_ns()});
      }
      send(each, Topic::clock, num_clock_questions, str(clock_offset(answers)));
    }
  } else if (clock_of(host()) != clock_of(0)) {
    for (std::uint64_t i = 0; i < num_clock_questions; ++i) {
      await(0, Topic::clock, i, options, silent);
      send(0, Topic::clock, i, str(comm::now_ns()));
    }
    clock_offset_ns_ = std::stoll(await(0, Topic::clock, num_clock_questions, options, silent));
  }
}

std::int64_t clock_offset(const std::vector<ClockAnswer>& answers) {
  LOCKSTEP_CHECK(!answers.empty(), "no answer");
  const auto quickest = std::min_element(
      answers.begin(), answers.end(),
      [](const ClockAnswer& a, const ClockAnswer& b) { return a.received - a.asked < b.received - b.asked; });
  return quickest->answered - (quickest->asked + (quickest->received - quickest->asked) / 2);
}

comm::HostMap Hosts::map_of(int world_size) const {
  LOCKSTEP_CHECK(world_size >= 0 && world_size <= num_ranks(), world_size, " of ", num_ranks(), " ranks");
  comm::HostMap map;
  map.host = host();
  map.num_hosts = num_hosts();
  map.host_of.assign(host_of_.begin(), host_of_.begin() + world_size);
  return map;
}

std::string Hosts::name_of(int host) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < host_of_.size(); ++rank)
    if (host_of_[rank] == host) ranks.push_back(static_cast<int>(rank));
  return str("host ", host, " (", machines_.at(static_cast<std::size_t>(host)), ", ", ranks_text(ranks), ")");
}

std::string Hosts::describe() const {
  std::string text =
      str(num_ranks(), " ranks on ", num_hosts(), num_hosts() == 1 ? " host" : " hosts", " over ", link_.name(), ":");
  for (int each = 0; each < num_hosts(); ++each) text += str(each == 0 ? " " : ", ", name_of(each));
  return text;
}

// ---- letters ----

void Hosts::send(int host, Topic topic, std::uint64_t number, std::string_view text) {
  LetterHead head{};
  head.number = number;
  head.topic = topic;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(text);
  link_.send(host, comm::Channel::launcher, bytes);
}

void Hosts::send_to_others(Topic topic, std::uint64_t number, std::string_view text) {
  for (int each = 0; each < num_hosts(); ++each)
    if (each != host()) send(each, topic, number, text);
}

void Hosts::progress() {
  for (comm::Message message; link_.poll(comm::Channel::launcher, message);) {
    LetterHead head{};
    LOCKSTEP_CHECK(message.bytes.size() >= sizeof head, "a letter of ", message.bytes.size(), " bytes");
    std::memcpy(&head, message.bytes.data(), sizeof head);
    letters_[{head.topic, head.number, message.from}] = message.bytes.substr(sizeof head);
  }
}

std::optional<std::string> Hosts::take(int host, Topic topic, std::uint64_t number) {
  const auto found = letters_.find({topic, number, host});
  if (found == letters_.end()) return {};
  std::string text = std::move(found->second);
  letters_.erase(found);
  return text;
}

void Hosts::forget_cases(std::uint64_t number) {
  std::erase_if(letters_, [&](const auto& letter) {
    const Topic topic = std::get<0>(letter.first);
    return (topic == Topic::part || topic == Topic::result || topic == Topic::stop || topic == Topic::closed ||
            topic == Topic::stories || topic == Topic::go) &&
           std::get<1>(letter.first) <= number;
  });
}

bool Hosts::is_alive(int host) { return link_.is_alive(host); }

void Hosts::note_lost(int host, const std::string& why) {
  lost_.at(static_cast<std::size_t>(host)) = true;
  if (why_lost_.empty()) why_lost_ = why;
}

void Hosts::wait(int milliseconds) const {
  pollfd waited{descriptor(), POLLIN, 0};
  if (waited.fd >= 0)
    ::poll(&waited, 1, milliseconds);
  else
    ::poll(nullptr, 0, std::min(milliseconds, wait_without_descriptor_ms));
}

// The letter of a host, before the first case.
std::string Hosts::await(int host, Topic topic, std::uint64_t number, const ProcessOptions& options, const char* what) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const bool alive = link_.is_alive(host);  // before the letters that it sent before its end are read
    progress();
    if (std::optional<std::string> text = take(host, topic, number)) return *std::move(text);
    if (letters_.contains({Topic::end, 0, 0})) throw Error("hosts: host 0 has ended the run", "see its message");
    const bool stopped = options.stop && options.stop();
    if (alive && !stopped && seconds_since(begin) <= options.seconds) {
      wait(wait_ms);
      continue;
    }
    const std::string why = str("hosts: host ", host, " of ", num_hosts(), " ", what,
                                !alive    ? std::string(": it has ended")
                                : stopped ? std::string(": the wait was interrupted")
                                          : str(" within ", options.seconds, " s"));
    note_lost(host, why);
    throw ResourceError(why, "see its message; start the processes again");
  }
}

// ---- the run ----

namespace {

// Empty when both texts are the same; otherwise the first line that differs.
std::string difference(const std::string& mine, const std::string& other) {
  std::istringstream mine_lines(mine), other_lines(other);
  for (int number = 1;; ++number) {
    std::string a, b;
    const bool has_a = static_cast<bool>(std::getline(mine_lines, a));
    const bool has_b = static_cast<bool>(std::getline(other_lines, b));
    if (!has_a && !has_b) return "";
    if (a != b || has_a != has_b)
      return str("`", has_a ? a : "nothing", "` on host 0, `", has_b ? b : "nothing", "` there (entry ", number, ")");
  }
}

}  // namespace

void Hosts::agree(const std::string& what, const std::string& text, const std::function<bool()>& stop) {
  ProcessOptions options;
  options.stop = stop;
  constexpr const char* remedy = "give the same command, program and files on every host";
  if (host() != 0) {
    send(0, Topic::agreement, 0, text);
    const std::string error = await(0, Topic::agreement, 1, options, "did not answer");
    if (!error.empty()) throw Error(error, remedy);
    return;
  }
  std::string error;
  for (int each = 1; each < num_hosts() && error.empty(); ++each) {
    const std::string other = await(each, Topic::agreement, 0, options, "did not answer");
    const std::string found = difference(text, other);
    if (!found.empty()) error = str(what, " of ", name_of(each), " differ: ", found);
  }
  send_to_others(Topic::agreement, 1, error);
  if (!error.empty()) throw Error(error, remedy);
}

int Hosts::interrupt() {
  progress();
  for (const auto& [key, text] : letters_)
    if (std::get<0>(key) == Topic::interrupt) return std::atoi(text.c_str());
  return 0;
}

void Hosts::report_interrupt(int signal) {
  if (has_reported_interrupt_) return;
  has_reported_interrupt_ = true;
  send(0, Topic::interrupt, 0, str(signal));
}

void Hosts::end(int exit_code) {
  std::vector<int> waited;
  for (int each = 1; each < num_hosts(); ++each) {
    send(each, Topic::end, 0, str(exit_code));
    if (!is_lost(each)) waited.push_back(each);
  }
  for (const Clock::time_point begin = Clock::now(); !waited.empty() && seconds_since(begin) < bye_seconds;) {
    progress();
    std::erase_if(waited, [&](int each) { return letters_.contains({Topic::bye, 0, each}) || !link_.is_alive(each); });
    if (!waited.empty()) wait(wait_ms);
  }
  for (int each : waited) note_lost(each, str(name_of(each), " did not see the end of the run"));
}

std::optional<int> Hosts::ended() {
  const auto found = letters_.find({Topic::end, 0, 0});
  if (found == letters_.end()) return {};
  const int exit_code = std::atoi(found->second.c_str());
  letters_.erase(found);
  send(0, Topic::bye, 0, "");
  const Clock::time_point begin = Clock::now();
  while (!link_.has_sent_all() && link_.is_alive(0) && seconds_since(begin) < bye_seconds) wait(1);
  return exit_code;
}

}  // namespace lockstep::launch
