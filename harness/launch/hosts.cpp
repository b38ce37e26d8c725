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
#include "engine/core/error.hpp"
#include "harness/launch/launcher_link.hpp"

namespace lockstep::launch {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int num_clock_questions = 9;
constexpr int wait_without_descriptor_ms = 1;
constexpr int sleep_ms = 20;  // of a process that waits for the end of the run
constexpr double bye_seconds = 5.0;
constexpr double end_after_signal_seconds = 30.0;

struct LetterHead {
  std::uint64_t number;
  Topic topic;
};

std::string first_line_of(const char* file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

// Names the running system; processes with the same one share clock and memory. A network of its own makes a container
// a host of its own.
std::string system_name() {
  char network[128] = "";
  [[maybe_unused]] const ssize_t size = ::readlink("/proc/self/ns/net", network, sizeof network - 1);
  return str(first_line_of("/proc/sys/kernel/random/boot_id"), " ", network);
}

std::string cores_text() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::string text;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return text;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &cores)) text += str(core, " ");
  return text;
}

// mpirun binds each process to a core. The launcher, and the ranks that it forks, use those of all processes of the
// host.
void use_cores(const std::string& cores_of_all) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  std::istringstream numbers(cores_of_all);
  for (int core = 0; numbers >> core;)
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &cores);
  if (CPU_COUNT(&cores) > 0) ::sched_setaffinity(0, sizeof cores, &cores);  // refused: the ranks share fewer cores
}

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

// Lines of the letter `hello`: system, machine, cores, host of its own.
struct Hosts::Facts {
  std::string system, machine, cores;
  bool alone = false;

  std::string text() const { return str(system, "\n", machine, "\n", cores, "\n", alone ? 1 : 0, "\n"); }
  static Facts from(std::istream& lines) {
    Facts facts;
    std::string alone;
    std::getline(lines, facts.system);
    std::getline(lines, facts.machine);
    std::getline(lines, facts.cores);
    std::getline(lines, alone);
    facts.alone = alone == "1";
    return facts;
  }
};

Hosts::Hosts(std::unique_ptr<comm::Link> processes, const Options& options) : processes_(std::move(processes)) {
  const std::vector<Facts> facts = exchange_facts(options);
  form_hosts(facts);
  compare_clocks(facts, options);
}

Hosts::~Hosts() = default;

// Every process sends its facts to process 0, which sends all of them to everyone.
std::vector<Hosts::Facts> Hosts::exchange_facts(const Options& options) {
  Facts own{system_name(), host_name(), cores_text(), options.each_rank_a_host};
  std::string table;
  if (process() == 0) {
    table = own.text();
    for (int each = 1; each < processes_->num_hosts(); ++each)
      table += await(each, Topic::hello, 0, options, "did not say where it runs");
    for (int each = 1; each < processes_->num_hosts(); ++each) send_to_process(each, Topic::hello, 1, table);
  } else {
    send_to_process(0, Topic::hello, 0, own.text());
    table = await(0, Topic::hello, 1, options, "did not say where the others run");
  }
  std::istringstream lines(table);
  std::vector<Facts> facts;
  for (int each = 0; each < processes_->num_hosts(); ++each) facts.push_back(Facts::from(lines));
  return facts;
}

void Hosts::form_hosts(const std::vector<Facts>& facts) {
  for (std::size_t process = 0; process < facts.size(); ++process) {
    const auto same = std::find_if(launchers_.begin(), launchers_.end(), [&](int launcher) {
      const Facts& first = facts[static_cast<std::size_t>(launcher)];
      return !first.alone && !facts[process].alone && first.system == facts[process].system &&
             first.machine == facts[process].machine;
    });
    host_of_.push_back(static_cast<int>(same - launchers_.begin()));
    if (same != launchers_.end()) continue;
    launchers_.push_back(static_cast<int>(process));
    machines_.push_back(facts[process].machine);
  }
  lost_.assign(launchers_.size(), false);
  between_launchers_ = processes_.get();
  if (!is_launcher()) return;
  std::string cores;
  for (std::size_t process = 0; process < facts.size(); ++process)
    if (host_of_[process] == host()) cores += facts[process].cores;
  use_cores(cores);
  if (launchers_.size() < host_of_.size()) {
    own_link_ = link_between(*processes_, launchers_);
    between_launchers_ = own_link_.get();
  }
}

// Host 0 asks the launcher of each other system for the time there.
void Hosts::compare_clocks(const std::vector<Facts>& facts, const Options& options) {
  if (!is_launcher()) return;
  const auto differs = [&](int launcher) {
    const std::string& first = facts.front().system;
    const std::string& other = facts[static_cast<std::size_t>(launcher)].system;
    return first.substr(0, first.find(' ')) != other.substr(0, other.find(' '));  // boots, not networks
  };
  constexpr const char* silent = "did not tell the time";
  if (process() == 0) {
    for (int launcher : launchers_) {
      if (!differs(launcher)) continue;
      std::vector<ClockAnswer> answers;
      for (std::uint64_t i = 0; i < num_clock_questions; ++i) {
        const std::int64_t asked = comm::now_ns();
        send_to_process(launcher, Topic::clock, i, "");
        const std::string answer = await(launcher, Topic::clock, i, options, silent);
        answers.push_back({asked, std::stoll(answer), comm::now_ns()});
      }
      send_to_process(launcher, Topic::clock, num_clock_questions, str(clock_offset(answers)));
    }
  } else if (differs(process())) {
    for (std::uint64_t i = 0; i < num_clock_questions; ++i) {
      await(0, Topic::clock, i, options, silent);
      send_to_process(0, Topic::clock, i, str(comm::now_ns()));
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
  std::string text = str(num_ranks(), " ranks on ", num_hosts(), num_hosts() == 1 ? " host" : " hosts", " over ",
                         processes_->name(), ":");
  for (int each = 0; each < num_hosts(); ++each) text += str(each == 0 ? " " : ", ", name_of(each));
  return text;
}

// ---- letters ----

void Hosts::send_to_process(int process, Topic topic, std::uint64_t number, std::string_view text) {
  LetterHead head{};
  head.number = number;
  head.topic = topic;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes.append(text);
  processes_->send(process, comm::Channel::launcher, bytes);
}

void Hosts::send(int host, Topic topic, std::uint64_t number, std::string_view text) {
  send_to_process(launchers_.at(static_cast<std::size_t>(host)), topic, number, text);
}

void Hosts::send_to_others(Topic topic, std::uint64_t number, std::string_view text) {
  for (int each = 0; each < num_hosts(); ++each)
    if (each != host()) send(each, topic, number, text);
}

void Hosts::progress() {
  for (comm::Message message; processes_->poll(comm::Channel::launcher, message);) {
    LetterHead head{};
    LOCKSTEP_CHECK(message.bytes.size() >= sizeof head, "a letter of ", message.bytes.size(), " bytes");
    std::memcpy(&head, message.bytes.data(), sizeof head);
    letters_[{head.topic, head.number, message.from}] = message.bytes.substr(sizeof head);
  }
}

std::optional<std::string> Hosts::take(int host, Topic topic, std::uint64_t number) {
  const auto found = letters_.find({topic, number, launchers_.at(static_cast<std::size_t>(host))});
  if (found == letters_.end()) return {};
  std::string text = std::move(found->second);
  letters_.erase(found);
  return text;
}

void Hosts::forget_cases(std::uint64_t number) {
  std::erase_if(letters_, [&](const auto& letter) {
    const Topic topic = std::get<0>(letter.first);
    return (topic == Topic::part || topic == Topic::result || topic == Topic::stop) &&
           std::get<1>(letter.first) <= number;
  });
}

bool Hosts::is_alive(int host) { return processes_->is_alive(launchers_.at(static_cast<std::size_t>(host))); }

bool Hosts::any_lost() const { return std::find(lost_.begin(), lost_.end(), true) != lost_.end(); }

void Hosts::wait(int milliseconds) {
  pollfd waited{descriptor(), POLLIN, 0};
  if (waited.fd >= 0)
    ::poll(&waited, 1, milliseconds);
  else
    ::poll(nullptr, 0, std::min(milliseconds, wait_without_descriptor_ms));
}

// The letter of a process, while the processes find each other.
std::string Hosts::await(int process, Topic topic, std::uint64_t number, const Options& options, const char* what) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    progress();
    const auto found = letters_.find({topic, number, process});
    if (found != letters_.end()) {
      std::string text = std::move(found->second);
      letters_.erase(found);
      return text;
    }
    if (letters_.contains({Topic::end, 0, 0})) throw Error("hosts: host 0 has ended the run", "see its message");
    const bool alive = processes_->is_alive(process);
    const bool stopped = options.stop && options.stop();
    if (!alive || stopped || seconds_since(begin) > options.seconds)
      throw Error(str("hosts: process ", process, " of ", processes_->num_hosts(), " ", what,
                      !alive    ? ": it has ended"
                      : stopped ? ": the wait was interrupted"
                                : str(" within ", options.seconds, " s")),
                  "see its message; start the processes again");
    wait(sleep_ms);
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
  Options options;
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
    const std::string other =
        await(launchers_[static_cast<std::size_t>(each)], Topic::agreement, 0, options, "did not answer");
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
  send_to_process(0, Topic::interrupt, 0, str(signal));
}

void Hosts::end(int exit_code) {
  std::vector<int> waited;
  for (int each = 1; each < processes_->num_hosts(); ++each) {
    send_to_process(each, Topic::end, 0, str(exit_code));
    waited.push_back(each);
  }
  for (const Clock::time_point begin = Clock::now(); !waited.empty() && seconds_since(begin) < bye_seconds;) {
    progress();
    std::erase_if(waited, [&](int each) {
      return letters_.contains({Topic::bye, 0, each}) || !processes_->is_alive(each);
    });
    if (!waited.empty()) wait(sleep_ms);
  }
  for (int each : waited) note_lost(host_of_[static_cast<std::size_t>(each)]);
}

std::optional<int> Hosts::ended() {
  const auto found = letters_.find({Topic::end, 0, 0});
  if (found == letters_.end()) return {};
  send_to_process(0, Topic::bye, 0, "");
  const Clock::time_point begin = Clock::now();
  while (!processes_->has_sent_all() && processes_->is_alive(0) && seconds_since(begin) < bye_seconds) wait(1);
  return std::atoi(found->second.c_str());
}

int Hosts::wait_for_end(const std::function<int()>& stop) {
  std::optional<Clock::time_point> signalled;
  for (;;) {
    progress();
    if (const std::optional<int> code = ended()) return *code;
    if (!processes_->is_alive(0)) {
      note_lost(0);
      return 3;
    }
    if (const int signal = stop(); signal != 0) {
      report_interrupt(signal);
      if (!signalled) signalled = Clock::now();
      if (seconds_since(*signalled) > end_after_signal_seconds) {
        note_lost(0);
        return 130;
      }
    }
    // Without a descriptor the link is polled; 20 ms use no noticeable time of a core.
    if (descriptor() >= 0)
      wait(sleep_ms * 10);
    else
      ::poll(nullptr, 0, sleep_ms);
  }
}

}  // namespace lockstep::launch
