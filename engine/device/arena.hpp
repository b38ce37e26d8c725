// The memory that the ranks of a case share: one arena per rank and device kind, and a control region for engine/comm.
// The launcher maps it before the ranks start, with a memfd so that processes see each other's pages. Every rank has it
// at the same addresses and finds it through RankContext::shared().
//
//   HostWorld world = HostWorld::create(world_size, Sharing::processes);   // launcher
//   RankContext context(rank, world_size, &world);                          // each rank
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace lockstep::device {

enum class Sharing { processes, threads };

class HostWorld {
 public:
  static constexpr std::size_t default_arena_bytes = std::size_t{8} << 30;  // sparse: only touched pages use memory
  static constexpr std::size_t default_control_bytes = std::size_t{64} << 20;

  // Throws ResourceError with the system's reason if a mapping fails, and Error if world_size is below 1. With
  // `only_rank`, for a rank that runs without its peers, the arenas of the other ranks are reserved addresses without
  // memory.
  static std::unique_ptr<HostWorld> create(int world_size, Sharing sharing,
                                           std::size_t arena_bytes = default_arena_bytes,
                                           std::size_t control_bytes = default_control_bytes, int only_rank = -1);
  ~HostWorld();
  HostWorld(const HostWorld&) = delete;
  HostWorld& operator=(const HostWorld&) = delete;

  // A range of mapped addresses.
  struct Region {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    bool contains(const void* pointer) const { return pointer >= base && pointer < base + bytes; }
  };
  int world_size() const { return static_cast<int>(cpu_.size()); }
  Sharing sharing() const { return sharing_; }
  Region cpu_arena(int rank) const { return cpu_[static_cast<std::size_t>(rank)]; }
  Region sim_arena(int rank) const { return sim_[static_cast<std::size_t>(rank)]; }
  Region control() const { return control_; }  // zeroed at creation; engine/comm defines its contents

 private:
  HostWorld() = default;
  Sharing sharing_ = Sharing::processes;
  std::vector<Region> cpu_;
  std::vector<Region> sim_;
  Region control_;
  std::byte* base_ = nullptr;  // one address reservation contains all regions
  std::size_t total_ = 0;
};

}  // namespace lockstep::device
