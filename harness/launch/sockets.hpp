// Sockets of TCP and their addresses. Internal to harness/launch; rendezvous.cpp connects processes with them.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <netdb.h>
#include <unistd.h>

namespace lockstep::launch {

// A socket that is closed unless it is taken.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.take()) {}
  Socket& operator=(Socket&& other) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.take();
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Sends small messages at once, and notices within 15 s that the other machine is gone.
void prepare_socket(int fd);
// Names of the loopback interface only: no other machine can mean this one by them.
bool is_loopback(const std::string& address);
// The address of the other end as a number; empty when there is none.
std::string remote_address(int fd);

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
// The addresses of a name, with this port. Null, and why, when it has none.
Addresses resolve(const std::string& address, int port, int flags, std::string& why);

}  // namespace lockstep::launch
