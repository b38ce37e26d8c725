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

#include "engine/device/device.hpp"

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
  // The same memory for processes that were not forked from each other: one makes the file, hands its descriptor to the
  // others and closes it; each maps the file with the same sizes, at addresses of its own. The errors are those of
  // create().
  static int make_file(int world_size, std::size_t arena_bytes, std::size_t control_bytes);
  static std::unique_ptr<HostWorld> map_file(int file, int world_size, std::size_t arena_bytes,
                                             std::size_t control_bytes);
  ~HostWorld();
  HostWorld(const HostWorld&) = delete;
  HostWorld& operator=(const HostWorld&) = delete;

  // A range of mapped addresses.
  struct Region {
    std::byte* base = nullptr;
    std::size_t bytes = 0;
    bool contains(const void* pointer) const { return pointer >= base && pointer < base + bytes; }
  };
  int world_size() const { return world_size_; }
  Sharing sharing() const { return sharing_; }
  // The memory of a rank on its devices of this kind; empty for kinds whose memory the ranks do not share.
  Region arena(Kind kind, int rank) const;
  int num_arenas() const { return static_cast<int>(arenas_.size()); }
  Region arena(int number) const { return arenas_[static_cast<std::size_t>(number)]; }
  // The number of the arena of this rank that contains the address, or -1.
  int arena_with(int rank, const void* pointer) const;
  Region control() const { return control_; }  // zeroed at creation; engine/comm defines its contents

 private:
  struct Sizes;
  HostWorld() = default;
  static Sizes sizes_of(int world_size, std::size_t arena_bytes, std::size_t control_bytes);
  static std::unique_ptr<HostWorld> map(int file, int world_size, const Sizes& sizes, int only_rank);
  Sharing sharing_ = Sharing::processes;
  int world_size_ = 0;
  std::vector<Region> arenas_;  // per shared kind, of each rank
  Region control_;
  std::byte* base_ = nullptr;  // one address reservation contains all regions
  std::size_t total_ = 0;
};

}  // namespace lockstep::device
