#include "harness/launch/launcher_link.hpp"

#include <algorithm>

#include "engine/core/error.hpp"

namespace lockstep::launch {

namespace {

class LauncherLink : public comm::Link {
 public:
  LauncherLink(comm::Link& processes, std::vector<int> launchers)
      : processes_(processes), launchers_(std::move(launchers)) {
    host_ = host_of(processes_.host());
    LOCKSTEP_CHECK(host_ >= 0, "process ", processes_.host(), " is no launcher");
  }

  std::string name() const override { return processes_.name(); }
  int host() const override { return host_; }
  int num_hosts() const override { return static_cast<int>(launchers_.size()); }
  void send(int to, comm::Channel channel, std::string_view bytes) override {
    processes_.send(process_of(to), channel, bytes);
  }
  comm::Transfer send_with_data(int to, comm::Channel channel, std::string_view bytes, const std::byte* data,
                                std::size_t data_bytes) override {
    return processes_.send_with_data(process_of(to), channel, bytes, data, data_bytes);
  }
  bool poll(comm::Channel channel, comm::Message& message) override {
    while (processes_.poll(channel, message)) {
      const int from = host_of(message.from);
      if (from >= 0) {
        message.from = from;
        return true;
      }
      processes_.discard(message);
    }
    return false;
  }
  comm::Transfer receive(const comm::Message& message, std::byte* to) override {
    return processes_.receive(data_of(message), to);
  }
  void discard(const comm::Message& message) override { processes_.discard(data_of(message)); }
  bool is_done(comm::Transfer transfer) override { return processes_.is_done(transfer); }
  void progress() override { processes_.progress(); }
  bool has_sent_all() override { return processes_.has_sent_all(); }
  bool is_alive(int host) override { return processes_.is_alive(process_of(host)); }
  int descriptor() const override { return processes_.descriptor(); }
  void abandon(int exit_code) override { processes_.abandon(exit_code); }

 private:
  int process_of(int host) const { return launchers_.at(static_cast<std::size_t>(host)); }
  int host_of(int process) const {
    const auto found = std::find(launchers_.begin(), launchers_.end(), process);
    return found == launchers_.end() ? -1 : static_cast<int>(found - launchers_.begin());
  }
  // The message as the link between processes numbers it, without its bytes.
  comm::Message data_of(const comm::Message& message) const {
    comm::Message same;
    same.from = process_of(message.from);
    same.data_bytes = message.data_bytes;
    same.data_number = message.data_number;
    return same;
  }

  comm::Link& processes_;
  std::vector<int> launchers_;
  int host_ = 0;
};

}  // namespace

std::unique_ptr<comm::Link> link_between(comm::Link& processes, std::vector<int> launchers) {
  return std::make_unique<LauncherLink>(processes, std::move(launchers));
}

}  // namespace lockstep::launch
