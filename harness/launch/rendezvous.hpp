// Connects the processes of a run by TCP, each with each.
//
// The process of rank 0 listens at the address that all know. Every other process connects there and says its rank and
// the port at which it listens itself. When all have come, rank 0 sends everyone the list of addresses, and each
// process connects to those of lower ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep::launch {

struct Rendezvous {
  std::string address;  // of the machine of rank 0: a name or a number
  int port = 0;
  int rank = 0;
  int world_size = 1;
  double seconds = 60.0;         // until all must be connected
  std::function<bool()> stop{};  // asked several times per second; when it returns true, the wait ends by an Error
};

// One socket per process, in order of rank, with -1 for this process. The caller owns them. They notice within 15 s
// that the other machine is gone. Throws Error on every process that has come when some are missing, give a rank twice
// or give another world size; ResourceError without sockets.
std::vector<int> connect_all(const Rendezvous& rendezvous);

}  // namespace lockstep::launch
