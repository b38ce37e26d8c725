// The memory that a case's ranks share: one arena a rank and device kind, plus a control area for engine/comm. The
// launcher maps it before the ranks start (memfd, so that processes see each other's pages); every rank finds it under
// the same addresses through RankContext::shared().
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
  static constexpr std::size_t default_arena_bytes = std::size_t{8} << 30;  // sparse: only touched pages cost
  static constexpr std::size_t default_control_bytes = std::size_t{64} << 20;

  // Throws Error (with the system's reason and the remedy) when the machine refuses the mappings. For a rank that runs
  // without its peers, `only_rank`, theirs are addresses without memory: each rank of a large world may have one such.
  static std::unique_ptr<HostWorld> create(int world_size, Sharing sharing,
                                           std::size_t arena_bytes = default_arena_bytes,
                                           std::size_t control_bytes = default_control_bytes, int only_rank = -1);
  ~HostWorld();
  HostWorld(const HostWorld&) = delete;
  HostWorld& operator=(const HostWorld&) = delete;

  struct Area {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    bool contains(const void* pointer) const { return pointer >= base && pointer < base + bytes; }
  };
  int world_size() const { return static_cast<int>(cpu_.size()); }
  Sharing sharing() const { return sharing_; }
  Area cpu_arena(int rank) const { return cpu_[static_cast<std::size_t>(rank)]; }
  Area sim_arena(int rank) const { return sim_[static_cast<std::size_t>(rank)]; }
  Area control() const { return control_; }  // zeroed at creation; laid out by engine/comm

 private:
  HostWorld() = default;
  Sharing sharing_ = Sharing::processes;
  std::vector<Area> cpu_;
  std::vector<Area> sim_;
  Area control_;
  std::byte* base_ = nullptr;  // one reservation holds everything
  std::size_t total_ = 0;
};

}  // namespace lockstep::device
