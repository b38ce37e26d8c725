#include "engine/device/host_backend.hpp"

#include <cstring>

#include "engine/core/error.hpp"
#include "engine/device/inline_queue.hpp"
#include "engine/device/private_arena.hpp"
#include "engine/device/protection.hpp"
#include "engine/device/scheduled_queue.hpp"
#include "engine/device/worker_queue.hpp"

namespace lockstep::device {

namespace {

// The arena that the launcher mapped for this rank; a private one for a rank without a launcher.
Arena open_arena(Kind kind, const RankContext& context) {
  const auto* world = static_cast<const HostWorld*>(context.shared());
  if (world == nullptr) return Arena::map_private(RankContext::current().service<PrivateArena>().bytes);
  LOCKSTEP_CHECK(context.rank() < world->world_size(), "rank ", context.rank(), " of a world of ", world->world_size());
  return Arena(world->arena(kind, context.rank()));
}

class HostBackend : public Backend {
 public:
  HostBackend(Kind kind, const RankContext& context) : arena_(open_arena(kind, context)) {}
  Arena& arena() override { return arena_; }
  void copy(const Execution&, std::byte* to, const std::byte* from, std::size_t bytes) override {
    std::memmove(to, from, bytes);
  }
  void fill(const Execution&, std::byte* to, std::byte value, std::size_t bytes) override {
    std::memset(to, std::to_integer<int>(value), bytes);
  }
  // Its copies can use any page of the host.
  void pin(HostWorld::Region) override {}
  void unpin(HostWorld::Region) noexcept override {}
  void read(const Execution&, void* to, const std::byte* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void write(const Execution&, std::byte* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

 private:
  Arena arena_;
};

class CpuBackend final : public HostBackend {
 public:
  explicit CpuBackend(const RankContext& context) : HostBackend(Kind::cpu, context) {}
  std::shared_ptr<Queue> open_queue(const std::string&, Activity&) override { return std::make_shared<InlineQueue>(); }
};

// Host code can touch its memory in launches only (protection.hpp), here as on a device.
class SimBackend final : public HostBackend {
 public:
  explicit SimBackend(const RankContext& context) : HostBackend(Kind::sim, context), rank_(context.rank()) {
    const auto* world = static_cast<const HostWorld*>(context.shared());
    protect(arena().area());
    for (int rank = 0; world != nullptr && rank < world->world_size(); ++rank) protect(world->arena(Kind::sim, rank));
  }
  void read(const Execution& on, void* to, const std::byte* from, std::size_t bytes) override {
    const OpenMemory open;
    HostBackend::read(on, to, from, bytes);
  }
  void write(const Execution& on, std::byte* to, const void* from, std::size_t bytes) override {
    const OpenMemory open;
    HostBackend::write(on, to, from, bytes);
  }
  std::shared_ptr<Queue> open_queue(const std::string& name, Activity& activity) override {
    if (schedule::self() != nullptr) return std::make_shared<ScheduledQueue>(name, rank_, activity);
    return std::make_shared<WorkerQueue>(name, activity);
  }

 private:
  int rank_;
};

}  // namespace

std::unique_ptr<Backend> open_cpu(const RankContext& context) { return std::make_unique<CpuBackend>(context); }
std::unique_ptr<Backend> open_sim(const RankContext& context) { return std::make_unique<SimBackend>(context); }

}  // namespace lockstep::device
