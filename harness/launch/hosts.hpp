// The hosts of a run: the machines on which mpirun, srun or torchrun has started processes, one process per rank.
//
// World rank r of a case runs on the host of process r. The first process of a host is its launcher. It forks all ranks
// of the host itself, so that they share memory; the other processes of the host wait for the end of the run. Ranks use
// no link: a rank that dies or hangs leaves the link intact.
//
//   Hosts hosts(std::move(link_between_processes), {});
//   if (!hosts.is_launcher()) return hosts.wait_for_end(stop);
//   LaunchOptions options{.world_size = 4, .hosts = &hosts};   // every launcher launches the same case
//   ...
//   hosts.end(exit_code);                                      // on host 0
//
// Process 0, on host 0, leads: it starts cases and decides when the run ends. Letters carry all this; each has a topic
// and a number, and waits until it is taken.
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

namespace lockstep::launch {

// What letters are about, and what their numbers count.
enum class Topic : std::uint8_t {
  hello,      // the facts of a process, and the table of all from process 0
  clock,      // questions and answers about the time
  agreement,  // what all launchers must have in common; number: chosen by the caller
  command,    // of host 0: what the other hosts do next; number: of the command
  part,       // the outcomes of a host's ranks; number: of the case
  result,     // all outcomes of a case, from host 0; number: of the case
  stop,       // the case ends at once; number: of the case
  interrupt,  // a process was told to end by a signal, whose number is the text
  bye,        // a process has seen the end
  end,        // the exit code, from host 0
};

class Hosts {
 public:
  struct Options {
    // Every process is a host of its own, for tests and measurements on one machine.
    bool each_rank_a_host = false;
    double seconds = 60.0;         // for the processes to find each other
    std::function<bool()> stop{};  // asked while waiting
  };
  // Connects the processes: `processes` has one host per process. Throws Error when a process does not answer.
  Hosts(std::unique_ptr<comm::Link> processes, const Options& options);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  int num_ranks() const { return static_cast<int>(host_of_.size()); }  // of which cases may have as many
  int num_hosts() const { return static_cast<int>(launchers_.size()); }
  int host() const { return host_of_[static_cast<std::size_t>(process())]; }
  bool is_launcher() const { return launchers_[static_cast<std::size_t>(host())] == process(); }
  // The host of each rank of a case.
  comm::HostMap map_of(int world_size) const;
  std::string name_of(int host) const;  // "host 1 (nodeb, ranks 2 to 3)"
  std::string describe() const;         // "4 ranks on 2 hosts over TCP: host 0 (...), host 1 (...)"
  // The link between launchers, whose hosts are those of this run. For Channel::ranks.
  comm::Link& link() { return *between_launchers_; }
  // A time of this host's monotonic clock on the clock of host 0, which orders events of different hosts.
  std::int64_t on_clock_of_first(std::int64_t time_ns) const { return time_ns == 0 ? 0 : time_ns - clock_offset_ns_; }

  // ---- letters between launchers ----
  void send(int host, Topic topic, std::uint64_t number, std::string_view text);
  void send_to_others(Topic topic, std::uint64_t number, std::string_view text);
  std::optional<std::string> take(int host, Topic topic, std::uint64_t number);
  // Sorts the letters that have arrived. take() does not.
  void progress();
  bool is_alive(int host);
  // For poll(): readable when progress() has something to do, or -1, when it must be called every millisecond.
  int descriptor() const { return processes_->descriptor(); }
  // Waits for the next events of the link, at most so long.
  void wait(int milliseconds);
  // Forgets the letters about cases up to this number.
  void forget_cases(std::uint64_t number);
  // The number of the next case. All launchers launch the same cases, so that their numbers agree.
  std::uint64_t next_case() { return ++last_case_; }

  // ---- the run ----
  // All launchers give the same text, or throw the same Error on every launcher. Lines of the text are compared one by
  // one; the message names the first that differs.
  void agree(const std::string& what, const std::string& text, const std::function<bool()>& stop);
  // The signal that ended another process of the run; 0: none. Only host 0 hears of it.
  int interrupt();
  // Tells host 0 of a signal that this process got.
  void report_interrupt(int signal);
  // A host did not answer, or its link ended. The end of the process then must not wait for it.
  void note_lost(int host) { lost_.at(static_cast<std::size_t>(host)) = true; }
  bool is_lost(int host) const { return lost_.at(static_cast<std::size_t>(host)); }
  bool any_lost() const;
  // On host 0: gives every process the exit code, and waits up to 5 s until they have seen it.
  void end(int exit_code);
  // On every other process: the exit code, once host 0 has given it. Nothing before.
  std::optional<int> ended();
  // On a process that is no launcher: waits for the exit code without using the processor. `stop` returns the signal
  // that this process got, or 0. Returns 3 when host 0 is gone, and 130 when it does not answer after a signal.
  int wait_for_end(const std::function<int()>& stop);
  // Ends the process at once with this code, where the link cannot end in order.
  void abandon(int exit_code) { processes_->abandon(exit_code); }

 private:
  struct Facts;
  int process() const { return processes_->host(); }
  void send_to_process(int process, Topic topic, std::uint64_t number, std::string_view text);
  std::string await(int process, Topic topic, std::uint64_t number, const Options& options, const char* what);
  std::vector<Facts> exchange_facts(const Options& options);
  void form_hosts(const std::vector<Facts>& facts);
  void compare_clocks(const std::vector<Facts>& facts, const Options& options);

  std::unique_ptr<comm::Link> processes_;
  std::unique_ptr<comm::Link> own_link_;  // between launchers, where some processes are none
  comm::Link* between_launchers_ = nullptr;
  std::vector<int> host_of_;           // per process
  std::vector<int> launchers_;         // per host: its first process
  std::vector<std::string> machines_;  // per host: its name
  std::vector<bool> lost_;             // per host
  std::int64_t clock_offset_ns_ = 0;
  std::uint64_t last_case_ = 0;
  bool has_reported_interrupt_ = false;
  using Key = std::tuple<Topic, std::uint64_t, int>;  // and the process that sent it
  std::map<Key, std::string> letters_;
};

// The offset of another clock from ours, from questions asked at `asked`, answered there at `answered` and received at
// `received`: of the quickest of them, as the middle between asking and receiving. For tests.
struct ClockAnswer {
  std::int64_t asked, answered, received;
};
std::int64_t clock_offset(const std::vector<ClockAnswer>& answers);

}  // namespace lockstep::launch
