// Carries the messages between ranks of different hosts during a case.
//
// Every host has a control area with the slots, records and waits of all ranks of the world (control.hpp). The ranks of
// the host write their own parts. The ferry of the host sends these to the other hosts. It writes received parts
// into the local area in the place of the ranks that live elsewhere. A rank therefore sees all peers alike, wherever
// they are.
//
// The launcher of the host owns the ferry and moves it between its other tasks. Ranks wake it by a descriptor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/link.hpp"
#include "engine/device/arena.hpp"

namespace lockstep::comm {

// Which host runs each rank of a world.
struct HostMap {
  int host = 0;  // of this process
  int num_hosts = 1;
  std::vector<int> host_of;  // per rank
  bool is_local(int rank) const { return host_of.empty() || host_of[static_cast<std::size_t>(rank)] == host; }
};

class Ferry {
 public:
  // After prepare_world() and before the local ranks start. All hosts give the same case number; messages of other
  // cases are dropped. Throws ResourceError without a descriptor to wake it.
  Ferry(Link& link, device::HostWorld& world, HostMap hosts, std::uint64_t case_number);
  ~Ferry();
  Ferry(const Ferry&) = delete;
  Ferry& operator=(const Ferry&) = delete;

  // Sends and applies everything that waits. Returns for how many nanoseconds the caller may sleep unless the
  // descriptor wakes it; 0: call again at once.
  std::int64_t progress();
  // Readable when a local rank has something to send.
  int wake_descriptor() const;
  // The local ranks are gone: tells the other hosts. finished() turns true when they have said the same and no transfer
  // uses memory of the world, or when they are lost.
  void end();
  bool finished() const;
  // The hosts that finished() waits for.
  std::vector<int> awaited() const;
  // Hosts that have not been heard of for this long, or whose link has ended, with the reason.
  struct Lost {
    int host;
    std::string why;
  };
  std::vector<Lost> lost() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::comm
