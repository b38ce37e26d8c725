// What ferries send each other (internal to engine/comm): a head, a body of the kind, then bytes. Both hosts run the
// same build, which the launchers have compared.
//
// Every message has the number of the case, its own number in the sequence from one host to the other, and a hash of
// its bytes. A link that loses, repeats, reorders or changes a message is found out by the next one, at the latest by
// the next heartbeat.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/comm/control.hpp"
#include "engine/comm/link.hpp"

namespace lockstep::comm {

enum class FerryKind : std::uint32_t {
  group,         // GroupBody, then the members
  arrival,       // ArrivalBody
  staged_piece,  // PieceBody, then the piece
  end_of_round,  // RoundBody
  content_text,  // TextBody, then the text
  propose,       // PoisonBody, then the text: to the host of the group's first member
  poison,        // PoisonBody, then the text: from that host
  rank_state,    // RankBody, then WaitBody per wait and the reason of the end
  abort,         // the text
  data,          // DataBody; the elements follow in the message, or by reference
  heartbeat,     // no body: the host is there
  end,           // no body: the local ranks are gone
};

struct FerryHead {
  std::uint64_t case_number = 0;
  std::uint64_t number = 0;  // from 1
  std::uint64_t hash = 0;    // of everything after the head
  FerryKind kind = FerryKind::heartbeat;
  std::uint32_t unused = 0;
};

struct GroupBody {
  std::uint64_t id, channel;
  std::int32_t size;
  std::int32_t unused;
};
using RecordBytes = std::array<unsigned char, sizeof(Record)>;  // bytes, because a Record has an atomic

struct ArrivalBody {
  std::uint64_t group, sequence;
  std::int32_t member;
  std::int32_t unused;
  Fingerprint fingerprint;
  std::int64_t age_ns;  // of the call
  RecordBytes record;
};
struct PieceBody {
  std::uint64_t group, sequence, piece;
  std::int32_t member;
  std::int32_t unused;
};
struct RoundBody {
  std::uint64_t group, round, issued;
  std::int32_t member;
  std::int32_t unused;
};
struct TextBody {
  std::uint64_t group, sequence;
  std::int32_t rank;
  std::int32_t unused;
};
struct PoisonBody {
  std::uint64_t group;
  std::uint32_t by_end;
  std::uint32_t more_follow;  // 1: counts together with the next proposal of this host
};
struct WaitBody {
  std::uint64_t group, sequence, round, target;
  std::uint32_t reason, me;
  std::int32_t member;
  std::int32_t unused;
  RecordBytes record;  // of the call that waits
};
struct RankBody {
  std::int32_t rank;
  RankEnd end;
  std::uint32_t has_begun;
  std::uint32_t waits;
  std::uint64_t wait_changes, blocked_at;
  std::uint32_t num_waits;
  std::int32_t line, column;
  char step[64];
  char file[192];
  // Of a rank that has ended: its last call, at which its stream need not have arrived. Group 0: none.
  std::uint64_t last_group, last_sequence;
  std::int64_t last_age_ns;
  CollectiveState last_state;
  RecordBytes last_record;
};
struct DataBody {
  std::uint64_t group, sequence;
  std::int64_t begin, n;  // elements of the range (crossing_plan.hpp)
  std::int32_t member;    // whose summand it is; -1: a copy, or a sum
  std::int32_t unused;
};

template <class Body>
std::string ferry_bytes(const Body& body, std::string_view rest = {}) {
  static_assert(std::is_trivially_copyable_v<Body>);
  std::string bytes(sizeof body, '\0');
  std::memcpy(bytes.data(), &body, sizeof body);
  bytes += rest;
  return bytes;
}
// Takes a body from the front. False when there are too few bytes.
template <class Body>
bool take_body(std::string_view& bytes, Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  if (bytes.size() < sizeof body) return false;
  std::memcpy(&body, bytes.data(), sizeof body);
  bytes.remove_prefix(sizeof body);
  return true;
}

// The messages of one case between this host and each other one: numbers them, and finds what the link did to them.
class FerryPost {
 public:
  FerryPost(Link& link, std::uint64_t case_number);

  template <class Body>
  void send(int to, FerryKind kind, const Body& body, std::string_view rest = {}) {
    send_bytes(to, kind, ferry_bytes(body, rest));
  }
  void send_bytes(int to, FerryKind kind, std::string_view bytes);
  Transfer send_data(int to, const DataBody& body, const std::byte* data, std::size_t bytes);

  struct Received {
    FerryKind kind = FerryKind::heartbeat;
    int from = 0;
    std::string_view body;  // valid until the next receive()
    Message message;
  };
  // Takes the next message of this case. Drops those of others. Throws CollectiveError that says what the link did
  // wrong.
  bool receive(Received& received);
  // Has the data of a message that nobody wants thrown away.
  void drop(const Message& message);
  Link& link() { return link_; }

 private:
  std::string sealed(int to, FerryKind kind, std::string_view bytes);
  Link& link_;
  std::uint64_t case_number_;
  struct Counts {
    std::uint64_t sent = 0, received = 0;
    bool is_broken = false;  // its messages count no longer
  };
  std::vector<Counts> counts_;
};

}  // namespace lockstep::comm
