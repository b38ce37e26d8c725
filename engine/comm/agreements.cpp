// After a mismatch: members tell what their agreements stood for, so that every rank's error says it.
//
// Who waits tells at once. A call that runs inline and was issued to be waited for later has nobody in it: its rank
// tells while it waits for anything else. Where it goes on computing it is not waited for long: the recorder knows its
// call. Only where the calls are alike, so that what they stood for is all there is to say, its own wait is awaited.
#include <time.h>

#include "engine/comm/messages.hpp"
#include "engine/comm/protocol.hpp"

namespace lockstep::comm {

namespace {

constexpr std::int64_t told_ns = 1'000'000'000;       // for texts that are on their way
constexpr std::int64_t calls_differ_ns = 20'000'000;  // for texts that come later, beside calls that tell enough

void tell(Issued& issued) {
  RankControl& mine = issued.rank->control();
  std::string text = issued.agreement_text();
  if (text.size() > sizeof mine.agreement_text - 1) text.resize(sizeof mine.agreement_text - 1);
  text.copy(mine.agreement_text, text.size());
  mine.agreement_text[text.size()] = '\0';
  mine.agreement_group = issued.rank->world->offset_of(issued.group);
  mine.agreement_of.store(issued.sequence + 1, std::memory_order_release);
  issued.told = true;
}

bool calls_differ(const Issued& issued) {
  const Line* lines = issued.slot().lines();
  for (int member = 1; member < issued.group->size; ++member)
    if (!is_alike(lines[member].fingerprint, lines[0].fingerprint) ||
        issued.record_of(member).terms_digest != issued.record_of(0).terms_digest)
      return true;
  return false;
}

enum class Text { none, on_its_way, later };

// Whether a text of this member is still to come.
Text awaited_from(const Issued& issued, int member) {
  const RankControl& rank = issued.rank->world->rank(issued.group->members()[member]);
  const Record& record = issued.record_of(member);
  if (record.tells == Tells::nothing || has_told(issued, member)) return Text::none;
  if (rank.end.load(std::memory_order_acquire) != RankEnd::none) return Text::none;
  const bool waits = record.state.load(std::memory_order_acquire) != CollectiveState::issued || rank.waits.load() != 0;
  return record.tells == Tells::at_once || waits ? Text::on_its_way : Text::later;
}

}  // namespace

bool is_alike(const Fingerprint& a, const Fingerprint& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         (a.count == b.count || a.kind == exchange_kind);
}

bool has_told(const Issued& issued, int member) {
  const RankControl& rank = issued.rank->world->rank(issued.group->members()[member]);
  return rank.agreement_of.load(std::memory_order_acquire) == issued.sequence + 1 &&
         rank.agreement_group == issued.rank->world->offset_of(issued.group);
}

void tell_if_mismatched(Issued& issued) {
  if (!issued.agreement_text || issued.told || !issued.arrived.load(std::memory_order_acquire)) return;
  if (!issued.ended.load(std::memory_order_acquire) && issued.slot().stage.load() == Stage::mismatch &&
      issued.has_arrived(issued.me))
    tell(issued);
}

void fail_mismatch(Issued& issued) {
  if (agreements_differ(issued)) {
    if (issued.agreement_text) {
      const std::lock_guard lock(issued.rank->deferred.mutex);
      if (!issued.told) tell(issued);
    }
    const std::int64_t start = now_ns();
    const std::int64_t later_ns = calls_differ(issued) ? calls_differ_ns : told_ns;
    while (!issued.group->poison.any()) {
      bool on_its_way = false, later = false;
      for (int member = 0; member < issued.group->size; ++member) {
        const Text text = awaited_from(issued, member);
        on_its_way |= text == Text::on_its_way;
        later |= text == Text::later;
      }
      const std::int64_t waited = now_ns() - start;
      if (!(on_its_way && waited < told_ns) && !(later && waited < later_ns)) break;
      tell_deferred(*issued.rank);
      const timespec pause{0, 200'000};
      nanosleep(&pause, nullptr);
    }
  }
  fail(issued, mismatch_text(issued));
}

}  // namespace lockstep::comm
