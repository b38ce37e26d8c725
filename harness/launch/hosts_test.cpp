#include "harness/launch/hosts.hpp"

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/comm/process_group.hpp"
#include "engine/core/error.hpp"
#include "harness/launch/exchange.hpp"
#include "harness/launch/test_hosts.hpp"

namespace lockstep::launch {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using verdict::RankOutcome;
using verdict::RankStatus;

LaunchOptions options_on(Hosts& hosts, int world_size, Launch launch = Launch::process) {
  LaunchOptions options = options_for(world_size, launch);
  options.hosts = &hosts;
  return options;
}

// "0 finished; 1 killed 9: detail; "
std::string text_of(const LaunchResult& result) {
  std::string text;
  for (const RankOutcome& outcome : result.outcomes) {
    text += str(outcome.rank, " ", verdict::name_of(outcome.status));
    if (outcome.signal != 0) text += str(" ", outcome.signal);
    if (!outcome.detail.empty()) text += str(": ", outcome.detail);
    for (const verdict::Failure& failure : outcome.failures) text += str(", ", failure.message);
    text += "; ";
  }
  return text;
}

RankOutcome says_hello(int rank) {
  RankOutcome outcome = fine(rank);
  for (const std::string& each : comm::exchange(comm::world_group(), str("rank ", rank))) outcome.detail += each + " ";
  return outcome;
}

class EachLaunchOnHosts : public ::testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(Launch, EachLaunchOnHosts, ::testing::Values(Launch::process, Launch::thread),
                         [](const auto& of) { return of.param == Launch::process ? "process" : "thread"; });

TEST_P(EachLaunchOnHosts, EveryLauncherHasTheOutcomesOfAllRanks) {
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1}, {0, 0, 1}, {0, 1, 0, 2}}) {
    const int world_size = static_cast<int>(host_of.size());
    std::string all, expected;
    for (int rank = 0; rank < world_size; ++rank) all += str("rank ", rank, " ");
    for (int rank = 0; rank < world_size; ++rank) expected += str(rank, " finished: ", all, "; ");
    const auto ended = run_launchers(host_of, [&](Hosts& hosts) {
      std::string said;
      for (int turn = 0; turn < 3; ++turn)
        said += text_of(launch(options_on(hosts, world_size, GetParam()), says_hello));
      return said;
    });
    for (const EndedLauncher& each : ended) EXPECT_EQ(each.said, expected + expected + expected);
  }
}

TEST(Hosts, RunNoRankWhereACaseHasNone) {
  const auto ended = run_launchers({0, 1, 2}, [](Hosts& hosts) {
    return text_of(launch(options_on(hosts, 1), says_hello)) + text_of(launch(options_on(hosts, 2), says_hello));
  });
  for (const EndedLauncher& each : ended)
    EXPECT_EQ(each.said, "0 finished: rank 0 ; 0 finished: rank 0 rank 1 ; 1 finished: rank 0 rank 1 ; ");
}

TEST(Hosts, ForkTheirOwnRanksOnly) {
  const auto ended = run_launchers({0, 1, 1}, [](Hosts& hosts) {
    const pid_t launcher = ::getpid();
    const LaunchResult result = launch(options_on(hosts, 3), [launcher](int rank) {
      RankOutcome outcome = fine(rank);
      outcome.exit_code = ::getppid() == launcher ? ::getppid() : -1;
      return outcome;
    });
    return str(result.outcomes[0].exit_code, " ", result.outcomes[1].exit_code, " ", result.outcomes[2].exit_code, " ",
               hosts.host() == 0 ? launcher : 0, " ", hosts.host() == 1 ? launcher : 0);
  });
  int first[5] = {}, second[5] = {};
  ASSERT_EQ(std::sscanf(ended[0].said.c_str(), "%d %d %d %d %d", first, first + 1, first + 2, first + 3, first + 4), 5);
  ASSERT_EQ(
      std::sscanf(ended[1].said.c_str(), "%d %d %d %d %d", second, second + 1, second + 2, second + 3, second + 4), 5);
  EXPECT_EQ(first[0], first[3]);
  EXPECT_EQ(first[1], second[4]);
  EXPECT_EQ(first[2], second[4]);
  EXPECT_NE(first[0], first[1]);
}

TEST(Hosts, ReportADeadRankEverywhereAndGoOn) {
  const auto ended = run_launchers({0, 1, 1}, [](Hosts& hosts) {
    std::string said = text_of(launch(options_on(hosts, 3), [](int rank) {
      comm::barrier(comm::world_group());
      if (rank == 1) ::raise(SIGKILL);
      comm::barrier(comm::world_group());
      return fine(rank);
    }));
    return said + text_of(launch(options_on(hosts, 3), says_hello));
  });
  for (const EndedLauncher& each : ended) {
    EXPECT_THAT(each.said, AllOf(HasSubstr("1 killed 9: "), HasSubstr("rank 1 died: ended by signal 9 (SIGKILL)"),
                                 HasSubstr("2 finished: rank 0 rank 1 rank 2 ;")));
    EXPECT_EQ(each.said, ended[0].said);
    EXPECT_LT(each.seconds, 8.0);
  }
}

TEST(Hosts, EndAHangAtItsTimeLimitEverywhere) {
  const auto ended = run_launchers({0, 1}, [](Hosts& hosts) {
    LaunchOptions options = options_on(hosts, 2);
    options.timeout_seconds = 0.5;
    options.collective_deadline_seconds = 100;
    const LaunchResult result = launch(options, [](int rank) {
      if (rank == 0) comm::barrier(comm::world_group());
      for (;;) ::pause();
      return fine(rank);
    });
    return str(text_of(result), result.outcomes[0].bystander ? "0 is a bystander" : "", "; stories ",
               result.stories.size());
  });
  for (const EndedLauncher& each : ended) {
    EXPECT_THAT(each.said, AllOf(HasSubstr("0 hung"), HasSubstr("1 hung 9: rank 0 waits for it in barrier"),
                                 HasSubstr("bystander")));
    EXPECT_LT(each.seconds, 8.0);
  }
  EXPECT_EQ(ended[0].said, ended[1].said);
}

TEST(Hosts, CollectTheFlightRecorderOfAFailedCaseOnHost0) {
  const auto ended = run_launchers({0, 1, 1}, [](Hosts& hosts) {
    const LaunchResult result = launch(options_on(hosts, 3), [](int rank) {
      if (rank > 0) {
        comm::ProcessGroup& pair = comm::group_of({1, 2});
        for (int i = 0; i < 5; ++i) comm::barrier(pair);
      }
      if (rank == 2) throw Error("on purpose");
      return fine(rank);
    });
    return hosts.host() == 0 ? str(result.stories.at(2).collectives.size(), " ", result.stories.at(2).why) : "";
  });
  EXPECT_EQ(ended[0].said, "5 on purpose");
}

TEST(Hosts, LoseAHostWhoseLauncherWasKilled) {
  const auto ended = run_launchers(
      {0, 1, 2},
      [](Hosts& hosts) {
        const LaunchResult result = launch(options_on(hosts, 3), [](int rank) {
          if (rank == 1) ::sleep(60);
          comm::barrier(comm::world_group());
          return fine(rank);
        });
        return text_of(result) + (hosts.is_lost(1) ? "lost" : "");
      },
      [](const std::vector<pid_t>& pids) {
        ::usleep(500'000);
        ::kill(pids[1], SIGKILL);
      });
  EXPECT_TRUE(WIFSIGNALED(ended[1].status));
  for (int host : {0, 2}) {
    const EndedLauncher& each = ended[static_cast<std::size_t>(host)];
    EXPECT_THAT(each.said, AllOf(HasSubstr("1 lost: host 1 ("), HasSubstr(", rank 1) was lost 0."),
                                 HasSubstr("after the start of the case: "), HasSubstr("0 failed, ")));
    EXPECT_LT(each.seconds, 8.0);
  }
  EXPECT_THAT(ended[0].said, ::testing::EndsWith("lost"));
}

// Its last bytes never leave, while the ranks have their results.
TEST(Hosts, LoseAHostWhoseTransfersDoNotEnd) {
  struct Stuck : comm::SocketLink {
    using SocketLink::SocketLink;
    bool has_sent_all() override { return false; }
  };
  const auto ended = run_launchers(
      {0, 1}, [](Hosts& hosts) { return text_of(launch(options_on(hosts, 2), says_hello)) + hosts.why_lost(); }, {},
      [](int host, std::vector<int> sockets) {
        if (host == 0) return std::unique_ptr<comm::Link>(std::make_unique<Stuck>(host, std::move(sockets)));
        return socket_link(host, std::move(sockets));
      });
  EXPECT_THAT(ended[0].said, StartsWith("0 finished: rank 0 rank 1 ; 1 finished: rank 0 rank 1 ; host 1 ("));
  EXPECT_THAT(ended[0].said, HasSubstr("its messages of the case did not end in time"));
}

TEST(Hosts, EndWhenHost0IsKilled) {
  const auto ended = run_launchers(
      {0, 1},
      [](Hosts& hosts) {
        return text_of(launch(options_on(hosts, 2), [](int rank) {
          if (rank == 0) ::sleep(60);
          comm::barrier(comm::world_group());
          return fine(rank);
        }));
      },
      [](const std::vector<pid_t>& pids) {
        ::usleep(300'000);
        ::kill(pids[0], SIGKILL);
      });
  EXPECT_THAT(ended[1].said, AllOf(StartsWith("0 lost: host 0 ("), HasSubstr("1 failed, ")));
  EXPECT_LT(ended[1].seconds, 8.0);
}

TEST(Hosts, AnInterruptOnOneHostEndsTheCaseOnAll) {
  for (const int interrupted : {0, 1}) {
    const auto ended = run_launchers({0, 1}, [&](Hosts& hosts) {
      Pool pool(1);
      pool.start(0, options_on(hosts, 2), [](int rank) {
        for (;;) ::pause();
        return fine(rank);
      });
      ::usleep(hosts.host() == interrupted ? 200'000 : 0);
      return text_of(pool.next([&] { return hosts.host() == interrupted; }).result);
    });
    for (const EndedLauncher& each : ended) {
      EXPECT_EQ(each.said, "0 killed 9: interrupted; 1 killed 9: interrupted; ");
      EXPECT_LT(each.seconds, 5.0);
    }
  }
}

TEST(Hosts, HearOfASignalAndGiveTheExitCode) {
  const auto ended = run_launchers({0, 1, 2}, [](Hosts& hosts) {
    if (hosts.host() == 2) hosts.report_interrupt(SIGTERM);
    if (hosts.host() != 0) {
      std::optional<int> code;
      for (; !code; code = hosts.ended()) {
        hosts.wait(10);
        hosts.progress();
      }
      return str(*code);
    }
    while (hosts.interrupt() == 0) hosts.wait(10);
    const std::string said = str(hosts.interrupt());
    hosts.end(130);
    return str(said, hosts.any_lost() ? " lost" : "");
  });
  EXPECT_EQ(ended[0].said, "15");
  EXPECT_EQ(ended[1].said, "130");
  EXPECT_EQ(ended[2].said, "130");
}

TEST(Hosts, NameTheFirstDifference) {
  const auto agree = [](const std::string& second) {
    return run_launchers({0, 1}, [&](Hosts& hosts) -> std::string {
      hosts.agree("cases", hosts.host() == 0 ? "a\nb\nc\n" : second, {});
      return "agreed";
    });
  };
  for (const EndedLauncher& each : agree("a\nb\nc\n")) EXPECT_EQ(each.said, "agreed");
  for (const EndedLauncher& each : agree("a\nx\nc\n"))
    EXPECT_THAT(each.said, AllOf(HasSubstr("cases of host 1 ("), HasSubstr("rank 1) differ: `b` on host 0, `x` there "
                                                                           "(entry 2) (give the same")));
  for (const EndedLauncher& each : agree("a\nb\n"))
    EXPECT_THAT(each.said, HasSubstr("`c` on host 0, `nothing` there (entry 3)"));
}

TEST(Hosts, RefuseMoreRanksThanProcesses) {
  const auto ended = run_launchers({0, 1}, [](Hosts& hosts) { return text_of(launch(options_on(hosts, 3), fine)); });
  for (const EndedLauncher& each : ended) EXPECT_THAT(each.said, HasSubstr("3 ranks on hosts for 2"));
}

TEST(Hosts, DescribeThemselves) {
  const auto ended = run_launchers({0, 1, 1, 0}, [](Hosts& hosts) { return hosts.describe(); });
  const std::string machine = machine_name();
  EXPECT_EQ(ended[1].said, str("4 ranks on 2 hosts over TCP: host 0 (", machine, ", ranks 0, 3), host 1 (", machine,
                               ", ranks 1 to 2)"));
}

TEST(ClockOffset, IsThatOfTheQuickestAnswer) {
  EXPECT_EQ(clock_offset({{1000, 901'200, 1400}}), 900'000);
  EXPECT_EQ(clock_offset({{1000, 905'000, 9000}, {20'000, 920'060, 20'100}, {30'000, 935'000, 34'000}}), 900'010);
}

TEST(Outcomes, TravelAsText) {
  std::vector<RankOutcome> outcomes = {fine(0), fine(1), fine(2)};
  outcomes[2].detail = std::string(100'000, 'x');
  const std::string text = text_of_outcomes(outcomes, {0, 2});
  const std::vector<RankOutcome> here = outcomes_from_text(text);
  ASSERT_EQ(here.size(), 2u);
  EXPECT_EQ(here[0].evidence.comparisons, 10);
  EXPECT_EQ(here[1].rank, 2);
  EXPECT_EQ(here[1].detail, outcomes[2].detail);
  EXPECT_THROW(outcomes_from_text(text.substr(0, text.size() - 1)), Error);
  EXPECT_THROW(outcomes_from_text(text.substr(0, 5)), Error);
}

// Of processes over one link. Launchers end with one more than 10 times the number of hosts, which they give to the
// others.
std::vector<int> exit_codes(int ranks_per_host, int num) {
  std::vector<std::vector<int>> sockets = socket_pairs(static_cast<std::size_t>(num));
  std::vector<pid_t> pids;
  for (int rank = 0; rank < num; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (int other = 0; other < num; ++other)
        for (int socket : sockets[static_cast<std::size_t>(other)])
          if (other != rank && socket >= 0) ::close(socket);
      const auto processes =
          processes_over(std::make_unique<comm::SocketLink>(rank, sockets[static_cast<std::size_t>(rank)]),
                         {.ranks_per_host = ranks_per_host, .seconds = 20.0});
      const int num_hosts = 1 + processes->host_of().back();
      if (processes->link() == nullptr) ::_exit(processes->wait_for_launcher());
      ::usleep(50'000);
      processes->end(10 * num_hosts);
      ::_exit(10 * num_hosts + 1);
    }
    pids.push_back(pid);
  }
  for (const std::vector<int>& row : sockets)
    for (int socket : row)
      if (socket >= 0) ::close(socket);
  std::vector<int> codes;
  for (pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return codes;
}

TEST(Processes, OfOneMachineWaitForTheirLauncher) {
  EXPECT_EQ(exit_codes(0, 4), (std::vector<int>{11, 10, 10, 10}));
  EXPECT_EQ(exit_codes(1, 3), (std::vector<int>{31, 31, 31}));
  EXPECT_EQ(exit_codes(2, 5), (std::vector<int>{31, 30, 31, 30, 31}));
}

TEST(LauncherLink, PassesMessagesAndDataBetweenLaunchersOnly) {
  std::vector<std::vector<int>> sockets = socket_pairs(4);
  std::vector<std::unique_ptr<comm::SocketLink>> all;
  for (int rank = 0; rank < 4; ++rank)
    all.push_back(std::make_unique<comm::SocketLink>(rank, sockets[static_cast<std::size_t>(rank)]));
  const auto first = link_between(*all[1], {1, 3}), second = link_between(*all[3], {1, 3});
  EXPECT_EQ(second->host(), 1);
  EXPECT_EQ(second->num_hosts(), 2);
  const std::string data(100'000, 'd');
  std::string here(100'000, '?');
  all[2]->send(3, comm::Channel::ranks, "of no launcher");
  const comm::Transfer sent =
      first->send_with_data(1, comm::Channel::ranks, "m", reinterpret_cast<const std::byte*>(data.data()), data.size());
  comm::Message message;
  while (!second->poll(comm::Channel::ranks, message)) first->progress();
  EXPECT_EQ(message.from, 0);
  EXPECT_EQ(message.bytes, "m");
  const comm::Transfer received = second->receive(message, reinterpret_cast<std::byte*>(here.data()));
  while (!second->is_done(received)) first->progress();
  while (!first->is_done(sent)) second->progress();
  EXPECT_EQ(here, data);
  EXPECT_TRUE(second->is_alive(0));
  all[1].reset();
  while (second->is_alive(0)) ::usleep(1000);
}

}  // namespace
}  // namespace lockstep::launch
