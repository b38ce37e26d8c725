// A link: messages between the launchers of the hosts of a run. What it carries is not its concern: engine/comm sends
// what the ranks of a host say to those of other hosts (ferry.hpp), harness/launch sends the outcomes of cases.
//
//   link.send(1, Channel::launcher, "hello");
//   for (Message message; link.poll(Channel::launcher, message);) take(message.from, message.bytes);
//
// Promises, which the suite LinkPromises checks for every link:
//   - A message arrives whole, once, and only at its receiver.
//   - Messages of one host on one channel arrive in the order of their sending.
//   - No call blocks. send() accepts any number of messages of any size.
//   - data of a message that was sent by reference arrives with it, bit for bit.
//   - is_alive() turns false in time when the process at the other end has ended; without traffic, too.
//
// One thread at a time uses a link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::comm {

enum class Channel : std::uint8_t { launcher, ranks };
inline constexpr int num_channels = 2;

// Bytes of a buffer of the caller.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

struct Message {
  int from = 0;
  std::string bytes;
  // Bytes that were sent by reference and follow the message: they wait for receive() or discard(), once.
  std::size_t data_bytes = 0;
  std::uint64_t data_number = 0;
};

// A transfer by reference in progress. 0: none.
using Transfer = std::uint64_t;

class Link {
 public:
  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  virtual std::string name() const = 0;  // "MPI", "TCP"; for messages
  virtual int host() const = 0;          // of this process; hosts are numbered from 0
  virtual int num_hosts() const = 0;

  // Queues a message for another host. Its bytes are copied; `data` is not, and must not change before is_done().
  virtual void send(int to, Channel channel, std::string_view bytes) = 0;
  virtual Transfer send_with_data(int to, Channel channel, std::string_view bytes, const std::byte* data,
                                  std::size_t data_bytes) = 0;
  // Takes the next message of this channel, if one has arrived.
  virtual bool poll(Channel channel, Message& message) = 0;
  // Has the data of a polled message stored in `to`, which holds `message.data_bytes`.
  virtual Transfer receive(const Message& message, std::byte* to) = 0;
  virtual void discard(const Message& message) = 0;
  // The buffer of the transfer is free again. Not to be asked again after true.
  virtual bool is_done(Transfer transfer) = 0;

  // Moves bytes. poll() and is_done() call it too.
  virtual void progress() = 0;
  // Nothing that was sent waits in this process.
  virtual bool has_sent_all() = 0;
  // The connection to this host stands. Reading may go on until poll() gives no more messages.
  virtual bool is_alive(int host) = 0;
  // A descriptor that becomes readable when progress() has something to do, or -1: the link must be polled.
  virtual int descriptor() const { return -1; }
  // Ends the process without waiting for peers that may be gone. Called in place of a normal end after a failure.
  virtual void abandon(int exit_code) = 0;
};

}  // namespace lockstep::comm
