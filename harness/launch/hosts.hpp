// The hosts of a run: the machines on which mpirun, srun or torchrun has started processes, one process per rank.
//
// World rank r of a case runs on the host of process r. The first process of a host is its launcher. It forks all ranks
// of the host itself, so that they share memory. Ranks use no link: a rank that dies or hangs leaves the link intact.
//
//   Hosts hosts(*processes, {});                               // in a launcher
//   LaunchOptions options{.world_size = 4, .hosts = &hosts};   // every launcher launches the same case
//
// Host 0 leads: it starts cases and decides when the run ends. Letters carry all this; each has a topic and a number,
// and waits until it is taken.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "engine/comm/ferry.hpp"
#include "engine/comm/link.hpp"
#include "harness/launch/processes.hpp"

namespace lockstep::launch {

// What letters are about, and what their numbers count.
enum class Topic : std::uint8_t {
  hello,      // system and name of a host, and those of all from host 0
  clock,      // questions and answers about the time
  agreement,  // what all launchers must have in common; number: chosen by the caller
  command,    // of host 0: what the other hosts do next; number: of the command
  part,       // the outcomes of a host's ranks; number: of the case
  result,     // all outcomes of a case, from host 0; number: of the case
  stories,    // the flight recorder of a host's ranks; number: of the case
  stop,       // the case ends at once; number: of the case; the text is the reason, empty after a signal
  closed,     // a host has ended a case; number: of the case
  go,         // all hosts have, from host 0; number: of the case
  interrupt,  // a launcher was told to end by a signal, whose number is the text
  unseen,     // a host does not see a folder, which is the text; number: chosen by the caller
  bye,        // a host has seen the end
  end,        // the exit code, from host 0
};

class Hosts {
 public:
  // Host 0 learns the names and clocks of the others. Throws Error when one does not answer. `processes` must outlive
  // the hosts.
  Hosts(Processes& processes, const ProcessOptions& options);
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  int num_ranks() const { return static_cast<int>(host_of_.size()); }  // the most that a case may have
  int num_hosts() const { return link_.num_hosts(); }
  int host() const { return link_.host(); }
  // The host of each rank of a case.
  comm::HostMap map_of(int world_size) const;
  std::string name_of(int host) const;  // "host 1 (nodeb, ranks 2 to 3)"
  std::string describe() const;         // "4 ranks on 2 hosts over TCP: host 0 (...), host 1 (...)"
  // The link between the launchers. Letters use Channel::launcher.
  comm::Link& link() { return link_; }
  // A time of this host's monotonic clock on the clock of host 0, which orders events of different hosts.
  std::int64_t on_clock_of_first(std::int64_t time_ns) const { return time_ns == 0 ? 0 : time_ns - clock_offset_ns_; }

  // ---- letters between launchers ----
  void send(int host, Topic topic, std::uint64_t number, std::string_view text);
  void send_to_others(Topic topic, std::uint64_t number, std::string_view text);
  std::optional<std::string> take(int host, Topic topic, std::uint64_t number);
  bool has(int host, Topic topic, std::uint64_t number) const { return letters_.contains({topic, number, host}); }
  // Sorts the letters that have arrived. take() and has() do not.
  void progress();
  bool is_alive(int host);
  // For poll(): readable when progress() has something to do, or -1, when it must be called every millisecond.
  int descriptor() const { return link_.descriptor(); }
  // Waits for the next events of the link, at most so long.
  void wait(int milliseconds) const;
  // Forgets the letters about cases up to this number.
  void forget_cases(std::uint64_t number);
  // The number of the next case. All launchers launch the same cases, so that their numbers agree.
  std::uint64_t next_case() { return ++last_case_; }
  std::uint64_t next_command() { return num_commands_++; }  // on host 0

  // ---- the run ----
  // All launchers give the same text, or throw the same Error on every launcher. Lines of the text are compared one by
  // one; the message names the first that differs.
  void agree(const std::string& what, const std::string& text, const std::function<bool()>& stop);
  // The signal that ended another launcher of the run; 0: none. Only host 0 hears of it.
  int interrupt();
  // Tells host 0 of a signal that this process got.
  void report_interrupt(int signal);
  // A host did not answer, or its link ended. The end of the process then must not wait for it.
  void note_lost(int host, const std::string& why);
  bool is_lost(int host) const { return lost_.at(static_cast<std::size_t>(host)); }
  bool any_lost() const { return !why_lost_.empty(); }
  const std::string& why_lost() const { return why_lost_; }  // of the first one; empty: none is lost
  // On host 0: gives every host the exit code, and waits up to 5 s until they have seen it.
  void end(int exit_code);
  // On every other host: the exit code, once host 0 has given it. Nothing before.
  std::optional<int> ended();

 private:
  std::string await(int host, Topic topic, std::uint64_t number, const ProcessOptions& options, const char* what);
  void learn_names(const ProcessOptions& options);
  void compare_clocks(const ProcessOptions& options);

  comm::Link& link_;
  std::vector<int> host_of_;           // per rank
  std::vector<std::string> systems_;   // per host
  std::vector<std::string> machines_;  // per host: its name
  std::vector<bool> lost_;             // per host
  std::string why_lost_;
  std::int64_t clock_offset_ns_ = 0;
  std::uint64_t last_case_ = 0;
  std::uint64_t num_commands_ = 0;
  bool has_reported_interrupt_ = false;
  using Key = std::tuple<Topic, std::uint64_t, int>;  // and the host that sent it
  std::map<Key, std::string> letters_;
};

// The offset of another clock from ours, from questions asked at `asked`, answered there at `answered` and received at
// `received`: of the quickest of them, as the middle between asking and receiving. For tests.
struct ClockAnswer {
  std::int64_t asked, answered, received;
};
std::int64_t clock_offset(const std::vector<ClockAnswer>& answers);

}  // namespace lockstep::launch
