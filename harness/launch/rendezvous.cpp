#include "harness/launch/rendezvous.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/core/resources.hpp"
#include "harness/launch/sockets.hpp"

namespace lockstep::launch {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t hello_magic = 0x4c4b4831;
constexpr int poll_ms = 100;                      // between two looks at `stop`
constexpr std::uint32_t most_answer = 16U << 20;  // bytes

struct Hello {
  std::uint32_t magic = hello_magic;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::int32_t port = 0;  // at which the process listens
};

struct Listener {
  Socket socket;
  int port = 0;
};

// One process while it connects.
class Meeting {
 public:
  explicit Meeting(const Rendezvous& how)
      : how_(how), place_(str("rendezvous at ", how.address, ":", how.port)), sockets_(size_of(how)) {
    end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(how.seconds));
  }

  std::vector<int> run() {
    if (how_.rank == 0)
      lead();
    else
      follow();
    std::vector<int> all;
    for (Socket& socket : sockets_) all.push_back(socket.take());
    return all;
  }

 private:
  static std::size_t size_of(const Rendezvous& how) {
    if (how.world_size < 1 || how.rank < 0 || how.rank >= how.world_size)
      throw Error(str("rendezvous: rank ", how.rank, " of ", how.world_size), "give a rank below the world size");
    return static_cast<std::size_t>(how.world_size);
  }

  void lead();
  void follow();
  Listener listen_at(int port) const;
  Socket connect_to(const std::string& address, int port);
  std::optional<Socket> try_connect(const std::string& address, int port, std::string& why);
  std::vector<Hello> accept_from(const Listener& listener, int first_rank);
  std::string problem_with(const Hello& hello, int first_rank, const std::vector<Hello>& hellos) const;
  void answer_all(const std::string& error, const std::string& text);
  void wait(int fd, short events, const char* what);
  void transfer(int fd, void* data, std::size_t bytes, bool write, const char* what);
  void check_stop() const;
  bool is_late() const { return Clock::now() >= end_; }
  std::string missing(int first_rank) const;
  [[noreturn]] void fail(const std::string& what, const std::string& remedy) const {
    throw Error(str(place_, ": ", what), remedy);
  }

  const Rendezvous& how_;
  std::string place_;
  Clock::time_point end_;
  std::vector<Socket> sockets_;  // per rank
};

void Meeting::check_stop() const {
  if (how_.stop && how_.stop()) fail("the wait was interrupted", "");
}

void Meeting::wait(int fd, short events, const char* what) {
  for (;;) {
    check_stop();
    pollfd waited{fd, events, 0};
    if (::poll(&waited, 1, poll_ms) > 0) return;
    if (is_late())
      fail(str(what, " for ", how_.seconds, " s"),
           "start all processes at about the same time, and allow connections between their machines");
  }
}

void Meeting::transfer(int fd, void* data, std::size_t bytes, bool write, const char* what) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    wait(fd, write ? POLLOUT : POLLIN, what);
    const ssize_t num = write ? ::send(fd, at, bytes, MSG_NOSIGNAL) : ::recv(fd, at, bytes, 0);
    if (num < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)) continue;
    if (num <= 0) fail("another process ended while it connected", "see its message; start the processes again");
    at += num;
    bytes -= static_cast<std::size_t>(num);
  }
}

// True for an errno by which the system refuses this address, not any.
bool is_of_address(int reason) {
  return reason == EADDRINUSE || reason == EADDRNOTAVAIL || reason == EACCES || reason == EAFNOSUPPORT ||
         reason == EINVAL;
}

Listener Meeting::listen_at(int port) const {
  std::string why;
  const bool here_only = is_loopback(how_.address);
  // An address of IPv6 first: it takes connections of IPv4 too.
  const std::vector<std::string> hosts =
      here_only ? std::vector<std::string>{how_.address} : std::vector<std::string>{"::", "0.0.0.0"};
  for (const std::string& host : hosts) {
    const Addresses addresses = resolve(host, port, AI_PASSIVE, why);
    for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
      Socket socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      const int yes = 1, no = 0;
      if (socket.get() >= 0) {
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (each->ai_family == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
      }
      if (socket.get() < 0 || ::bind(socket.get(), each->ai_addr, each->ai_addrlen) != 0 ||
          ::listen(socket.get(), how_.world_size + 8) != 0) {
        if (!is_of_address(errno)) throw resource_error(str(place_, ": listening"), errno);
        why = std::strerror(errno);
        continue;
      }
      sockaddr_storage address{};
      socklen_t size = sizeof address;
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
      const auto number = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                        : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
      return {std::move(socket), ntohs(number)};
    }
  }
  fail(str("the process of rank ", how_.rank, " cannot listen there: ", why),
       "set MASTER_PORT to a free port, and MASTER_ADDR to the machine of rank 0");
}

// Nothing, and why, when no address of the name accepts a connection now.
std::optional<Socket> Meeting::try_connect(const std::string& address, int port, std::string& why) {
  const Addresses addresses = resolve(address, port, 0, why);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    Socket socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) {
      if (errno == EMFILE || errno == ENFILE) throw resource_error(str(place_, ": opening a socket"), errno);
      why = std::strerror(errno);
      continue;
    }
    int error = ::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      // A machine that does not answer must not use up the time of the others of its addresses.
      const auto give_up = std::min(end_, Clock::now() + std::chrono::seconds(3));
      pollfd waited{socket.get(), POLLOUT, 0};
      while (::poll(&waited, 1, poll_ms) <= 0 && Clock::now() < give_up) check_stop();
      socklen_t size = sizeof error;
      error = ETIMEDOUT;
      if (waited.revents != 0) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return socket;
    why = std::strerror(error);
  }
  return {};
}

Socket Meeting::connect_to(const std::string& address, int port) {
  std::string why;
  for (;;) {
    if (std::optional<Socket> socket = try_connect(address, port, why)) {
      prepare_socket(socket->get());
      return std::move(*socket);
    }
    check_stop();
    if (is_late())
      fail(str("rank ", how_.rank, " could not connect to ", address, ":", port, " for ", how_.seconds, " s: ", why),
           "check that rank 0 was started, that MASTER_ADDR names its machine, and that no firewall closes the port");
    ::usleep(50'000);
  }
}

// The ranks, of those that must come, that have not.
std::string Meeting::missing(int first_rank) const {
  std::string ranks;
  int num = 0;
  for (int rank = first_rank; rank < how_.world_size; ++rank) {
    if (sockets_[static_cast<std::size_t>(rank)].get() >= 0) continue;
    if (++num <= 8) ranks += str(num == 1 ? "" : ", ", rank);
  }
  return str(num == 1 ? "rank " : "ranks ", ranks, num > 8 ? str(" and ", num - 8, " more") : std::string());
}

// Why this process cannot take part; empty: it can.
std::string Meeting::problem_with(const Hello& hello, int first_rank, const std::vector<Hello>& hellos) const {
  if (hello.world_size != how_.world_size)
    return str("a process says WORLD_SIZE=", hello.world_size, ", the process of rank ", how_.rank,
               " says WORLD_SIZE=", how_.world_size);
  if (hello.rank < first_rank || hello.rank >= how_.world_size)
    return str("a process came as rank ", hello.rank, ", and ranks ", first_rank, " to ", how_.world_size - 1,
               " are awaited");
  if (hellos[static_cast<std::size_t>(hello.rank)].magic != 0) return str("two processes say RANK=", hello.rank);
  return "";
}

// Accepts the processes of ranks `first_rank` and higher. Connections of strangers are closed. Returns a Hello per
// rank.
std::vector<Hello> Meeting::accept_from(const Listener& listener, int first_rank) {
  struct Comer {
    Socket socket;
    Hello hello;
    std::size_t received = 0;
  };
  std::vector<Comer> comers;
  std::vector<Hello> hellos(sockets_.size());
  for (Hello& hello : hellos) hello.magic = 0;
  for (int num_left = how_.world_size - first_rank; num_left > 0;) {
    check_stop();
    if (is_late()) {
      const std::string what =
          str(missing(first_rank), " of ", how_.world_size, " did not connect within ", how_.seconds, " s");
      answer_all(what, "");
      fail(what, "start every rank, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE");
    }
    std::vector<pollfd> waited{{listener.socket.get(), POLLIN, 0}};
    for (const Comer& comer : comers) waited.push_back({comer.socket.get(), POLLIN, 0});
    if (::poll(waited.data(), waited.size(), poll_ms) <= 0) continue;
    for (std::size_t i = comers.size(); i-- > 0;) {
      Comer& comer = comers[i];
      if (waited[i + 1].revents == 0) continue;
      const ssize_t num = ::recv(comer.socket.get(), reinterpret_cast<char*>(&comer.hello) + comer.received,
                                 sizeof(Hello) - comer.received, 0);
      if (num < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)) continue;
      comer.received += num > 0 ? static_cast<std::size_t>(num) : 0;
      if (num > 0 && comer.received < sizeof(Hello)) continue;
      if (comer.received == sizeof(Hello) && comer.hello.magic == hello_magic) {
        if (const std::string problem = problem_with(comer.hello, first_rank, hellos); !problem.empty()) {
          sockets_.push_back(std::move(comer.socket));
          answer_all(problem, "");
          fail(problem, "start all processes by one command, or give each its own RANK and all the same WORLD_SIZE");
        }
        const auto rank = static_cast<std::size_t>(comer.hello.rank);
        hellos[rank] = comer.hello;
        sockets_[rank] = std::move(comer.socket);
        --num_left;
      }
      comers.erase(comers.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (waited[0].revents == 0) continue;
    Comer comer;
    comer.socket = Socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (comer.socket.get() < 0) {
      if (errno == EMFILE || errno == ENFILE) throw resource_error(str(place_, ": accepting a connection"), errno);
      continue;
    }
    prepare_socket(comer.socket.get());
    comers.push_back(std::move(comer));
  }
  return hellos;
}

// Sends everyone who has come the error, or the text when there is none.
void Meeting::answer_all(const std::string& error, const std::string& text) {
  const std::string& body = error.empty() ? text : error;
  const std::uint32_t head[2] = {error.empty() ? 0U : 1U, static_cast<std::uint32_t>(body.size())};
  for (const Socket& socket : sockets_) {
    if (socket.get() < 0) continue;
    if (error.empty()) {
      transfer(socket.get(), const_cast<std::uint32_t*>(head), sizeof head, true, "a process reads nothing");
      transfer(socket.get(), const_cast<char*>(body.data()), body.size(), true, "a process reads nothing");
    } else {
      // A short text fits into the socket's buffer; whether it arrives does not change this process's own error.
      [[maybe_unused]] ssize_t sent = ::send(socket.get(), head, sizeof head, MSG_NOSIGNAL | MSG_DONTWAIT);
      sent = ::send(socket.get(), body.data(), body.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

void Meeting::lead() {
  const Listener listener = listen_at(how_.port);
  const std::vector<Hello> hellos = accept_from(listener, 1);
  std::string text;
  for (std::size_t rank = 1; rank < hellos.size(); ++rank)
    text += str(remote_address(sockets_[rank].get()), " ", hellos[rank].port, "\n");
  answer_all("", text);
}

void Meeting::follow() {
  const Listener listener = listen_at(0);
  Hello hello;
  hello.rank = how_.rank;
  hello.world_size = how_.world_size;
  hello.port = listener.port;
  sockets_[0] = connect_to(how_.address, how_.port);
  const int first = sockets_[0].get();
  transfer(first, &hello, sizeof hello, true, "rank 0 reads nothing");
  std::uint32_t head[2] = {};
  // Rank 0 names the missing processes; it may have started later than this process.
  end_ += std::chrono::seconds(5);
  transfer(first, head, sizeof head, false, "rank 0 did not answer");
  if (head[1] > most_answer) fail("another program listens there", "set MASTER_PORT to a free port");
  std::string text(head[1], '\0');
  transfer(first, text.data(), text.size(), false, "rank 0 did not answer");
  if (head[0] != 0) fail(str("rank 0 says: ", text), "see the message of rank 0");
  std::size_t at = 0;
  for (int rank = 1; rank < how_.rank; ++rank) {
    const std::size_t space = text.find(' ', at), line = text.find('\n', at);
    LOCKSTEP_CHECK(space < line && line != std::string::npos, "the answer of rank 0 is cut short");
    const std::string seen = text.substr(at, space - at);
    // Rank 0 sees its neighbours on the same machine by the loopback interface.
    Socket& socket = sockets_[static_cast<std::size_t>(rank)];
    socket = connect_to(is_loopback(seen) ? how_.address : seen, std::atoi(text.c_str() + space + 1));
    transfer(socket.get(), &hello, sizeof hello, true, "a process reads nothing");
    at = line + 1;
  }
  accept_from(listener, how_.rank + 1);
}

}  // namespace

std::vector<int> connect_all(const Rendezvous& rendezvous) { return Meeting(rendezvous).run(); }

}  // namespace lockstep::launch
