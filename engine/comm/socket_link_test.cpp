#include "engine/comm/socket_link.hpp"

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/core/error.hpp"

namespace lockstep::comm {
namespace {

using Links = std::vector<std::unique_ptr<SocketLink>>;

std::vector<std::vector<int>> pairs_of(int num_hosts) {
  const auto size = static_cast<std::size_t>(num_hosts);
  std::vector<std::vector<int>> sockets(size, std::vector<int>(size, -1));
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = a + 1; b < size; ++b) {
      int ends[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      sockets[a][b] = ends[0];
      sockets[b][a] = ends[1];
    }
  }
  return sockets;
}

// All hosts in this process: nothing blocks, so that one thread can use them in turns.
Links links_of(int num_hosts) {
  Links links;
  const auto sockets = pairs_of(num_hosts);
  for (int host = 0; host < num_hosts; ++host)
    links.push_back(std::make_unique<SocketLink>(host, sockets[static_cast<std::size_t>(host)]));
  return links;
}

bool soon(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!holds())
    if (std::chrono::steady_clock::now() > end) return false;
  return true;
}

Message next(Links& links, std::size_t at, Channel channel = Channel::launcher) {
  Message message;
  EXPECT_TRUE(soon([&] {
    for (const auto& link : links) link->progress();
    return links[at]->poll(channel, message);
  }));
  return message;
}

std::string noise(std::size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(text.data() + i, &word, 8);
  }
  for (std::size_t i = bytes / 8 * 8; i < bytes; ++i) text[i] = static_cast<char>(random());
  return text;
}

const std::byte* bytes_of(const std::string& text) { return reinterpret_cast<const std::byte*>(text.data()); }
std::byte* bytes_of(std::string& text) { return reinterpret_cast<std::byte*>(text.data()); }

TEST(SocketLink, CarriesMessagesOfAnySizeWholeAndInOrder) {
  Links links = links_of(2);
  const std::vector<std::size_t> sizes = {0, 1, 31, 32, 33, 4096, 131071, 131072, 131073, 3'000'000, 100'000'000, 5, 0};
  for (std::size_t i = 0; i < sizes.size(); ++i)
    links[0]->send(1, Channel::launcher, noise(sizes[i], static_cast<unsigned>(i)));
  EXPECT_FALSE(links[0]->has_sent_all());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Message message = next(links, 1);
    EXPECT_EQ(message.from, 0);
    EXPECT_EQ(message.data_bytes, 0u);
    ASSERT_EQ(message.bytes.size(), sizes[i]);
    EXPECT_TRUE(message.bytes == noise(sizes[i], static_cast<unsigned>(i))) << sizes[i];
  }
  EXPECT_TRUE(links[0]->has_sent_all());
  Message none;
  EXPECT_FALSE(links[1]->poll(Channel::launcher, none));
}

TEST(SocketLink, KeepsTheOrderOfEachSenderAndChannel) {
  Links links = links_of(3);
  const int num = 20'000;
  for (int i = 0; i < num; ++i) {
    for (int from : {0, 1})
      links[static_cast<std::size_t>(from)]->send(2, i % 3 == 0 ? Channel::ranks : Channel::launcher, str(i));
    links[2]->send(i % 2, Channel::ranks, str("back ", i));
  }
  for (const Channel channel : {Channel::launcher, Channel::ranks}) {
    int seen[2] = {-1, -1};
    for (int i = 0; i < 2 * num; ++i) {
      if ((i / 2 % 3 == 0) != (channel == Channel::ranks)) continue;
      const Message message = next(links, 2, channel);
      const int number = std::stoi(message.bytes);
      ASSERT_GT(number, seen[message.from]);
      ASSERT_EQ(number % 3 == 0, channel == Channel::ranks);
      seen[message.from] = number;
    }
  }
  for (int i = 0; i < num; ++i)
    ASSERT_EQ(next(links, static_cast<std::size_t>(i % 2), Channel::ranks).bytes, str("back ", i));
  for (const auto& link : links) {
    Message none;
    EXPECT_FALSE(link->poll(Channel::launcher, none));
    EXPECT_FALSE(link->poll(Channel::ranks, none));
  }
}

class SocketLinkData : public ::testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, SocketLinkData,
                         ::testing::Values(0, 1, 1000, SocketLink::eager_bytes, SocketLink::eager_bytes + 1,
                                           SocketLink::chunk_bytes, 3 * SocketLink::chunk_bytes + 17, 100'000'000));

TEST_P(SocketLinkData, DataArrivesWithItsMessage) {
  Links links = links_of(2);
  const std::string data = noise(GetParam(), 3);
  const Transfer sent = links[0]->send_with_data(1, Channel::ranks, "head", bytes_of(data), data.size());
  links[0]->send(1, Channel::ranks, "next");
  const Message message = next(links, 1, Channel::ranks);
  EXPECT_EQ(message.bytes, "head");
  ASSERT_EQ(message.data_bytes, data.size());
  std::string here(data.size(), '?');
  const Transfer received = links[1]->receive(message, bytes_of(here));
  EXPECT_TRUE(soon([&] {
    links[0]->progress();
    return links[1]->is_done(received);
  }));
  EXPECT_TRUE(here == data);
  EXPECT_TRUE(soon([&] { return links[0]->is_done(sent); }));
  EXPECT_EQ(next(links, 1, Channel::ranks).bytes, "next");
  EXPECT_TRUE(links[0]->has_sent_all());
}

TEST_P(SocketLinkData, DiscardedDataFreesTheBufferOfTheSender) {
  Links links = links_of(2);
  const std::string data = noise(GetParam(), 4);
  const Transfer sent = links[0]->send_with_data(1, Channel::ranks, "head", bytes_of(data), data.size());
  links[1]->discard(next(links, 1, Channel::ranks));
  EXPECT_TRUE(soon([&] {
    links[1]->progress();
    return links[0]->is_done(sent);
  }));
  EXPECT_TRUE(links[0]->has_sent_all());
}

TEST(SocketLink, ReceivesDataInAnyOrderWhileMessagesPass) {
  Links links = links_of(2);
  std::vector<std::string> data;
  std::vector<Transfer> sent;
  for (unsigned i = 0; i < 6; ++i) {
    data.push_back(noise(i % 2 == 0 ? 2'000'003 : 700, i));
    sent.push_back(links[0]->send_with_data(1, Channel::ranks, str(i), bytes_of(data[i]), data[i].size()));
  }
  std::vector<Message> messages;
  for (int i = 0; i < 6; ++i) messages.push_back(next(links, 1, Channel::ranks));
  std::vector<std::string> here(6);
  std::vector<Transfer> received;
  for (std::size_t i = 6; i-- > 0;) {
    here[i].resize(data[i].size());
    received.push_back(links[1]->receive(messages[i], bytes_of(here[i])));
  }
  links[0]->progress();  // the first chunks are under way
  links[0]->send(1, Channel::launcher, "passes");
  bool passed = false;
  std::size_t num_done = 0;
  EXPECT_TRUE(soon([&] {
    Message message;
    links[0]->progress();
    passed = passed || (links[1]->poll(Channel::launcher, message) && num_done < 6);
    std::erase_if(received, [&](Transfer each) { return links[1]->is_done(each); });
    num_done = 6 - received.size();
    return num_done == 6;
  }));
  EXPECT_TRUE(passed);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(here[i] == data[i]) << i;
  for (Transfer each : sent) EXPECT_TRUE(soon([&] { return links[0]->is_done(each); }));
}

TEST(SocketLink, SendsToOthersOnly) {
  Links links = links_of(2);
  EXPECT_THROW(links[0]->send(0, Channel::launcher, "a"), InternalError);
  EXPECT_THROW(links[0]->send_with_data(0, Channel::launcher, "a", nullptr, 0), InternalError);
  EXPECT_TRUE(links[0]->is_alive(0));
}

// A forked process at the other end, which may die at any point.
struct Forked {
  std::unique_ptr<SocketLink> link;
  pid_t pid = -1;
  explicit Forked(const std::function<void(SocketLink&)>& body) {
    const auto sockets = pairs_of(2);
    pid = ::fork();
    if (pid == 0) {
      ::close(sockets[0][1]);
      SocketLink other(1, sockets[1]);
      body(other);
      ::_exit(0);
    }
    ::close(sockets[1][0]);
    link = std::make_unique<SocketLink>(0, sockets[0]);
  }
  ~Forked() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
};

TEST(SocketLink, NoticesTheEndOfAProcessAfterItsLastMessages) {
  Forked other([](SocketLink& link) {
    for (int i = 0; i < 1000; ++i) link.send(0, Channel::launcher, str(i));
    while (!link.has_sent_all()) ::usleep(100);
  });
  int expected = 0;
  EXPECT_TRUE(soon([&] { return !other.link->is_alive(1); }));
  for (Message message; other.link->poll(Channel::launcher, message); ++expected)
    ASSERT_EQ(message.bytes, str(expected));
  EXPECT_EQ(expected, 1000);
}

TEST(SocketLink, FreesTheBuffersOfTransfersWithAProcessThatWasKilled) {
  Forked other([](SocketLink& link) {
    const std::string data = noise(1'000'000, 1);
    link.send_with_data(0, Channel::ranks, "take", bytes_of(data), data.size());
    while (!link.has_sent_all()) link.progress(), ::usleep(1000);  // never: nobody asks
    ::_exit(1);
  });
  const std::string data = noise(50'000'000, 2);
  std::string here(1'000'000, '?');
  const Transfer sent = other.link->send_with_data(1, Channel::ranks, "data", bytes_of(data), data.size());
  Message message;
  ASSERT_TRUE(soon([&] { return other.link->poll(Channel::ranks, message); }));
  EXPECT_FALSE(other.link->is_done(sent));
  EXPECT_FALSE(other.link->has_sent_all());
  ::kill(other.pid, SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  EXPECT_TRUE(soon([&] { return !other.link->is_alive(1); }));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(1));
  EXPECT_TRUE(other.link->is_done(sent));
  EXPECT_TRUE(other.link->is_done(other.link->receive(message, bytes_of(here))));
  EXPECT_TRUE(other.link->has_sent_all());
  other.link->send(1, Channel::ranks, "nobody reads this");
  EXPECT_TRUE(other.link->is_done(other.link->send_with_data(1, Channel::ranks, "", bytes_of(data), data.size())));
}

TEST(SocketLink, EndsTransfersFromAProcessThatWasKilled) {
  Forked other([](SocketLink& link) {
    const std::string data = noise(1'000'000, 1);
    link.send_with_data(0, Channel::ranks, "take", bytes_of(data), data.size());
    while (!link.has_sent_all()) link.progress(), ::usleep(1000);
    for (;;) ::pause();
  });
  std::string here(1'000'000, '?');
  Message message;
  ASSERT_TRUE(soon([&] { return other.link->poll(Channel::ranks, message); }));
  ::kill(other.pid, SIGSTOP);
  ::usleep(20'000);
  const Transfer coming = other.link->receive(message, bytes_of(here));
  EXPECT_FALSE(other.link->is_done(coming));
  ::kill(other.pid, SIGKILL);
  EXPECT_TRUE(soon([&] { return !other.link->is_alive(1); }));
  EXPECT_TRUE(other.link->is_done(coming));
}

TEST(SocketLink, WakesByItsDescriptor) {
  Forked other([](SocketLink& link) {
    ::usleep(50'000);
    link.send(0, Channel::launcher, "now");
    for (;;) ::pause();
  });
  pollfd waited{other.link->descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&waited, 1, 10), 0);
  EXPECT_EQ(::poll(&waited, 1, 20'000), 1);
  Message message;
  EXPECT_TRUE(other.link->poll(Channel::launcher, message));
  EXPECT_EQ(message.bytes, "now");
  EXPECT_EQ(::poll(&waited, 1, 0), 0);
}

TEST(SocketLink, TakesBytesThatAreNoFrameAsTheEndOfTheConnection) {
  auto sockets = pairs_of(2);
  SocketLink link(0, sockets[0]);
  link.send(1, Channel::launcher, noise(10'000'000, 8));  // more than the socket takes
  EXPECT_FALSE(link.has_sent_all());
  const std::string noise_bytes = noise(100, 9);
  ASSERT_EQ(::write(sockets[1][0], noise_bytes.data(), noise_bytes.size()), 100);
  EXPECT_TRUE(soon([&] { return !link.is_alive(1); }));
  EXPECT_TRUE(link.has_sent_all()) << "what remains goes nowhere";
  ::close(sockets[1][0]);
}

TEST(SocketLink, RefusesSocketsThatDoNotFit) {
  EXPECT_THROW(SocketLink(0, {-1, -1}), Error);
  EXPECT_THROW(SocketLink(2, {-1, -1}), Error);
  const auto sockets = pairs_of(2);
  EXPECT_THROW(SocketLink(-1, {sockets[0][1], sockets[1][0]}), Error) << "it closes the sockets";
}

}  // namespace
}  // namespace lockstep::comm
