// The promises of link.hpp, for every link. Both ends run the same function. A link of sockets forks the other end; a
// link over MPI needs two processes: `mpirun -n 2 comm_tests --gtest_filter='*LinkPromises*'`.
//
// To add a link: give it a row in the table at the end.
#include <functional>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/control.hpp"
#include "engine/comm/socket_link.hpp"
#include "engine/comm/test_mpi.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {
namespace {

using End = std::function<void(Link&)>;

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(what);
}

void until(const std::function<bool()>& holds, const std::string& what) {
  for (const std::int64_t start = now_ns(); !holds();) {
    require(now_ns() - start < 30'000'000'000, str("30 s have passed: ", what));
    usleep(10);
  }
}

Message next(Link& link, Channel channel = Channel::ranks) {
  Message message;
  until([&] { return link.poll(channel, message); }, "no message came");
  return message;
}

// Bytes that tell their number and their place.
std::string noise(std::size_t size, unsigned seed) {
  std::string text(size, '\0');
  std::uint32_t word = seed * 2654435761u + 1;
  for (char& byte : text) {
    word = word * 1664525u + 1013904223u;
    byte = static_cast<char>(word >> 24);
  }
  return text;
}
const std::byte* bytes_of(const std::string& text) { return reinterpret_cast<const std::byte*>(text.data()); }

// Both ends are done: neither ends its link while the other one still receives.
void finish(Link& link) {
  link.send(1 - link.host(), Channel::launcher, "done");
  require(next(link, Channel::launcher).bytes == "done", "another message in place of the last one");
  until([&] { return link.has_sent_all(); }, "not all was sent");
}

void run_sockets(const End& end) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  const int host = other == 0 ? 1 : 0;
  ::close(sockets[1 - host]);
  std::string failure;
  try {
    SocketLink link(host, host == 0 ? std::vector<int>{-1, sockets[0]} : std::vector<int>{sockets[1], -1});
    end(link);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (other == 0) {
    if (!failure.empty()) std::fprintf(stderr, "the other end: %s\n", failure.c_str());
    ::_exit(failure.empty() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(other, &status, 0);
  EXPECT_EQ(failure, "");
  EXPECT_EQ(status, 0) << "the other end failed";
}

void run_mpi(const End& end) {
  std::string failure;
  try {
    end(testing_mpi::link_of_two());
  } catch (const std::exception& error) {
    failure = error.what();
  }
  EXPECT_EQ(failure, "");
}

struct Kind {
  const char* name;
  void (*run)(const End& end);
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class LinkPromises : public testing::TestWithParam<Kind> {};

TEST_P(LinkPromises, MessagesArriveWholeOnceAndInOrder) {
  GetParam().run([](Link& link) {
    require(link.num_hosts() == 2, "two hosts");
    const std::size_t sizes[] = {0, 1, 100, 4095, 4096, 4097, 65536, 1'000'003, 20'000'000, 3};
    unsigned seed = static_cast<unsigned>(100 * link.host());
    for (const std::size_t size : sizes) link.send(1 - link.host(), Channel::ranks, noise(size, ++seed));
    seed = static_cast<unsigned>(100 * (1 - link.host()));
    for (const std::size_t size : sizes) {
      const Message message = next(link);
      require(message.from == 1 - link.host(), "from the other host");
      require(message.data_bytes == 0, "no data follows");
      require(message.bytes == noise(size, ++seed), str("another message in place of that of ", size, " bytes"));
    }
    Message none;
    require(!link.poll(Channel::ranks, none), "a message too many");
    finish(link);  // after it the other end may begin the next test, over the same link
  });
}

TEST_P(LinkPromises, SendingManyMessagesDoesNotBlock) {
  GetParam().run([](Link& link) {
    constexpr int num = 20'000;
    for (int i = 0; i < num; ++i) link.send(1 - link.host(), i % 3 == 0 ? Channel::launcher : Channel::ranks, str(i));
    for (int i = 0; i < num; ++i)
      require(next(link, i % 3 == 0 ? Channel::launcher : Channel::ranks).bytes == str(i), str("message ", i));
    finish(link);
  });
}

TEST_P(LinkPromises, DataArrivesBitForBitInTheReceiversOrder) {
  GetParam().run([](Link& link) {
    const std::size_t sizes[] = {1, 4096, 70'000, 1 << 20, 30'000'001};
    std::vector<std::string> mine;
    std::vector<Transfer> sending, receiving;
    for (unsigned i = 0; i < 5; ++i) mine.push_back(noise(sizes[i], i + 10 * static_cast<unsigned>(link.host())));
    for (std::size_t i = 0; i < 5; ++i)
      sending.push_back(
          link.send_with_data(1 - link.host(), Channel::ranks, str("data ", i), bytes_of(mine[i]), mine[i].size()));
    std::vector<Message> heads;
    for (std::size_t i = 0; i < 5; ++i) {
      heads.push_back(next(link));
      require(heads.back().bytes == str("data ", i), "the heads come in order");
      require(heads.back().data_bytes == sizes[i], "the head tells the size");
    }
    // The receiver takes them from the last to the first.
    std::vector<std::string> theirs(5);
    for (std::size_t i = 5; i-- > 0;) {
      theirs[i].resize(sizes[i]);
      receiving.push_back(link.receive(heads[i], reinterpret_cast<std::byte*>(theirs[i].data())));
    }
    const auto done = [&](std::vector<Transfer>& transfers) {
      std::erase_if(transfers, [&](Transfer transfer) { return link.is_done(transfer); });
      return transfers.empty();
    };
    until([&] { return done(receiving); }, "the data did not come");
    for (unsigned i = 0; i < 5; ++i)
      require(theirs[i] == noise(sizes[i], i + 10 * static_cast<unsigned>(1 - link.host())), str("data ", i));
    until([&] { return done(sending); }, "the buffers did not become free");
    finish(link);
  });
}

TEST_P(LinkPromises, DiscardedDataFreesTheSender) {
  GetParam().run([](Link& link) {
    const std::string mine = noise(5'000'000, 3);
    const Transfer sending = link.send_with_data(1 - link.host(), Channel::ranks, "x", bytes_of(mine), mine.size());
    link.send(1 - link.host(), Channel::ranks, "after it");
    link.discard(next(link));
    require(next(link).bytes == "after it", "the message after discarded data");
    until([&] { return link.is_done(sending); }, "the buffer did not become free");
    finish(link);
  });
}

TEST_P(LinkPromises, BothDirectionsAtOnce) {
  GetParam().run([](Link& link) {
    constexpr std::size_t size = 300'000;
    constexpr int num = 50;
    const std::string mine = noise(size, static_cast<unsigned>(link.host()));
    const std::string expected = noise(size, static_cast<unsigned>(1 - link.host()));
    std::vector<std::string> theirs(num, std::string(size, '\0'));
    std::vector<Transfer> transfers;
    for (int i = 0; i < num; ++i)
      transfers.push_back(link.send_with_data(1 - link.host(), Channel::ranks, str(i), bytes_of(mine), mine.size()));
    for (int i = 0; i < num; ++i)
      transfers.push_back(
          link.receive(next(link), reinterpret_cast<std::byte*>(theirs[static_cast<std::size_t>(i)].data())));
    until(
        [&] {
          std::erase_if(transfers, [&](Transfer transfer) { return link.is_done(transfer); });
          return transfers.empty();
        },
        "the transfers did not end");
    for (const std::string& text : theirs) require(text == expected, "the data");
    finish(link);
  });
}

INSTANTIATE_TEST_SUITE_P(, LinkPromises,
                         testing::Values(testing_mpi::has_two_processes() ? Kind{"Mpi", run_mpi}
                                                                          : Kind{"Sockets", run_sockets}),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace lockstep::comm
