// The stream of a socket link, written by the test: cut anywhere, and with frames that do not fit.
#include <algorithm>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/comm/socket_link.hpp"

namespace lockstep::comm {
namespace {

// The link takes its end; the other one is the test's.
struct Pair {
  Pair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    link = ends[0];
    test = ends[1];
  }
  ~Pair() { ::close(test); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  int link = -1, test = -1;
};

std::string some_bytes(std::size_t num) {
  std::string bytes(num, '\0');
  for (std::size_t i = 0; i < num; ++i) bytes[i] = static_cast<char>(i * 37 % 251);
  return bytes;
}

const std::byte* bytes_of(const std::string& text) { return reinterpret_cast<const std::byte*>(text.data()); }
std::byte* bytes_of(std::string& text) { return reinterpret_cast<std::byte*>(text.data()); }

// What a link writes for host 0 when host 1 sends three messages, the second with data.
std::string stream_of_three_messages() {
  const Pair pair;
  SocketLink sender(1, {pair.link, -1});
  const std::string data = some_bytes(50);
  sender.send(0, Channel::launcher, "first");
  sender.send_with_data(0, Channel::launcher, "", bytes_of(data), data.size());
  sender.send(0, Channel::launcher, "third");
  EXPECT_TRUE(sender.has_sent_all());
  std::string stream(1000, '\0');
  const ssize_t size = ::read(pair.test, stream.data(), stream.size());
  EXPECT_GT(size, 0);
  stream.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return stream;
}

TEST(SocketLinkFrames, TakesMessagesWholeWhereverTheStreamIsCut) {
  const std::string stream = stream_of_three_messages();
  const std::string data = some_bytes(50);
  for (std::size_t cut = 1; cut < stream.size(); ++cut) {
    const Pair pair;
    SocketLink link(0, {-1, pair.link});
    for (const std::string& part : {stream.substr(0, cut), stream.substr(cut)}) {
      ASSERT_EQ(::write(pair.test, part.data(), part.size()), static_cast<ssize_t>(part.size()));
      link.progress();
    }
    for (const std::string text : {"first", "", "third"}) {
      Message message;
      ASSERT_TRUE(link.poll(Channel::launcher, message)) << "cut at byte " << cut;
      EXPECT_EQ(message.bytes, text) << "cut at byte " << cut;
      EXPECT_EQ(message.from, 1);
      ASSERT_EQ(message.data_bytes, text.empty() ? 50U : 0U);
      std::string here(message.data_bytes, '?');
      EXPECT_TRUE(link.is_done(link.receive(message, bytes_of(here))));
      EXPECT_TRUE(here == data.substr(0, message.data_bytes)) << "cut at byte " << cut;
    }
    Message none;
    EXPECT_FALSE(link.poll(Channel::launcher, none));
  }
}

// As SocketLink writes the head of a frame on this machine.
struct RawHead {
  std::uint32_t magic = 0x4c4b4653;
  std::uint8_t kind = 0;  // message, ready, refuse, data
  std::uint8_t channel = 0;
  std::uint16_t is_eager = 0;
  std::uint64_t bytes = 0, data_bytes = 0, number = 0;
};

// Whether the connection stands after these bytes. By then host 1 has announced 100 kB under number 1, which the link
// has asked for and of which `num_sent` bytes have come, and others under number 2, and the link has announced 100 kB
// of its own.
bool stands_after(const RawHead& head, std::size_t num_behind = 0, std::size_t num_sent = 0) {
  const Pair pair;
  SocketLink link(0, {-1, pair.link});
  const std::string data = some_bytes(100'000);
  std::string here(100'000, '?');
  const auto write = [&](const RawHead& frame, std::size_t num) {
    const std::string bytes = std::string(reinterpret_cast<const char*>(&frame), sizeof frame) + std::string(num, 'x');
    EXPECT_EQ(::write(pair.test, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  };
  link.send_with_data(1, Channel::launcher, "mine", bytes_of(data), data.size());
  for (std::uint64_t number = 1; number <= 2; ++number) {
    RawHead announced;
    announced.data_bytes = 100'000;
    announced.number = number;
    write(announced, 0);
  }
  Message message;
  EXPECT_TRUE(link.poll(Channel::launcher, message));
  EXPECT_EQ(message.data_number, 1U);
  link.receive(message, bytes_of(here));
  if (num_sent > 0) {
    RawHead first;
    first.kind = 3;
    first.bytes = num_sent;
    first.number = 1;
    write(first, num_sent);
  }
  write(head, num_behind);
  link.progress();
  return link.is_alive(1);
}

TEST(SocketLinkFrames, ATransferWhoseLastChunkCannotBeWrittenIsDone) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  SocketLink sender(0, {-1, ends[0]}), receiver(1, {ends[1], -1});
  const std::string data = some_bytes(200'000);  // one chunk
  const Transfer sent = sender.send_with_data(1, Channel::ranks, "data", bytes_of(data), data.size());
  Message message;
  ASSERT_TRUE(receiver.poll(Channel::ranks, message));
  std::string here(data.size(), '?');
  receiver.receive(message, bytes_of(here));
  receiver.progress();
  ASSERT_EQ(::shutdown(ends[1], SHUT_RD), 0);
  EXPECT_TRUE(sender.is_done(sent));
  EXPECT_TRUE(sender.has_sent_all());
  EXPECT_NE(here, data);
}

TEST(SocketLinkFrames, EndsTheConnectionAtAFrameThatDoesNotFit) {
  const auto head = [](std::uint8_t kind, std::uint64_t bytes, std::uint64_t number) {
    RawHead made;
    made.kind = kind;
    made.bytes = bytes;
    made.number = number;
    return made;
  };
  const std::uint8_t message = 0, ready = 1, refuse = 2, data = 3;
  // These fit.
  EXPECT_TRUE(stands_after(head(message, 5, 0), 5));
  EXPECT_TRUE(stands_after(head(ready, 0, 1)));
  EXPECT_TRUE(stands_after(head(refuse, 0, 1)));
  EXPECT_TRUE(stands_after(head(data, 1000, 1), 1000));
  EXPECT_TRUE(stands_after(head(data, 100'000, 1), 100'000));
  EXPECT_TRUE(stands_after(head(data, 40'000, 1), 40'000, 60'000));
  RawHead eager = head(message, 0, 3);
  eager.is_eager = 1;
  eager.data_bytes = SocketLink::eager_bytes;
  EXPECT_TRUE(stands_after(eager, SocketLink::eager_bytes));

  eager.data_bytes += 1;
  EXPECT_FALSE(stands_after(eager)) << "more data than follows its message";
  RawHead other = head(message, 0, 0);
  other.magic += 1;
  EXPECT_FALSE(stands_after(other)) << "not the bytes that begin a frame";
  other = head(message, 0, 0);
  other.channel = num_channels;
  EXPECT_FALSE(stands_after(other)) << "an unknown channel";
  EXPECT_FALSE(stands_after(head(4, 0, 1))) << "an unknown kind";
  EXPECT_FALSE(stands_after(head(ready, 0, 2))) << "asks for data that was not announced";
  EXPECT_FALSE(stands_after(head(ready, 1, 1), 1)) << "asks with bytes behind the head";
  EXPECT_FALSE(stands_after(head(refuse, 0, 2))) << "refuses data that was not announced";
  EXPECT_FALSE(stands_after(head(data, 10, 3), 10)) << "data that was not announced";
  EXPECT_FALSE(stands_after(head(data, 10, 2), 10)) << "data that was not asked for";
  EXPECT_FALSE(stands_after(head(data, 0, 1))) << "a chunk without data";
  EXPECT_FALSE(stands_after(head(data, 100'001, 1), 100'001)) << "more data than was announced";
  EXPECT_FALSE(stands_after(head(data, 40'001, 1), 40'001, 60'000)) << "more data than was announced, in two chunks";
}

}  // namespace
}  // namespace lockstep::comm
