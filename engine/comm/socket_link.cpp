#include "engine/comm/socket_link.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine/core/resources.hpp"

namespace lockstep::comm {

namespace {

constexpr int most_pieces = 32;

}  // namespace

SocketLink::SocketLink(int host, std::vector<int> sockets, std::string name)
    : name_(std::move(name)), host_(host), peers_(sockets.size()) {
  for (std::size_t i = 0; i < sockets.size(); ++i) peers_[i].socket = sockets[i];
  const auto fail = [&](const auto& error) {  // throws its own type
    for (Peer& peer : peers_)
      if (peer.socket >= 0) ::close(peer.socket);
    if (events_ >= 0) ::close(events_);
    throw error;
  };
  if (host < 0 || host >= num_hosts())
    fail(Error(str("link: host ", host, " of ", num_hosts()), "give one socket per host"));
  events_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (events_ < 0) fail(resource_error("waiting for the other hosts", errno));
  for (int i = 0; i < num_hosts(); ++i) {
    Peer& peer = peers_[static_cast<std::size_t>(i)];
    if ((peer.socket < 0) != (i == host))
      fail(Error(str("link: host ", host, " has ", peer.socket < 0 ? "no socket" : "a socket", " to host ", i),
                 "give one socket per other host, and -1 for this one"));
    peer.alive = true;
    if (i == host) continue;
    ::fcntl(peer.socket, F_SETFL, ::fcntl(peer.socket, F_GETFL) | O_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = static_cast<std::uint32_t>(i);
    if (::epoll_ctl(events_, EPOLL_CTL_ADD, peer.socket, &event) != 0)
      fail(resource_error("waiting for the other hosts", errno));
    peer.buffer.resize(read_bytes);
  }
}

SocketLink::~SocketLink() {
  for (Peer& peer : peers_)
    if (peer.socket >= 0) ::close(peer.socket);
  ::close(events_);
}

void SocketLink::abandon(int exit_code) { ::_exit(exit_code); }

SocketLink::Peer& SocketLink::peer_of(int host) {
  LOCKSTEP_CHECK(host >= 0 && host < num_hosts(), "host ", host, " of ", num_hosts());
  return peers_[static_cast<std::size_t>(host)];
}

SocketLink::Peer& SocketLink::receiver(int host) {
  LOCKSTEP_CHECK(host != host_, "host ", host, " sends to itself");
  return peer_of(host);
}

Transfer SocketLink::new_transfer() {
  open_transfers_.insert(++last_transfer_);
  return last_transfer_;
}

void SocketLink::finish(Transfer transfer) { open_transfers_.erase(transfer); }

SocketLink::Head SocketLink::head_of(Kind kind, Channel channel, std::uint64_t number) const {
  Head head{};
  head.magic = frame_magic;
  head.kind = kind;
  head.channel = channel;
  head.number = number;
  return head;
}

std::string SocketLink::with_head(const Head& head, std::string_view bytes) {
  std::string all;
  all.reserve(sizeof head + bytes.size());
  all.append(reinterpret_cast<const char*>(&head), sizeof head);
  all.append(bytes);
  return all;
}

void SocketLink::send(int to, Channel channel, std::string_view bytes) {
  Peer& peer = receiver(to);
  if (!peer.alive) return;
  Head head = head_of(Kind::message, channel, 0);
  head.bytes = bytes.size();
  Frame frame;
  frame.bytes = with_head(head, bytes);
  queue(peer, std::move(frame));
}

Transfer SocketLink::send_with_data(int to, Channel channel, std::string_view bytes, const std::byte* data,
                                    std::size_t data_bytes) {
  Peer& peer = receiver(to);
  const Transfer transfer = new_transfer();
  if (!peer.alive) {
    finish(transfer);
    return transfer;
  }
  Head head = head_of(Kind::message, channel, ++last_number_);
  head.bytes = bytes.size();
  head.data_bytes = data_bytes;
  head.is_eager = data_bytes <= eager_bytes;
  Frame frame;
  frame.bytes = with_head(head, bytes);
  if (head.is_eager != 0) {
    frame.bytes.append(reinterpret_cast<const char*>(data), data_bytes);
    finish(transfer);
  } else {
    peer.offered[head.number] = {data, data_bytes, 0, transfer};
  }
  queue(peer, std::move(frame));
  return transfer;
}

void SocketLink::queue(Peer& peer, Frame frame) {
  if (peer.is_write_over) return finish(frame.done);
  peer.frames.push_back(std::move(frame));
  if (!peer.wants_write) write_some(peer);
}

// The next chunk of the data that is asked for becomes a frame. Each transfer in turn.
void SocketLink::add_chunk(Peer& peer) {
  const std::uint64_t number = peer.asked.front();
  peer.asked.pop_front();
  Outgoing& outgoing = peer.sending.at(number);
  Head head = head_of(Kind::data, Channel::ranks, number);
  head.bytes = std::min(chunk_bytes, outgoing.bytes - outgoing.sent);
  Frame frame;
  frame.bytes = with_head(head, {});
  frame.data = outgoing.data + outgoing.sent;
  frame.data_bytes = head.bytes;
  outgoing.sent += head.bytes;
  if (outgoing.sent == outgoing.bytes) {
    frame.done = outgoing.transfer;
    peer.sending.erase(number);
  } else {
    peer.asked.push_back(number);
  }
  peer.frames.push_back(std::move(frame));
}

// Writes as much as the socket takes.
void SocketLink::write_some(Peer& peer) {
  while (peer.alive) {
    if (peer.frames.empty()) {
      if (peer.asked.empty()) return watch(peer, false);
      add_chunk(peer);
    }
    iovec pieces[most_pieces];
    std::size_t num = 0;
    const auto add = [&](const void* bytes, std::size_t size) {
      if (size == 0) return;
      pieces[num].iov_base = const_cast<void*>(bytes);
      pieces[num++].iov_len = size;
    };
    for (const Frame& frame : peer.frames) {
      if (num + 2 > most_pieces) break;
      const std::size_t of_bytes = std::min(frame.sent, frame.bytes.size());
      add(frame.bytes.data() + of_bytes, frame.bytes.size() - of_bytes);
      const std::size_t of_data = frame.sent - of_bytes;
      add(frame.data + of_data, frame.data_bytes - of_data);
    }
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = num;
    const ssize_t sent = ::sendmsg(peer.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      note_sent(peer, static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM) {
      return watch(peer, true);  // the machine may have memory for it later
    } else if (errno != EINTR) {
      // Later messages would arrive without the lost ones. The peer sees the end of this direction and ends the other.
      peer.is_write_over = true;
      ::shutdown(peer.socket, SHUT_WR);
      // What the peer sent before its end can still be read; read_some() finds the end.
      drop_frames(peer);
      return watch(peer, false);
    }
  }
}

void SocketLink::drop_frames(Peer& peer) {
  for (const Frame& frame : peer.frames) finish(frame.done);
  for (const auto& [number, outgoing] : peer.sending) finish(outgoing.transfer);
  peer.frames.clear();
  peer.asked.clear();
  peer.sending.clear();
}

void SocketLink::note_sent(Peer& peer, std::size_t bytes) {
  while (bytes > 0) {
    Frame& frame = peer.frames.front();
    const std::size_t left = frame.bytes.size() + frame.data_bytes - frame.sent;
    const std::size_t part = std::min(left, bytes);
    frame.sent += part;
    bytes -= part;
    if (part < left) return;
    finish(frame.done);
    peer.frames.pop_front();
  }
}

void SocketLink::watch(Peer& peer, bool write) {
  if (peer.wants_write == write || peer.socket < 0) return;
  peer.wants_write = write;
  epoll_event event{};
  event.events = EPOLLIN | (write ? static_cast<std::uint32_t>(EPOLLOUT) : 0U);
  event.data.u32 = static_cast<std::uint32_t>(&peer - peers_.data());
  ::epoll_ctl(events_, EPOLL_CTL_MOD, peer.socket, &event);
}

bool SocketLink::has_sent_all() {
  progress();
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.frames.empty() && peer.offered.empty() && peer.sending.empty();
  });
}

}  // namespace lockstep::comm
