#include "engine/comm/ferry.hpp"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <utility>

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/comm/crossing.hpp"
#include "engine/comm/ferry_messages.hpp"
#include "engine/comm/ferry_state.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm {

namespace {

constexpr std::int64_t heartbeat_ns = 50'000'000;
// A host that is silent for longer is lost. Shorter than the default deadline of a collective.
constexpr std::int64_t max_silence_ns = 6'000'000'000;
// A wait is sent to other hosts once it has lasted this long.
constexpr std::int64_t settled_ns = 10'000'000;
constexpr std::int64_t look_ns = 200'000;
constexpr std::int64_t awake_ns = 1'000'000;
constexpr std::int64_t longest_unwatched_sleep_ns = 500'000;

int open_eventfd() {
  const int descriptor = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (descriptor < 0) throw resource_error("a descriptor that wakes the ferry", errno);
  return descriptor;
}

HostsControl& lay_out_hosts(WorldControl& world, const HostMap& map, int wake) {
  const std::size_t ranks = map.host_of.size();
  LOCKSTEP_CHECK(static_cast<int>(ranks) == world.world_size, "the hosts of ", ranks, " ranks, in a world of ",
                 world.world_size);
  const std::uint64_t offset =
      allocate_control(world, sizeof(HostsControl) + bounded_product(ranks, sizeof(std::int32_t)));
  auto& hosts = *reinterpret_cast<HostsControl*>(world.at(offset));
  hosts.host = map.host;
  hosts.num_hosts = map.num_hosts;
  hosts.wake_descriptor = wake;
  std::copy(map.host_of.begin(), map.host_of.end(), hosts.host_of());
  world.hosts = offset;
  return hosts;
}

}  // namespace

Ferry::State::State(Link& link, device::HostWorld& host_world, HostMap map, std::uint64_t case_number)
    : world(control_of(host_world)),
      hosts(std::move(map)),
      wake(open_eventfd()),
      control(lay_out_hosts(world, hosts, wake)),
      post(link, case_number),
      peers(static_cast<std::size_t>(hosts.num_hosts)),
      ranks(static_cast<std::size_t>(world.world_size)) {
  std::set<int> used(hosts.host_of.begin(), hosts.host_of.end());
  const std::int64_t now = now_ns();
  for (int host = 0; host < hosts.num_hosts; ++host) {
    peers[static_cast<std::size_t>(host)].takes_part = host != hosts.host && used.contains(host);
    peers[static_cast<std::size_t>(host)].heard_ns = now;
  }
}

Ferry::State::~State() { ::close(wake); }

// ---- from local ranks to other hosts

void Ferry::State::send_group(const GroupControl& group) {
  if (!described.insert(group.id).second) return;
  GroupBody body{};
  body.id = group.id;
  body.channel = group.channel;
  body.size = group.size;
  const std::string_view members(reinterpret_cast<const char*>(group.members()),
                                 bounded_product(static_cast<std::size_t>(group.size), sizeof(std::int32_t)));
  to_all(FerryKind::group, body, members);
}

// The other hosts of the group's members.
std::vector<int> Ferry::State::hosts_of(const GroupControl& group) const {
  std::vector<int> others;
  for (int member = 0; member < group.size; ++member) {
    const int host = hosts.host_of[static_cast<std::size_t>(group.members()[member])];
    if (host != hosts.host && std::find(others.begin(), others.end(), host) == others.end()) others.push_back(host);
  }
  return others;
}

bool Ferry::State::send_notices() {
  bool changed = false;
  for (int rank = 0; rank < world.world_size; ++rank) {
    if (!hosts.is_local(rank)) continue;
    Outbox& outbox = world.rank(rank).outbox;
    for (std::uint64_t number = outbox.taken.load(std::memory_order_relaxed);
         number != outbox.written.load(std::memory_order_acquire); ++number) {
      const Notice notice = outbox.notices[number % Outbox::capacity];
      outbox.taken.store(number + 1, std::memory_order_release);
      send_notice(rank, notice);
      changed = true;
    }
  }
  return changed;
}

void Ferry::State::send_notice(int rank, const Notice& notice) {
  GroupControl& group = world.group(notice.group);
  send_group(group);
  switch (notice.kind) {
    case Notice::Kind::arrival:
      return send_arrival(group, notice);
    case Notice::Kind::staged_piece:
      return send_piece(group, notice);
    case Notice::Kind::end_of_round: {
      RoundBody body{};
      body.group = group.id;
      body.round = notice.sequence;
      body.issued = group.rounds_of(notice.member).issued[notice.sequence % MemberRounds::num_kept].load();
      body.member = notice.member;
      return to_group(group, FerryKind::end_of_round, body);
    }
    case Notice::Kind::content_text: {
      TextBody body{};
      body.group = group.id;
      body.sequence = notice.sequence;
      body.rank = rank;
      return to_group(group, FerryKind::content_text, body, world.rank(rank).content_text);
    }
    case Notice::Kind::poison:
      return propose(group, notice.piece != 0);
  }
}

void Ferry::State::send_arrival(GroupControl& group, const Notice& notice) {
  Slot& slot = group.slot(notice.sequence);
  const MemberEntry& entry = slot.entries()[notice.member];
  const RankControl& rank = world.rank(group.members()[notice.member]);
  const Record& record = rank.records[entry.record % recorder_entries];
  ArrivalBody body{};
  body.group = group.id;
  body.sequence = notice.sequence;
  body.member = notice.member;
  body.fingerprint = entry.fingerprint;
  body.age_ns = now_ns() - record.issued_ns;
  std::memcpy(body.record.data(), static_cast<const void*>(&record), sizeof record);
  to_group(group, FerryKind::arrival, body);
  begin_crossing(group, notice.sequence);
}

void Ferry::State::send_piece(GroupControl& group, const Notice& notice) {
  const MemberEntry& entry = group.slot(notice.sequence).entries()[notice.member];
  const auto number = static_cast<std::int64_t>(notice.piece);
  PieceBody body{};
  body.group = group.id;
  body.sequence = notice.sequence;
  body.piece = notice.piece;
  body.member = notice.member;
  to_group(group, FerryKind::staged_piece, body,
           {reinterpret_cast<const char*>(staged_piece(world, entry, number)), piece_bytes(entry, number)});
}

// Asks the host of the first member to poison the group, or does it if that is this host.
void Ferry::State::propose(GroupControl& group, bool more_follow) {
  const bool by_end = group.proposed_by_end.load() != 0;
  const std::string text = group.proposed_poison.read();
  const int decides = hosts.host_of[static_cast<std::size_t>(group.members()[0])];
  if (decides == hosts.host) return poison(group, text, by_end);
  PoisonBody body{};
  body.group = group.id;
  body.by_end = by_end ? 1 : 0;
  body.more_follow = more_follow ? 1 : 0;
  post.send(decides, FerryKind::propose, body, text);
}

// The decision of the deciding host: poisons the group here and on the other hosts.
void Ferry::State::poison(GroupControl& group, const std::string& text, bool by_end) {
  if (!poison_here(world, group, text, by_end ? Cause::peer_ended : Cause::own)) return;
  PoisonBody body{};
  body.group = group.id;
  body.by_end = by_end ? 1 : 0;
  to_all(FerryKind::poison, body, text);  // a rank of any host may have proposed it
}

void Ferry::State::send_rank_states(std::int64_t now) {
  std::vector<RankEnd> ends;
  ends.reserve(static_cast<std::size_t>(world.world_size));
  for (int number = 0; number < world.world_size; ++number)
    ends.push_back(world.rank(number).end.load(std::memory_order_acquire));
  send_notices();  // the notices of a rank precede its end
  if (world.abort.is_set() && !std::exchange(told_abort, true)) to_all_bytes(FerryKind::abort, world.abort.read());
  for (int number = 0; number < world.world_size; ++number) {
    if (!hosts.is_local(number)) continue;
    RankControl& rank = world.rank(number);
    ToldRank& told = ranks[static_cast<std::size_t>(number)];
    const RankEnd end = ends[static_cast<std::size_t>(number)];
    const bool has_begun = rank.begun_ns.load() != 0;
    const std::uint64_t changes = rank.wait_changes.load(), blocked = rank.blocked_at.load();
    if (changes != told.seen_changes || blocked != told.seen_blocked) {
      told.seen_changes = changes;
      told.seen_blocked = blocked;
      told.since_ns = now;
    }
    const bool settled = now - told.since_ns >= settled_ns && (changes != told.changes || blocked != told.blocked);
    if (end == told.end && has_begun == told.has_begun && !settled) continue;
    told.end = end;
    told.has_begun = has_begun;
    told.changes = changes;
    told.blocked = blocked;
    send_rank_state(number, end, has_begun);
  }
}

void Ferry::State::send_rank_state(int number, RankEnd end, bool has_begun) {
  RankControl& rank = world.rank(number);
  RankBody body{};
  body.rank = number;
  body.end = end;
  body.has_begun = has_begun ? 1 : 0;
  body.waits = rank.waits.load();
  body.wait_changes = rank.wait_changes.load();
  body.blocked_at = rank.blocked_at.load();
  body.line = rank.location.line;
  body.column = rank.location.column;
  std::memcpy(body.step, rank.location.step, sizeof body.step);
  std::memcpy(body.file, rank.location.file, sizeof body.file);
  const Record* const last = end == RankEnd::none ? nullptr : last_record(rank);
  if (last != nullptr) {
    const GroupControl& group = world.group(last->group);
    send_group(group);
    body.last_group = group.id;
    body.last_sequence = last->sequence;
    body.last_age_ns = now_ns() - last->issued_ns;
    body.last_state = last->state.load(std::memory_order_acquire);
    std::memcpy(body.last_record.data(), static_cast<const void*>(last), sizeof *last);
  }
  std::string rest;
  for (const WaitEntry& entry : rank.wait_entries) {
    const std::uint64_t offset = entry.group.load();
    if (offset <= 1) continue;  // free, or being written
    WaitBody wait{};
    const GroupControl& group = world.group(offset);
    send_group(group);
    wait.group = group.id;
    wait.sequence = entry.sequence.load();
    wait.round = entry.round.load();
    wait.target = entry.target.load();
    const Record& record = rank.records[entry.record.load() % recorder_entries];
    std::memcpy(wait.record.data(), static_cast<const void*>(&record), sizeof record);
    wait.reason = entry.reason.load();
    wait.me = entry.me.load();
    wait.member = entry.member.load();
    rest += ferry_bytes(wait);
    ++body.num_waits;
  }
  // A torn read: the rank is active.
  if (rank.wait_changes.load() != body.wait_changes) body.blocked_at = 0;
  rest += rank.end_reason.read();
  to_all(FerryKind::rank_state, body, rest);
}

void Ferry::State::send_heartbeats(std::int64_t now) {
  if (now - last_heartbeat_ns < heartbeat_ns) return;
  last_heartbeat_ns = now;
  to_all_bytes(FerryKind::heartbeat, "");
}

// ---- crossings

// The collective begins to move when all members have arrived, which the last arrival shows, here or elsewhere. Its
// slot is open until the crossing has finished, by when all its data has come.
void Ferry::State::begin_crossing(GroupControl& group, std::uint64_t sequence) {
  Slot& slot = group.slot(sequence);
  if (slot.stage.load(std::memory_order_acquire) != Stage::open || slot.transport != TransportKind::between_hosts)
    return;
  const Key key{group.id, sequence};
  if (crossings.contains(key)) return;
  CollectiveCrossing& crossing =
      *crossings.emplace(key, std::make_unique<CollectiveCrossing>(world, group, sequence, post, landing))
           .first->second;
  const auto early = early_data.find(key);
  if (early == early_data.end()) return;
  for (FerryPost::Received& received : early->second) {
    received.body = std::string_view(received.message.bytes).substr(sizeof(FerryHead));
    crossing.take(received);
  }
  early_data.erase(early);
}

bool Ferry::State::move_crossings() {
  bool changed = false;
  for (auto each = crossings.begin(); each != crossings.end();) {
    changed |= each->second->progress();
    if (!each->second->is_finished()) {
      ++each;
      continue;
    }
    mark_done(each->first);
    each = crossings.erase(each);
  }
  return changed;
}

// Every rank of the world is gone. Nothing more comes for the crossings that are left.
bool Ferry::State::abandon_crossings() {
  for (auto& [key, messages] : early_data)
    for (const FerryPost::Received& each : messages) post.drop(each.message);
  early_data.clear();
  return std::erase_if(crossings, [](const auto& each) { return each.second->abandon(); }) > 0;
}

bool Ferry::State::all_have_ended() const {
  return told_end && std::all_of(peers.begin(), peers.end(),
                                 [](const Peer& peer) { return !peer.takes_part || peer.ended || !peer.lost.empty(); });
}

// The records of members elsewhere: their ranks finish about now.
void Ferry::State::mark_done(const Key& key) {
  const GroupControl* group = find_group(world, key.first);
  for (int member = 0; member < group->size; ++member) {
    const int number = group->members()[member];
    if (hosts.is_local(number)) continue;
    RankControl& rank = world.rank(number);
    const std::uint64_t count = rank.num_records.load();
    for (std::uint64_t back = 1; back <= std::min<std::uint64_t>(count, 2 * ring_slots); ++back) {
      Record& record = rank.records[(count - back) % recorder_entries];
      if (record.group != world.offset_of(group) || record.sequence != key.second) continue;
      record.state.store(CollectiveState::done, std::memory_order_release);
    }
  }
}

// ---- the loop

std::int64_t Ferry::State::progress() {
  if (std::exchange(may_be_woken, false)) {
    control.ferry_sleeps.store(0, std::memory_order_seq_cst);
    std::uint64_t woken = 0;
    static_cast<void>(!::read(wake, &woken, sizeof woken));
  }
  const std::int64_t now = now_ns();
  bool changed = false;
  const auto or_give_up = [&](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      give_up(error.message());
    }
  };
  or_give_up([&] {
    changed |= send_notices();
    for (FerryPost::Received received; post.receive(received);) {
      apply(received);
      changed = true;
    }
    changed |= all_have_ended() ? abandon_crossings() : move_crossings();
    changed |= retry_pending();
  });
  // Apart: what fails in every turn must not keep the others from learning the end.
  or_give_up([&] {
    if (ending || world.ends.load() != seen_ends || now - last_look_ns >= look_ns) look_around(now);
    post.link().progress();
  });
  if (changed) last_change_ns = now;
  return sleep_time(now, changed);
}

// The part of a turn that need not happen every time.
void Ferry::State::look_around(std::int64_t now) {
  last_look_ns = now;
  seen_ends = world.ends.load();
  send_rank_states(now);
  if (ending && !std::exchange(told_end, true)) to_all_bytes(FerryKind::end, "");
  send_heartbeats(now);
  find_lost(now);
}

// For how long the caller may sleep. Without a descriptor the link must be polled, the more often the more it is used.
std::int64_t Ferry::State::sleep_time(std::int64_t now, bool changed) {
  if (changed) return 0;
  const std::int64_t quiet = now - last_change_ns;
  const bool is_polled = post.link().descriptor() < 0;
  if (quiet < awake_ns && (is_polled || !crossings.empty())) {
    sched_yield();  // ranks of this host may share the core
    return 0;
  }
  may_be_woken = true;
  control.ferry_sleeps.store(1, std::memory_order_seq_cst);
  for (int rank = 0; rank < world.world_size; ++rank) {
    const Outbox& outbox = world.rank(rank).outbox;
    if (hosts.is_local(rank) && outbox.taken.load() != outbox.written.load()) return 0;
  }
  return is_polled ? std::min<std::int64_t>(quiet / 16, longest_unwatched_sleep_ns) : settled_ns;
}

void Ferry::State::find_lost(std::int64_t now) {
  for (int host = 0; host < hosts.num_hosts; ++host) {
    Peer& peer = peers[static_cast<std::size_t>(host)];
    if (!peer.takes_part || peer.ended || !peer.lost.empty()) continue;
    if (!post.link().is_alive(host))
      lose(host, "its launcher has ended or the connection is broken");
    else if (now - peer.heard_ns > max_silence_ns)
      lose(host, str("it has been silent for ", max_silence_ns / 1'000'000'000, " s"));
  }
}

// No rank of this host will be heard of again: their peers must not wait for them.
void Ferry::State::lose(int host, const std::string& why) {
  peers[static_cast<std::size_t>(host)].lost = why;
  for (int rank = 0; rank < world.world_size; ++rank)
    if (hosts.host_of[static_cast<std::size_t>(rank)] == host)
      end_rank(rank, RankEnd::died, str("its host (number ", host, ") is lost: ", why));
}

// The link or a peer cannot be trusted: every rank must end.
void Ferry::State::give_up(const std::string& why) {
  world.abort.try_set(why);
  notify_all(world);
  for (int host = 0; host < hosts.num_hosts; ++host)
    if (Peer& peer = peers[static_cast<std::size_t>(host)]; peer.takes_part && peer.lost.empty()) peer.lost = why;
}

void Ferry::State::end_rank(int number, RankEnd end, const std::string& why) {
  RankControl& rank = world.rank(number);
  if (!why.empty()) rank.end_reason.try_set(why);
  RankEnd none = RankEnd::none;
  if (rank.end.compare_exchange_strong(none, end)) notify_all(world);
}

bool Ferry::State::finished() const {
  if (!all_have_ended()) return false;
  if (std::any_of(peers.begin(), peers.end(), [](const Peer& peer) { return !peer.lost.empty(); })) return true;
  return crossings.empty() && post.link().has_sent_all();
}

Ferry::Ferry(Link& link, device::HostWorld& world, HostMap hosts, std::uint64_t case_number)
    : state_(std::make_unique<State>(link, world, std::move(hosts), case_number)) {}
Ferry::~Ferry() = default;
std::int64_t Ferry::progress() { return state_->progress(); }
int Ferry::wake_descriptor() const { return state_->wake; }
void Ferry::end() { state_->ending = true; }
bool Ferry::finished() const { return state_->finished(); }

// Those that have not said that their ranks are gone. When all have, a transfer is open, with any of them.
std::vector<int> Ferry::awaited() const {
  std::vector<int> silent, all;
  for (std::size_t host = 0; host < state_->peers.size(); ++host) {
    const State::Peer& peer = state_->peers[host];
    if (!peer.takes_part || !peer.lost.empty()) continue;
    all.push_back(static_cast<int>(host));
    if (!peer.ended) silent.push_back(static_cast<int>(host));
  }
  return silent.empty() ? all : silent;
}

std::vector<Ferry::Lost> Ferry::lost() const {
  std::vector<Lost> found;
  for (std::size_t host = 0; host < state_->peers.size(); ++host)
    if (!state_->peers[host].lost.empty()) found.push_back({static_cast<int>(host), state_->peers[host].lost});
  return found;
}

}  // namespace lockstep::comm
