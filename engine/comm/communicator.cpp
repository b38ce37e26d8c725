#include "engine/comm/communicator.hpp"

#include <cstdlib>
#include <numeric>

#include "engine/comm/fake_world.hpp"
#include "engine/comm/messages.hpp"
#include "engine/core/error.hpp"
#include "engine/device/place_on_host.hpp"

namespace lockstep::comm {

namespace {
constexpr std::size_t private_control_bytes = std::size_t{4} << 20;

// Without a map of hosts, all ranks live on this one, and each has its number.
void note_place_on_host(RankContext& context, WorldControl& world) {
  if (world.hosts_control() == nullptr) return;
  auto& place = context.service<device::PlaceOnHost>();
  place.index = place.num_ranks = 0;
  for (int rank = 0; rank < context.world_size(); ++rank) {
    if (!world.is_local(rank)) continue;
    if (rank < context.rank()) ++place.index;
    ++place.num_ranks;
  }
}
}  // namespace

Communicator::Communicator(RankContext& context) : context_(&context), state_(std::make_shared<RankState>()) {
  open_world(context);
  state_->plane = open_control_plane(*state_->world, state_->rank);
}

// Finds or makes the control area: that of the host, of a world without peers, or of a single rank.
void Communicator::open_world(RankContext& context) {
  state_->rank = context.rank();
  state_->activity = &context.service<device::Activity>();
  if (context.shared() != nullptr) {
    const auto& host = *static_cast<const device::HostWorld*>(context.shared());
    state_->world = &control_of(host);
    LOCKSTEP_CHECK(state_->world->world_size == context.world_size(), "rank ", context.rank(), " of ",
                   context.world_size(), " in a world of ", state_->world->world_size);
    note_place_on_host(context, *state_->world);
    if (state_->world->processes != 0) state_->peer_mappings = std::make_unique<PeerMappings>(host);
    return;
  }
  if (context.has_service<FakePeers>()) {
    state_->world = &context.service<FakePeers>().control();
    return;
  }
  if (context.world_size() != 1)
    throw Error(
        str("rank ", context.rank(), " of ", context.world_size(), " has no memory that it shares with its peers"),
        "start the ranks with the launcher, give each RankContext the HostWorld, or use a FakeWorld");
  std::size_t room = private_control_bytes + alignof(WorldControl);
  state_->private_control.reset(static_cast<std::byte*>(std::calloc(1, room)));
  LOCKSTEP_CHECK(state_->private_control != nullptr, "no memory for the communicator of a single rank");
  void* base = state_->private_control.get();
  base = std::align(alignof(WorldControl), private_control_bytes, base, room);
  state_->world = &initialize_control(static_cast<std::byte*>(base), private_control_bytes, 1, false);
}

ProcessGroup& Communicator::group(const std::vector<int>& members, const std::string& axis) {
  std::unique_ptr<ProcessGroup>& entry = groups_[{members, axis}];
  if (entry) return *entry;
  int me = -1;
  std::set<int> seen;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int rank = members[i];
    if (rank < 0 || rank >= context_->world_size() || !seen.insert(rank).second) {
      throw Error(str("a process group of ranks ", ranks_text(members), ": rank ", rank,
                      rank < 0 || rank >= context_->world_size() ? str(" is not in a world of ", context_->world_size())
                                                                 : std::string(" is named twice")),
                  "name each rank of the group once");
    }
    if (rank == context_->rank()) me = static_cast<int>(i);
  }
  if (me < 0) {
    throw Error(str("a process group of ranks ", ranks_text(members), ": rank ", context_->rank(), " is not a member"),
                "only members may create a group");
  }
  Endpoint& endpoint = endpoints_[members];
  if (endpoint.control == nullptr) endpoint.control = &find_or_insert_group(*state_->world, members, 0);
  entry.reset(new ProcessGroup);
  entry->rank_ = me;
  entry->members_ = members;
  entry->axis_ = axis;
  entry->state_ = std::make_unique<GroupState>();
  entry->state_->endpoint = &endpoint;
  return *entry;
}

Endpoint& Communicator::channel(ProcessGroup& group, int from, int to) {
  Endpoint& parent = CollectiveIssuer::endpoint_of(group);
  Endpoint& channel = parent.channels[{from, to}];
  if (channel.control == nullptr) {
    const std::vector<int> ends{group.members()[static_cast<std::size_t>(from)],
                                group.members()[static_cast<std::size_t>(to)]};
    channel.control = &find_or_insert_group(*state_->world, ends, parent.control->id);
  }
  return channel;
}

Communicator::Statements Communicator::take_statements(const ProcessGroup& group) {
  const auto found = statements_.find(&group);
  return found == statements_.end() ? Statements() : std::exchange(found->second, {});
}

void Communicator::count_waiter(const device::Stream& stream) {
  if (!stream.runs_inline() && waiters_.insert(stream.id()).second) state_->world->num_waiters.fetch_add(1);
}

ProcessGroup::~ProcessGroup() = default;
std::uint64_t ProcessGroup::sequence() const { return state_->endpoint->sequence; }

ProcessGroup& world_group() {
  Communicator& communicator = Communicator::current();
  std::vector<int> all(static_cast<std::size_t>(communicator.context().world_size()));
  std::iota(all.begin(), all.end(), 0);
  return communicator.group(all, "");
}

ProcessGroup& group_of(const std::vector<int>& world_ranks, const std::string& axis) {
  return Communicator::current().group(world_ranks, axis);
}

const std::vector<LogEntry>& log() { return Communicator::current().log; }
std::int64_t transport_bytes() { return Communicator::current().state()->transport_bytes.load(); }

Phase current_phase() { return Communicator::current().phase; }
PhaseScope::PhaseScope(Phase phase) : previous_(std::exchange(Communicator::current().phase, phase)) {}
PhaseScope::~PhaseScope() { Communicator::current().phase = previous_; }

SumOrder sum_order() { return Communicator::current().sum_order; }

const std::string& call_site_name() { return Communicator::current().call_site_name; }
void set_call_site_name(const std::string& name) { Communicator::current().call_site_name = name; }

void set_deadline(double seconds) {
  if (!(seconds > 0)) throw Error(str("a deadline of ", seconds, " s"), "give a positive number of seconds");
  Communicator::current().state()->deadline_ns = static_cast<std::int64_t>(seconds * 1e9);
}

double deadline() { return static_cast<double>(Communicator::current().state()->deadline_ns) * 1e-9; }

void announce_begin() { Communicator::current().state()->control().begun_ns.store(now_ns()); }

void announce_end(bool failed, const std::string& why) {
  const RankState& state = *Communicator::current().state();
  RankControl& control = state.control();
  if (!why.empty()) control.end_reason.try_set(why);
  RankEnd none = RankEnd::none;
  control.end.compare_exchange_strong(none, failed ? RankEnd::failed : RankEnd::ended);
  notify_all(*state.world);
}

}  // namespace lockstep::comm
