// After a mismatch of content digests: members publish the descriptions (Call), so that every rank's error shows them.
//
// A member that waits in the call publishes its text at once. In an asynchronous call on an inline stream no thread
// waits; its rank publishes the text while it waits for anything else. A rank that computes instead is waited for only
// briefly, because the recorder already shows its call. If the calls are equal apart from their contents, the texts are
// the only difference, and they are waited for longer.
#include <time.h>

#include "engine/comm/messages.hpp"
#include "engine/comm/protocol.hpp"
#include "engine/comm/slot.hpp"
#include "engine/core/schedule.hpp"

namespace lockstep::comm {

namespace {

constexpr std::int64_t max_text_wait_ns = 1'000'000'000;
constexpr std::int64_t max_text_wait_calls_differ_ns = 20'000'000;  // for deferred texts when the calls differ

void publish(IssuedCollective& issued) {
  RankControl& mine = issued.rank->control();
  copy_text(mine.content_text, issued.content_text());
  mine.content_text_group = issued.rank->world->offset_of(issued.group);
  mine.content_text_of.store(issued.sequence + 1, std::memory_order_release);
  issued.content_published = true;
  issued.rank->plane->published_text(*issued.group, issued.me, issued.sequence);
}

bool calls_differ(const IssuedCollective& issued) {
  const MemberEntry* entries = issued.slot().entries();
  for (int member = 1; member < issued.group->size; ++member)
    if (!fields_match(entries[member].fingerprint, entries[0].fingerprint) ||
        issued.record_of(member).terms_digest != issued.record_of(0).terms_digest)
      return true;
  return false;
}

enum class Pending { none, soon, deferred };

// Whether and when this member will publish a text.
Pending pending_text(const IssuedCollective& issued, int member) {
  const RankControl& rank = issued.rank->world->rank(issued.group->members()[member]);
  const Record& record = issued.record_of(member);
  // The rank of a call that the flight recorder does not keep any more has gone on, so the call is asynchronous.
  const bool is_kept = issued.is_kept_in(record);
  const ContentText when = is_kept ? record.content_text : ContentText::deferred;
  if (when == ContentText::none || has_published(issued, member)) return Pending::none;
  if (rank.end.load(std::memory_order_acquire) != RankEnd::none) return Pending::none;
  const bool has_begun = is_kept && record.state.load(std::memory_order_acquire) != CollectiveState::issued;
  return when == ContentText::at_once || has_begun || rank.waits.load() != 0 ? Pending::soon : Pending::deferred;
}

// Under a schedule: waits until no text is pending or the group is poisoned, or until no actor can run.
void wait_for_texts(const IssuedCollective& issued, schedule::Actor& me) {
  me.wait_or_stall("the texts of peers", [&] {
    for (int member = 0; member < issued.group->size; ++member)
      if (pending_text(issued, member) != Pending::none) return issued.group->poison.is_set();
    return true;
  });
}

// Waits until no text is pending, the group is poisoned, or the time is up.
void wait_for_texts(const IssuedCollective& issued) {
  if (schedule::Actor* me = schedule::self()) [[unlikely]]
    return wait_for_texts(issued, *me);
  const std::int64_t start = now_ns();
  const std::int64_t max_deferred_ns = calls_differ(issued) ? max_text_wait_calls_differ_ns : max_text_wait_ns;
  while (!issued.group->poison.is_set()) {
    bool soon = false, deferred = false;
    for (int member = 0; member < issued.group->size; ++member) {
      const Pending pending = pending_text(issued, member);
      soon |= pending == Pending::soon;
      deferred |= pending == Pending::deferred;
    }
    const std::int64_t waited = now_ns() - start;
    if (!(soon && waited < max_text_wait_ns) && !(deferred && waited < max_deferred_ns)) break;
    publish_deferred_texts(*issued.rank);
    const timespec pause{0, 200'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

bool has_published(const IssuedCollective& issued, int member) {
  const RankControl& rank = issued.rank->world->rank(issued.group->members()[member]);
  return rank.content_text_of.load(std::memory_order_acquire) == issued.sequence + 1 &&
         rank.content_text_group == issued.rank->world->offset_of(issued.group);
}

void publish_if_mismatched(IssuedCollective& issued) {
  if (!issued.content_text || issued.content_published || !issued.arrived.load(std::memory_order_acquire)) return;
  if (!issued.ended.load(std::memory_order_acquire) && issued.slot().stage.load() == Stage::mismatch &&
      issued.has_arrived(issued.me))
    publish(issued);
}

void fail_mismatch(IssuedCollective& issued) {
  if (contents_differ(issued)) {
    if (issued.content_text) {
      const std::lock_guard lock(issued.rank->deferred.mutex);
      if (!issued.content_published) publish(issued);
    }
    wait_for_texts(issued);
  }
  fail(issued, mismatch_text(issued));
}

}  // namespace lockstep::comm
