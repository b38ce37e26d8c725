#include "engine/comm/mpi_link.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <deque>
#include <vector>

#include <mpi.h>
#include <unistd.h>

#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// Precedes the bytes of a message.
struct Prefix {
  std::uint64_t data_bytes, data_number;
};
constexpr std::size_t max_message_bytes = std::size_t{1} << 30;  // MPI counts with int
// Tags: the channels, then the data by number. MPI promises at least 32767 of them.
constexpr int first_data_tag = num_channels;
constexpr int num_data_tags = 16384;

int tag_of(std::uint64_t data_number) { return first_data_tag + static_cast<int>(data_number % num_data_tags); }

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CollectiveError(str(call, " failed: ", std::string_view(text, static_cast<std::size_t>(length))));
}

int count_of(std::size_t bytes) {
  if (bytes > max_message_bytes) throw CollectiveError(str("a message of ", bytes, " bytes is too large for MPI"));
  return static_cast<int>(bytes);
}

class MpiLink : public Link {
 public:
  explicit MpiLink(MPI_Comm communicator);

  std::string name() const override { return "MPI"; }
  int host() const override { return host_; }
  int num_hosts() const override { return num_hosts_; }
  void send(int to, Channel channel, std::string_view bytes) override;
  Transfer send_with_data(int to, Channel channel, std::string_view bytes, const std::byte* data,
                          std::size_t data_bytes) override;
  bool poll(Channel channel, Message& message) override;
  Transfer receive(const Message& message, std::byte* to) override;
  void discard(const Message& message) override;
  bool is_done(Transfer transfer) override;
  void progress() override;
  bool has_sent_all() override;
  bool is_alive(int) override { return true; }  // MPI does not tell; silence does (ferry.cpp)
  [[noreturn]] void abandon(int exit_code) override;

 private:
  struct Sending {
    std::string bytes;
    MPI_Request request;
  };
  struct Flight {  // a transfer of data
    Transfer number;
    MPI_Request request;
    std::vector<std::byte> scratch;  // of a discarded one
  };
  void queue(int to, Channel channel, std::string_view bytes, std::size_t data_bytes, std::uint64_t data_number);
  Transfer start(int peer, std::uint64_t data_number, std::byte* data, std::size_t bytes, bool sends,
                 std::vector<std::byte> scratch = {});
  void drop_discarded();

  MPI_Comm communicator_;
  int host_ = 0, num_hosts_ = 1;
  std::vector<std::uint64_t> data_sent_;  // per host
  std::deque<Sending> sending_;           // a deque, because MPI holds the addresses of the bytes
  std::vector<Flight> flights_;
  std::vector<Flight> discarded_;
  Transfer last_transfer_ = 0;
};

MpiLink::MpiLink(MPI_Comm communicator) : communicator_(communicator) {
  MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
  check(MPI_Comm_rank(communicator_, &host_), "MPI_Comm_rank");
  check(MPI_Comm_size(communicator_, &num_hosts_), "MPI_Comm_size");
  data_sent_.resize(static_cast<std::size_t>(num_hosts_));
}

void MpiLink::queue(int to, Channel channel, std::string_view bytes, std::size_t data_bytes,
                    std::uint64_t data_number) {
  const Prefix prefix{data_bytes, data_number};
  const int count = count_of(sizeof prefix + bytes.size());
  Sending& sending = sending_.emplace_back();
  sending.bytes.resize(sizeof prefix + bytes.size());
  std::memcpy(sending.bytes.data(), &prefix, sizeof prefix);
  std::copy(bytes.begin(), bytes.end(), sending.bytes.begin() + sizeof prefix);
  check(
      MPI_Isend(sending.bytes.data(), count, MPI_BYTE, to, static_cast<int>(channel), communicator_, &sending.request),
      "MPI_Isend");
}

void MpiLink::send(int to, Channel channel, std::string_view bytes) { queue(to, channel, bytes, 0, 0); }

Transfer MpiLink::send_with_data(int to, Channel channel, std::string_view bytes, const std::byte* data,
                                 std::size_t data_bytes) {
  const std::uint64_t number = ++data_sent_[static_cast<std::size_t>(to)];
  queue(to, channel, bytes, data_bytes, number);
  return start(to, number, const_cast<std::byte*>(data), data_bytes, true);  // MPI only reads it
}

Transfer MpiLink::start(int peer, std::uint64_t data_number, std::byte* data, std::size_t bytes, bool sends,
                        std::vector<std::byte> scratch) {
  Flight flight{++last_transfer_, MPI_REQUEST_NULL, std::move(scratch)};
  const int count = count_of(bytes), tag = tag_of(data_number);
  if (sends)
    check(MPI_Isend(data, count, MPI_BYTE, peer, tag, communicator_, &flight.request), "MPI_Isend");
  else
    check(MPI_Irecv(data, count, MPI_BYTE, peer, tag, communicator_, &flight.request), "MPI_Irecv");
  (flight.scratch.empty() ? flights_ : discarded_).push_back(std::move(flight));
  return last_transfer_;
}

Transfer MpiLink::receive(const Message& message, std::byte* to) {
  return start(message.from, message.data_number, to, message.data_bytes, false);
}

void MpiLink::discard(const Message& message) {
  std::vector<std::byte> scratch(message.data_bytes);
  std::byte* const memory = scratch.data();
  start(message.from, message.data_number, memory, message.data_bytes, false, std::move(scratch));
}

bool MpiLink::is_done(Transfer transfer) {
  const auto found =
      std::find_if(flights_.begin(), flights_.end(), [&](const Flight& flight) { return flight.number == transfer; });
  LOCKSTEP_CHECK(found != flights_.end(), "transfer ", transfer, " was done before");
  int done = 0;
  check(MPI_Test(&found->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done != 0) flights_.erase(found);
  return done != 0;
}

bool MpiLink::poll(Channel channel, Message& message) {
  int arrived = 0;
  MPI_Message handle;
  MPI_Status status;
  check(MPI_Improbe(MPI_ANY_SOURCE, static_cast<int>(channel), communicator_, &arrived, &handle, &status),
        "MPI_Improbe");
  if (arrived == 0) return false;
  int size = 0;
  check(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
  Prefix prefix{};
  std::string bytes(static_cast<std::size_t>(size), '\0');
  check(MPI_Mrecv(bytes.data(), size, MPI_BYTE, &handle, MPI_STATUS_IGNORE), "MPI_Mrecv");
  if (bytes.size() < sizeof prefix) throw CollectiveError("MPI delivered a message that is too short");
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  bytes.erase(0, sizeof prefix);
  message = {status.MPI_SOURCE, std::move(bytes), prefix.data_bytes, prefix.data_number};
  return true;
}

void MpiLink::drop_discarded() {
  std::erase_if(discarded_, [](Flight& flight) {
    int done = 0;
    check(MPI_Test(&flight.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  });
}

void MpiLink::progress() {
  while (!sending_.empty()) {
    int done = 0;
    check(MPI_Test(&sending_.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) break;
    sending_.pop_front();
  }
  drop_discarded();
}

bool MpiLink::has_sent_all() {
  progress();
  return sending_.empty() && flights_.empty() && discarded_.empty();
}

void MpiLink::abandon(int exit_code) {
  // MPI_Abort may wait for processes that cannot be reached.
  constexpr unsigned patience_seconds = 3;
  std::signal(SIGALRM, [](int) { ::_exit(3); });
  ::alarm(patience_seconds);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  ::_exit(exit_code);
}

}  // namespace

std::unique_ptr<Link> make_mpi_link(const void* communicator) {
  return std::make_unique<MpiLink>(*static_cast<const MPI_Comm*>(communicator));
}

}  // namespace lockstep::comm
