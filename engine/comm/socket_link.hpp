// A link over connected stream sockets: TCP between machines, socket pairs in tests.
//
//   SocketLink link(0, {-1, to_host_1, to_host_2});   // one socket per host, none for this one
//
// Frames of a fixed head and a body share the stream of a pair of hosts. Data of up to `eager_bytes` follows its
// message at once. The receiver asks for larger data when it has a place for it; the data then comes in chunks,
// directly from the sender's buffer into the receiver's, and later messages pass between the chunks.
//
// A connection that has ended drops what was to be sent to that host, and its transfers are done: their buffers are
// free, but the data has arrived only if the connection still stood when the transfer was done.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/comm/link.hpp"

namespace lockstep::comm {

// socket_link.cpp sends; socket_link_receive.cpp receives.
class SocketLink : public Link {
 public:
  static constexpr std::size_t eager_bytes = std::size_t{16} << 10;
  static constexpr std::size_t chunk_bytes = std::size_t{256} << 10;

  // Takes the sockets, one per host, and closes them at its end; -1 at the place of this host. `name` is for messages.
  // Throws ResourceError without a descriptor to wait on, and Error when the sockets do not fit.
  SocketLink(int host, std::vector<int> sockets, std::string name = "TCP");
  ~SocketLink() override;

  std::string name() const override { return name_; }
  int host() const override { return host_; }
  int num_hosts() const override { return static_cast<int>(peers_.size()); }
  void send(int to, Channel channel, std::string_view bytes) override;
  Transfer send_with_data(int to, Channel channel, std::string_view bytes, const std::byte* data,
                          std::size_t data_bytes) override;
  bool poll(Channel channel, Message& message) override;
  Transfer receive(const Message& message, std::byte* to) override;
  void discard(const Message& message) override;
  bool is_done(Transfer transfer) override;
  void progress() override;
  bool has_sent_all() override;
  bool is_alive(int host) override;
  int descriptor() const override { return events_; }
  [[noreturn]] void abandon(int exit_code) override;

 private:
  static constexpr std::uint32_t frame_magic = 0x4c4b4653;
  static constexpr std::size_t read_bytes = std::size_t{8} << 10;
  enum class Kind : std::uint8_t { message, ready, refuse, data };
  struct Head {
    std::uint32_t magic;
    Kind kind;
    Channel channel;
    std::uint16_t is_eager;  // the data follows the bytes of the message
    std::uint64_t bytes;
    std::uint64_t data_bytes;
    std::uint64_t number;  // of the data, given by its sender
  };
  // What is written next, in this order: head and bytes, then data.
  struct Frame {
    std::string bytes;
    const std::byte* data = nullptr;
    std::size_t data_bytes = 0;
    std::size_t sent = 0;
    Transfer done = 0;  // with this frame
  };
  // Data that the receiver has asked for, or will.
  struct Outgoing {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::size_t sent = 0;
    Transfer transfer = 0;
  };
  struct Incoming {
    std::size_t bytes = 0;
    std::string eager;  // the data itself, where it came with the message
    std::byte* to = nullptr;
    std::size_t received = 0;
    Transfer transfer = 0;
  };
  struct Peer {
    int socket = -1;
    bool alive = false;
    bool wants_write = false;
    bool is_write_over = false;  // a write has failed: nothing more is sent
    std::deque<Frame> frames;
    std::map<std::uint64_t, Outgoing> offered;   // waits for the receiver's answer
    std::deque<std::uint64_t> asked;             // of `sending`, in turns
    std::map<std::uint64_t, Outgoing> sending;   // the receiver has asked for it
    std::map<std::uint64_t, Incoming> incoming;  // by the number of its sender
    std::vector<char> buffer;                    // bytes read and not yet taken: [begin, end)
    std::size_t begin = 0, end = 0;
    bool in_body = false;
    Head head{};
    Message message;          // while its bytes arrive
    std::string eager;        // while it arrives
    std::size_t body_at = 0;  // bytes of the body that have arrived
  };

  Transfer new_transfer();
  void finish(Transfer transfer);
  Head head_of(Kind kind, Channel channel, std::uint64_t number) const;
  static std::string with_head(const Head& head, std::string_view bytes);
  void queue(Peer& peer, Frame frame);
  void write_some(Peer& peer);
  void add_chunk(Peer& peer);
  void drop_frames(Peer& peer);  // nothing more is sent to it
  void note_sent(Peer& peer, std::size_t bytes);
  void watch(Peer& peer, bool write);
  void read_some(int from);
  std::size_t take(int from, const char* bytes, std::size_t num);
  std::size_t body_bytes(const Peer& peer) const;
  char* body_place(Peer& peer, std::size_t& room);
  bool begin_body(int from);
  void end_body(int from);
  void lose(Peer& peer);
  Peer& peer_of(int host);
  Peer& receiver(int host);

  std::string name_;
  int host_ = 0;
  int events_ = -1;
  std::vector<Peer> peers_;
  std::deque<Message> arrived_[num_channels];
  Transfer last_transfer_ = 0;
  std::uint64_t last_number_ = 0;
  std::unordered_set<Transfer> open_transfers_;
};

}  // namespace lockstep::comm
