// The data of one collective whose members live on several hosts, as the ferry of one host moves it (internal to
// engine/comm). crossing_plan.hpp says which pieces go where; this class sends them, receives them straight into the
// outputs, makes the sums that this host owns, and finishes the slot.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/comm/crossing_plan.hpp"
#include "engine/comm/ferry_messages.hpp"

namespace lockstep::comm {

// Memory for summands of other hosts, used again and again.
class LandingPool {
 public:
  std::vector<std::byte> take(std::size_t bytes);
  void give(std::vector<std::byte> memory);

 private:
  std::vector<std::vector<std::byte>> free_;
};

class CollectiveCrossing {
 public:
  // The slot is open, and its transport is between_hosts.
  CollectiveCrossing(WorldControl& world, GroupControl& group, std::uint64_t sequence, FerryPost& post,
                     LandingPool& landing);
  // Takes a data message of this collective. Throws CollectiveError for a piece that does not belong to it.
  void take(FerryPost::Received& received);
  // Moves on. True if something was done.
  bool progress();
  // The slot is finished, and no transfer uses the members' buffers.
  bool is_finished() const { return finished_; }
  // The case has ended without it: no further piece is taken. True when no transfer uses a buffer any more.
  bool abandon();

 private:
  struct Arriving {  // a piece on its way into a member's output
    Piece piece;
    Transfer transfer = 0;
  };
  struct Sending {  // with the partial sum that it sends, if it is one
    Transfer transfer = 0;
    std::vector<std::byte> partial;
  };
  struct Sum {
    Piece piece;
    std::vector<std::vector<std::byte>> summands;  // per block; those of this host are empty until the sum is made
    std::vector<Transfer> transfers;
    int missing = 0;     // blocks whose summand has not arrived
    bool begun = false;  // its summands may be received
  };
  // A summand that waits for its turn, so that few summands are in memory at once.
  struct Waiting {
    std::size_t sum;
    std::size_t block;
    Message message;
  };

  MemberEntry& entry(int member) const { return entries_[member]; }
  std::size_t bytes(std::int64_t elements) const {
    return bounded_bytes(elements, static_cast<std::size_t>(shape_.element));
  }
  std::byte* output(const Place& place) const { return entry(place.member).output + bytes(place.at); }
  void start();
  // `partial`, if it is not empty, holds the bytes.
  void send(int to_host, int summand_of, const Piece& piece, const std::byte* from,
            std::vector<std::byte> partial = {});
  bool send_summands();
  std::vector<std::byte> partial_sum(int block, const Piece& piece);
  void store_copies(const Piece& piece, const std::byte* from, bool first_is_stored);
  void take_summand(std::size_t sum, std::size_t block, const Message& message, std::string_view inline_data);
  bool begin_waiting();
  void add(Sum& sum);
  void count(int member, std::int64_t in, std::int64_t out);
  void finish();

  GroupControl& group_;
  Slot& slot_;
  std::uint64_t sequence_;
  FerryPost& post_;
  LandingPool& landing_;
  MemberEntry* entries_;
  CrossingShape shape_;
  int host_;
  std::vector<int> mine_;                           // members on this host
  std::vector<std::int64_t> moved_in_, moved_out_;  // bytes, per member
  std::vector<Sending> sending_;
  std::deque<Crossing> to_send_;  // summands that wait until few partial sums are in memory
  std::vector<Arriving> arriving_;
  std::vector<Sum> sums_;
  std::deque<Waiting> waiting_;
  std::size_t sums_left_ = 0;
  int sums_in_memory_ = 0;
  std::int64_t elements_left_ = 0;  // to be received as copies
  bool finished_ = false;
};

}  // namespace lockstep::comm
