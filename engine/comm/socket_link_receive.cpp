#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/comm/socket_link.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

constexpr std::size_t most_read_at_once = std::size_t{8} << 20;  // of one peer, before the next one's turn

}  // namespace

void SocketLink::progress() {
  epoll_event events[64];
  const int num = ::epoll_wait(events_, events, 64, 0);
  for (int i = 0; i < num; ++i) {
    const auto from = static_cast<int>(events[i].data.u32);
    Peer& peer = peer_of(from);
    if ((events[i].events & EPOLLOUT) != 0) write_some(peer);
    if ((events[i].events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) read_some(from);
  }
}

void SocketLink::lose(Peer& peer) {
  if (!peer.alive) return;
  peer.alive = false;
  ::epoll_ctl(events_, EPOLL_CTL_DEL, peer.socket, nullptr);
  ::close(peer.socket);
  peer.socket = -1;
  drop_frames(peer);
  for (auto& [number, outgoing] : peer.offered) finish(outgoing.transfer);
  peer.offered.clear();
  for (auto& [number, incoming] : peer.incoming) finish(incoming.transfer);
}

// Reads what has arrived: heads and small bodies by way of the buffer, the rest of large bodies in their place.
void SocketLink::read_some(int from) {
  Peer& peer = peer_of(from);
  for (std::size_t total = 0; peer.alive && total < most_read_at_once;) {
    std::size_t room = 0;
    char* place = peer.in_body ? body_place(peer, room) : nullptr;
    const bool direct = room >= read_bytes;
    if (!direct) {
      place = peer.buffer.data() + peer.end;
      room = peer.buffer.size() - peer.end;
    }
    const ssize_t num = ::recv(peer.socket, place, room, MSG_DONTWAIT);
    if (num < 0 && errno == EINTR) continue;
    if (num < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM)) return;
    if (num <= 0) return lose(peer);
    const auto got = static_cast<std::size_t>(num);
    total += got;
    if (direct) {
      peer.body_at += got;
      if (peer.body_at == body_bytes(peer)) end_body(from);
      continue;
    }
    peer.end += got;
    while (peer.alive && peer.begin < peer.end) {
      const std::size_t taken = take(from, peer.buffer.data() + peer.begin, peer.end - peer.begin);
      if (taken == 0) break;
      peer.begin += taken;
    }
    std::memmove(peer.buffer.data(), peer.buffer.data() + peer.begin, peer.end - peer.begin);
    peer.end -= peer.begin;
    peer.begin = 0;
  }
}

// Takes a head, or bytes of a body. Returns the number of bytes taken: 0 when the head is not complete.
std::size_t SocketLink::take(int from, const char* bytes, std::size_t num) {
  Peer& peer = peer_of(from);
  if (!peer.in_body) {
    if (num < sizeof(Head)) return 0;
    std::memcpy(&peer.head, bytes, sizeof(Head));
    if (!begin_body(from)) {
      lose(peer);
    } else if (body_bytes(peer) == 0) {
      end_body(from);
    }
    return sizeof(Head);
  }
  std::size_t room = 0;
  char* place = body_place(peer, room);
  const std::size_t part = std::min(room, num);
  std::memcpy(place, bytes, part);
  peer.body_at += part;
  if (peer.body_at == body_bytes(peer)) end_body(from);
  return part;
}

std::size_t SocketLink::body_bytes(const Peer& peer) const {
  return peer.head.bytes + (peer.head.is_eager != 0 ? peer.head.data_bytes : 0);
}

// Where the next bytes of the body go, and how many of them in one piece.
char* SocketLink::body_place(Peer& peer, std::size_t& room) {
  if (peer.head.kind == Kind::data) {
    Incoming& incoming = peer.incoming.at(peer.head.number);
    room = peer.head.bytes - peer.body_at;
    return reinterpret_cast<char*>(incoming.to) + incoming.received + peer.body_at;
  }
  if (peer.body_at < peer.head.bytes) {
    room = peer.head.bytes - peer.body_at;
    return peer.message.bytes.data() + peer.body_at;
  }
  room = body_bytes(peer) - peer.body_at;
  return peer.eager.data() + (peer.body_at - peer.head.bytes);
}

// Makes room for the body. False for bytes that are no frame.
bool SocketLink::begin_body(int from) {
  Peer& peer = peer_of(from);
  const Head& head = peer.head;
  if (head.magic != frame_magic || static_cast<int>(head.channel) >= num_channels || head.kind > Kind::data)
    return false;
  peer.in_body = true;
  peer.body_at = 0;
  if (head.kind == Kind::message) {
    peer.message.from = from;
    peer.message.bytes.resize(head.bytes);
    peer.message.data_bytes = head.data_bytes;
    peer.message.data_number = head.number;
    peer.eager.resize(head.is_eager != 0 ? head.data_bytes : 0);
    return head.is_eager == 0 || head.data_bytes <= eager_bytes;
  }
  if (head.kind != Kind::data) return head.bytes == 0 && peer.offered.contains(head.number);
  const auto incoming = peer.incoming.find(head.number);
  return incoming != peer.incoming.end() && incoming->second.to != nullptr && head.bytes > 0 &&
         head.bytes <= incoming->second.bytes - incoming->second.received;
}

void SocketLink::end_body(int from) {
  Peer& peer = peer_of(from);
  peer.in_body = false;
  const Head head = peer.head;
  switch (head.kind) {
    case Kind::message:
      if (head.data_bytes > 0) {
        Incoming& incoming = peer.incoming[head.number];
        incoming.bytes = head.data_bytes;
        incoming.eager = std::move(peer.eager);
      }
      arrived_[static_cast<int>(head.channel)].push_back(std::move(peer.message));
      break;
    case Kind::ready:
      peer.sending[head.number] = peer.offered.at(head.number);
      peer.offered.erase(head.number);
      peer.asked.push_back(head.number);
      if (!peer.wants_write) write_some(peer);
      break;
    case Kind::refuse:
      finish(peer.offered.at(head.number).transfer);
      peer.offered.erase(head.number);
      break;
    case Kind::data: {
      Incoming& incoming = peer.incoming.at(head.number);
      incoming.received += head.bytes;
      if (incoming.received < incoming.bytes) break;
      finish(incoming.transfer);
      peer.incoming.erase(head.number);
      break;
    }
  }
}

bool SocketLink::poll(Channel channel, Message& message) {
  std::deque<Message>& arrived = arrived_[static_cast<int>(channel)];
  if (arrived.empty()) progress();
  if (arrived.empty()) return false;
  message = std::move(arrived.front());
  arrived.pop_front();
  return true;
}

Transfer SocketLink::receive(const Message& message, std::byte* to) {
  const Transfer transfer = new_transfer();
  Peer& peer = peer_of(message.from);
  if (message.data_bytes == 0) {
    finish(transfer);
    return transfer;
  }
  const auto found = peer.incoming.find(message.data_number);
  LOCKSTEP_CHECK(found != peer.incoming.end() && found->second.to == nullptr, "data ", message.data_number, " of host ",
                 message.from, " is received twice");
  Incoming& incoming = found->second;
  if (!incoming.eager.empty() || !peer.alive) {
    if (!incoming.eager.empty()) std::memcpy(to, incoming.eager.data(), incoming.bytes);
    peer.incoming.erase(found);
    finish(transfer);
    return transfer;
  }
  incoming.to = to;
  incoming.transfer = transfer;
  Frame frame;
  frame.bytes = with_head(head_of(Kind::ready, Channel::ranks, message.data_number), {});
  queue(peer, std::move(frame));
  return transfer;
}

void SocketLink::discard(const Message& message) {
  if (message.data_bytes == 0) return;
  Peer& peer = peer_of(message.from);
  const auto found = peer.incoming.find(message.data_number);
  LOCKSTEP_CHECK(found != peer.incoming.end() && found->second.to == nullptr, "data ", message.data_number, " of host ",
                 message.from, " is discarded while it is received");
  const bool is_eager = !found->second.eager.empty();
  peer.incoming.erase(found);
  if (is_eager || !peer.alive) return;
  Frame frame;
  frame.bytes = with_head(head_of(Kind::refuse, Channel::ranks, message.data_number), {});
  queue(peer, std::move(frame));
}

bool SocketLink::is_done(Transfer transfer) {
  if (open_transfers_.contains(transfer)) progress();
  return !open_transfers_.contains(transfer);
}

bool SocketLink::is_alive(int host) {
  progress();
  return peer_of(host).alive;
}

}  // namespace lockstep::comm
