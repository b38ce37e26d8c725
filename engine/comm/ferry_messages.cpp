#include "engine/comm/ferry_messages.hpp"

#include <xxhash.h>

#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

std::uint64_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string what_happened(std::uint64_t expected, std::uint64_t number) {
  if (number < expected) return str("message ", number, " has arrived again, or late: ", expected, " was due");
  return str(expected + 1 == number ? str("message ", expected, " is")
                                    : str("messages ", expected, " to ", number - 1, " are"),
             " missing before message ", number);
}

}  // namespace

FerryPost::FerryPost(Link& link, std::uint64_t case_number)
    : link_(link), case_number_(case_number), counts_(static_cast<std::size_t>(link.num_hosts())) {}

std::string FerryPost::sealed(int to, FerryKind kind, std::string_view bytes) {
  FerryHead head;
  head.case_number = case_number_;
  head.number = ++counts_[static_cast<std::size_t>(to)].sent;
  head.hash = hash_of(bytes);
  head.kind = kind;
  return ferry_bytes(head, bytes);
}

void FerryPost::send_bytes(int to, FerryKind kind, std::string_view bytes) {
  link_.send(to, Channel::ranks, sealed(to, kind, bytes));
}

Transfer FerryPost::send_data(int to, const DataBody& body, const std::byte* data, std::size_t bytes) {
  return link_.send_with_data(to, Channel::ranks, sealed(to, FerryKind::data, ferry_bytes(body)), data, bytes);
}

void FerryPost::drop(const Message& message) {
  if (message.data_bytes > 0) link_.discard(message);
}

bool FerryPost::receive(Received& received) {
  while (link_.poll(Channel::ranks, received.message)) {
    received.from = received.message.from;
    received.body = received.message.bytes;
    Counts& counts = counts_[static_cast<std::size_t>(received.from)];
    const auto refuse = [&](const std::string& what, bool has_data = true) {
      counts.is_broken = true;
      if (has_data) drop(received.message);
      throw CollectiveError(str("the link (", link_.name(), ") from host ", received.from, " to host ", link_.host(),
                                " does not keep its promises: ", what));
    };
    FerryHead head;
    if (counts.is_broken) {
      drop(received.message);
      continue;
    }
    if (!take_body(received.body, head)) refuse(str("a message has only ", received.message.bytes.size(), " bytes"));
    if (head.case_number != case_number_) {
      drop(received.message);
      continue;
    }
    // What arrives again has no data of its own: the first one has taken it.
    if (head.number != counts.received + 1)
      refuse(what_happened(counts.received + 1, head.number), head.number > counts.received);
    if (head.hash != hash_of(received.body)) refuse(str("message ", head.number, " was cut or changed on the way"));
    ++counts.received;
    received.kind = head.kind;
    return true;
  }
  return false;
}

}  // namespace lockstep::comm
