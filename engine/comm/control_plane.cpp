#include "engine/comm/control_plane.hpp"

#include <sched.h>
#include <time.h>
#include <unistd.h>

namespace lockstep::comm {

namespace {

// All ranks share the control area.
class SharedControlPlane : public ControlPlane {
 public:
  explicit SharedControlPlane(WorldControl& world) : world_(world) {}
  void arrived(GroupControl&, int, std::uint64_t) override {}
  void staged_piece(GroupControl&, int, std::uint64_t, std::uint64_t) override {}
  void ended_round(GroupControl&, int, std::uint64_t) override {}
  void published_text(GroupControl&, int, std::uint64_t) override {}
  void poison(GroupControl& group, const std::string& text, Cause cause) override {
    poison_here(world_, group, text, cause);
  }
  void propose_poison(GroupControl&, const std::string&, Cause, bool) override {}

 private:
  WorldControl& world_;
};

// Some ranks live on other hosts. Of groups within this host they learn nothing.
class FerriedControlPlane : public ControlPlane {
 public:
  FerriedControlPlane(WorldControl& world, int rank) : world_(world), outbox_(world.rank(rank).outbox) {}

  void arrived(GroupControl& group, int member, std::uint64_t sequence) override {
    post(group, {Notice::Kind::arrival, member, world_.offset_of(&group), sequence, 0});
  }
  void staged_piece(GroupControl& group, int member, std::uint64_t sequence, std::uint64_t piece) override {
    post(group, {Notice::Kind::staged_piece, member, world_.offset_of(&group), sequence, piece});
  }
  void ended_round(GroupControl& group, int member, std::uint64_t round) override {
    post(group, {Notice::Kind::end_of_round, member, world_.offset_of(&group), round, 0});
  }
  void published_text(GroupControl& group, int member, std::uint64_t sequence) override {
    post(group, {Notice::Kind::content_text, member, world_.offset_of(&group), sequence, 0});
  }

  // The host of the group's first member decides which text was first. If it does not answer, the proposal counts.
  void poison(GroupControl& group, const std::string& text, Cause cause) override {
    if (group.spans_hosts == 0) {
      poison_here(world_, group, text, cause);
      return;
    }
    if (group.poison.is_set()) return;
    propose_poison(group, text, cause, false);
    constexpr std::int64_t patience_ns = 1'000'000'000;
    for (const std::int64_t start = now_ns(); !group.poison.is_set() && now_ns() - start < patience_ns;) pause();
    poison_here(world_, group, group.proposed_poison.read(),
                group.proposed_by_end.load() != 0 ? Cause::peer_ended : Cause::own);
  }
  void propose_poison(GroupControl& group, const std::string& text, Cause cause, bool more_follow) override {
    if (!group.proposed_poison.claim()) return;
    group.proposed_by_end.store(cause == Cause::peer_ended ? 1 : 0);
    group.proposed_poison.fill(text);
    write({Notice::Kind::poison, 0, world_.offset_of(&group), 0, more_follow ? std::uint64_t{1} : 0});
  }

 private:
  static void pause() {
    const timespec time{0, 200'000};
    nanosleep(&time, nullptr);
  }

  void post(const GroupControl& group, const Notice& notice) {
    if (group.spans_hosts != 0) write(notice);
  }
  void write(const Notice& notice) {
    while (outbox_.locked.exchange(1, std::memory_order_acquire) != 0) sched_yield();
    const std::uint64_t number = outbox_.written.load(std::memory_order_relaxed);
    while (number - outbox_.taken.load(std::memory_order_acquire) >= Outbox::capacity) pause();
    outbox_.notices[number % Outbox::capacity] = notice;
    outbox_.written.store(number + 1, std::memory_order_seq_cst);
    outbox_.locked.store(0, std::memory_order_release);
    HostsControl& hosts = *world_.hosts_control();
    if (hosts.ferry_sleeps.load(std::memory_order_seq_cst) == 0 || hosts.ferry_sleeps.exchange(0) == 0) return;
    const std::uint64_t one = 1;
    static_cast<void>(!::write(hosts.wake_descriptor, &one, sizeof one));
  }

  WorldControl& world_;
  Outbox& outbox_;
};

}  // namespace

bool poison_here(WorldControl& world, GroupControl& group, const std::string& text, Cause cause) {
  const bool first = group.poison.claim();
  if (first) {
    group.poisoned_by_end.store(cause == Cause::peer_ended ? 1 : 0);
    group.poison.fill(text);
  }
  notify_all(world);
  return first;
}

std::unique_ptr<ControlPlane> open_control_plane(WorldControl& world, int rank) {
  if (world.hosts_control() == nullptr) return std::make_unique<SharedControlPlane>(world);
  return std::make_unique<FerriedControlPlane>(world, rank);
}

}  // namespace lockstep::comm
