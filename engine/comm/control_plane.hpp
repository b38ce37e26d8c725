// The messages between ranks: arrivals with their fingerprints, rounds, texts, poison. A rank writes each
// of them into its part of the control area (control.hpp), and every wait reads that area. Ranks of one host share the
// area, so that the write itself is the message. When ranks live on several hosts, the control plane also posts a
// notice, and the ferries copy the named change into the areas of the other hosts (ferry.hpp). Ends, aborts and waits
// need no notice: the ferry reads them.
//
// Promises, whatever carries the messages:
//   - A rank that has arrived is seen by all members, with its fingerprint and its record.
//   - Members see each other's notices in the order in which each made them.
//   - All members of a poisoned group throw one text, while the hosts can reach each other.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/control.hpp"

namespace lockstep::comm {

// What poisons a group: an error of its own, or the end of a member.
enum class Cause { own, peer_ended };

class ControlPlane {
 public:
  ControlPlane() = default;
  virtual ~ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // Each is called after the rank has written the change.
  virtual void arrived(GroupControl& group, int member, std::uint64_t sequence) = 0;
  virtual void staged_piece(GroupControl& group, int member, std::uint64_t sequence, std::uint64_t piece) = 0;
  virtual void ended_round(GroupControl& group, int member, std::uint64_t round) = 0;
  virtual void published_text(GroupControl& group, int member, std::uint64_t sequence) = 0;
  // Poisons the group with this text, unless another text was first, and wakes its members. The group is poisoned when
  // the call returns.
  virtual void poison(GroupControl& group, const std::string& text, Cause cause) = 0;
  // Begins to do so for a group with ranks of other hosts, and returns at once. Later notices of this rank, and its
  // end, arrive there after the text. With `more_follow` the deciding host waits for the next proposal of this host, so
  // that no rank wakes before all groups have the text.
  virtual void propose_poison(GroupControl& group, const std::string& text, Cause cause, bool more_follow) = 0;
};

// The control plane of a rank of this world.
std::unique_ptr<ControlPlane> open_control_plane(WorldControl& world, int rank);

// Poisons the group in this area alone, and wakes its members. False when another text was first.
bool poison_here(WorldControl& world, GroupControl& group, const std::string& text, Cause cause);

}  // namespace lockstep::comm
