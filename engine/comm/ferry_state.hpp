// The state of a ferry (internal to engine/comm). ferry.cpp sends the state of the local ranks and runs the loop.
// ferry_apply.cpp writes the messages of other hosts into the local control area.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/control_plane.hpp"
#include "engine/comm/crossing.hpp"
#include "engine/comm/ferry.hpp"
#include "engine/comm/ferry_messages.hpp"
#include "engine/comm/staging.hpp"

namespace lockstep::comm {

struct Ferry::State {
  State(Link& link, device::HostWorld& host_world, HostMap map, std::uint64_t case_number);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  struct PendingPoison;
  using Key = std::pair<std::uint64_t, std::uint64_t>;  // id of the group, sequence number

  // ---- from local ranks to other hosts (ferry.cpp)
  void send_group(const GroupControl& group);
  std::vector<int> hosts_of(const GroupControl& group) const;
  bool send_notices();
  void send_notice(int rank, const Notice& notice);
  void send_arrival(GroupControl& group, const Notice& notice);
  void send_piece(GroupControl& group, const Notice& notice);
  void propose(GroupControl& group, bool more_follow);
  void poison(GroupControl& group, const std::string& text, bool by_end);
  void send_rank_states(std::int64_t now);
  void send_rank_state(int number, RankEnd end, bool has_begun);
  void send_heartbeats(std::int64_t now);

  template <class Body>
  void to_group(const GroupControl& group, FerryKind kind, const Body& body, std::string_view rest = {}) {
    for (const int host : hosts_of(group)) post.send(host, kind, body, rest);
  }
  template <class Body>
  void to_all(FerryKind kind, const Body& body, std::string_view rest = {}) {
    to_all_bytes(kind, ferry_bytes(body, rest));
  }
  void to_all_bytes(FerryKind kind, std::string_view bytes) {
    for (int host = 0; host < hosts.num_hosts; ++host)
      if (peers[static_cast<std::size_t>(host)].takes_part) post.send_bytes(host, kind, bytes);
  }

  // ---- crossings
  void begin_crossing(GroupControl& group, std::uint64_t sequence);
  bool move_crossings();
  bool abandon_crossings();
  bool all_have_ended() const;
  void mark_done(const Key& key);

  // ---- from other hosts into the local area (ferry_apply.cpp)
  void apply(FerryPost::Received& received);
  bool apply_arrival(const ArrivalBody& body);                      // false: the slot is not free yet
  bool apply_piece(const PieceBody& body, std::string_view piece);  // false: its turn has not come
  void apply_rank_state(const RankBody& body, std::string_view rest);
  void apply_data(FerryPost::Received& received);
  GroupControl& group_of(std::uint64_t id, int from);
  bool retry_pending();
  bool apply_poison(const PendingPoison& pending);  // false: something before it is missing
  bool is_moving(std::uint64_t group) const;
  bool is_needed(int rank) const;
  std::uint64_t record_of(RankControl& rank, const GroupControl& group, std::uint64_t sequence,
                          const RecordBytes& bytes, std::int64_t issued_ns) const;
  std::uint64_t add_record(RankControl& rank, const RecordBytes& bytes, const GroupControl& group,
                           std::int64_t issued_ns) const;

  // ---- the loop
  std::int64_t progress();
  void look_around(std::int64_t now);
  std::int64_t sleep_time(std::int64_t now, bool changed);
  void find_lost(std::int64_t now);
  void lose(int host, const std::string& why);
  void give_up(const std::string& why);
  void end_rank(int number, RankEnd end, const std::string& why);
  bool finished() const;

  struct Peer {
    bool takes_part = false;
    bool ended = false;
    std::string lost;
    std::int64_t heard_ns = 0;
  };
  struct ToldRank {  // the state of a local rank that was sent last
    RankEnd end = RankEnd::none;
    bool has_begun = false;
    std::uint64_t changes = 0, blocked = 0;
    std::uint64_t seen_changes = 0, seen_blocked = 0;
    std::int64_t since_ns = 0;
  };
  struct PendingEnd {
    int rank;
    RankEnd end;
    std::string why;
  };
  struct PendingPiece {
    PieceBody body;
    std::string piece;
  };
  struct PendingPoison {
    PoisonBody body;
    std::string text;
    bool is_proposal;
    bool more_follow;  // from the same host
    int from;
    std::int64_t since_ns;
  };

  WorldControl& world;
  HostMap hosts;
  int wake;
  HostsControl& control;
  mutable FerryPost post;
  LandingPool landing;
  std::vector<Peer> peers;
  std::vector<ToldRank> ranks;
  std::set<std::uint64_t> described;  // groups, by this host to all others
  std::vector<ArrivalBody> pending_arrivals;
  std::vector<PendingPiece> pending_pieces;
  std::vector<PendingPoison> pending_poisons;
  std::vector<PendingEnd> pending_ends;
  std::map<Key, std::unique_ptr<CollectiveCrossing>> crossings;
  std::map<Key, std::vector<FerryPost::Received>> early_data;
  std::int64_t last_heartbeat_ns = 0, last_change_ns = 0;
  std::int64_t last_look_ns = 0;
  std::uint32_t seen_ends = 0;
  bool told_abort = false, told_end = false, ending = false, may_be_woken = false;
};

}  // namespace lockstep::comm
