// A world without peers: one rank's program alone, in a world of any size. Nothing is shared and nothing starts, so
// 4,096 ranks cost as little as two. Process groups, channels, meshes and their sizes are those of the whole world. The
// dry run of a case (harness/run/trace) follows a rank with it.
//
//   comm::FakeWorld world(17, 4096);              // rank 17 of 4,096
//   const RankScope scope(world.context());
//   const DeviceMesh mesh({64, 64}, {"dp", "tp"});
//   mesh.group(1).size()                          // 64
//   comm::all_reduce(mesh.group(1), ...)          // throws CollectiveError: no peer sends its summand
//
// In a world of more than one rank every collective, exchange and end of a round that compares throws CollectiveError
// at once, with the call and this rank's place in the message. In a world of one rank collectives run. Tensors with
// values may use 16 MiB per kind of device; a program on the meta device needs none.
//
// The control area is address space of which only the used pages cost memory: those of this rank and of its groups.
#pragma once

#include "engine/core/rank_context.hpp"

namespace lockstep::comm {

struct WorldControl;

class FakeWorld {
 public:
  // Throws Error unless 0 <= rank < world_size <= max_world_size, and ResourceError if the address space is used up.
  FakeWorld(int rank, int world_size);
  static constexpr int max_world_size = 1 << 20;
  RankContext& context() { return context_; }

 private:
  RankContext context_;
};

// The control area of a rank without peers, a service of its context (internal to engine/comm).
class FakePeers {
 public:
  explicit FakePeers(RankContext&) {}
  ~FakePeers();
  FakePeers(const FakePeers&) = delete;
  FakePeers& operator=(const FakePeers&) = delete;
  // Maps the control area of this world. Once.
  void open(int rank, int world_size);
  WorldControl& control() const { return *control_; }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  WorldControl* control_ = nullptr;
};

}  // namespace lockstep::comm
