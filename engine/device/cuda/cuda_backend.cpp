#include "engine/device/cuda/cuda_backend.hpp"

#include <algorithm>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/core/schedule.hpp"
#include "engine/device/cuda/calls.hpp"
#include "engine/device/cuda/cuda_queue.hpp"
#include "engine/device/cuda/shared.hpp"
#include "engine/device/place_on_host.hpp"
#include "engine/device/private_arena.hpp"
#include "engine/device/runtime.hpp"

namespace lockstep::device {

namespace cuda {

namespace {

constexpr std::size_t bytes_per_context = std::size_t{768} << 20;
constexpr std::size_t least_arena = std::size_t{1} << 20;
constexpr std::size_t page = std::size_t{2} << 20;  // of the GPU

std::size_t nine_tenths(std::size_t bytes) { return bytes / 10 * 9; }

// The size of the arenas on the host also bounds those on the device, and so does the rank's limit of memory, above
// which scratch memory and gaps between blocks need room.
std::size_t wanted_bytes(const RankContext& context) {
  const auto* world = static_cast<const HostWorld*>(context.shared());
  const std::size_t arena = world == nullptr ? RankContext::current().service<PrivateArena>().bytes
                                             : world->arena(Kind::cpu, context.rank()).bytes;
  const std::int64_t limit = Runtime::current().memory_limit().bytes;
  constexpr std::int64_t room = std::int64_t{512} << 20;
  if (limit >= MemoryLimit::none / 4) return arena;
  return std::min(arena, static_cast<std::size_t>(limit + limit / 2 + room));
}

// Ranks that are threads share the context of CUDA of their process.
bool ranks_are_threads(const RankContext& context) {
  if (RankContext::current().service<PlaceOnHost>().ranks_are_threads) return true;
  const auto* world = static_cast<const HostWorld*>(context.shared());
  return world != nullptr && world->sharing() == Sharing::threads;
}

// Where a rank runs: on a GPU of its own if the host has one per rank, else on the first GPU with all ranks of the
// host. NCCL connects no ranks of which only some share a GPU.
struct Seat {
  int gpu = 0;
  int num_ranks = 1;  // of the case, on this GPU
};

// Ranks of other cases take their shares at any time.
int ranks_at_once(int ranks_of_case) {
  return std::max(ranks_of_case, RankContext::current().service<PlaceOnHost>().num_ranks_at_once);
}

Seat seat_of(const PlaceOnHost& place, Calls& of) {
  if (schedule::self() != nullptr)
    throw UnsupportedError("cuda: a schedule does not control a GPU", "use --device sim with --schedule");
  if (place.num_ranks <= of.num_devices()) return {place.index, 1};
  return {0, place.num_ranks};
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const RankContext& context)
      : calls_(calls()), seat_(seat_of(RankContext::current().service<PlaceOnHost>(), calls_)), device_(seat_.gpu) {
    calls_.use_device(device_);
    const int ranks = seat_.num_ranks;
    if (ranks > max_ranks_per_gpu)
      throw UnsupportedError(str(ranks, " ranks on GPU ", device_, ": collectives have at most ",
                                 int{max_ranks_per_gpu}, " ranks per GPU"),
                             "use fewer ranks");
    const int contexts = ranks_are_threads(context) ? 1 : ranks;
    const DeviceProperties properties = calls_.properties_of(device_);
    const std::size_t total = properties.total_bytes, free = calls_.free_bytes();
    if (share_of({total, total}, ranks, contexts, least_arena) < least_arena)
      throw UnsupportedError(
          str("GPU ", device_, " (", properties.name, ") has ", total, " bytes of memory, too little for ", ranks,
              " ranks and ", contexts, contexts == 1 ? " context" : " contexts", " of CUDA on it"),
          "use --launch thread, fewer ranks per GPU, or a larger GPU");
    const std::size_t bytes =
        share_of({total, free}, ranks_at_once(ranks), ranks_at_once(contexts), wanted_bytes(context));
    if (bytes < least_arena)
      throw ResourceError(str("GPU ", device_, " (", properties.name, ") has ", free, " of ", total,
                              " bytes free, too little for rank ", context.rank(), " of ", ranks, " on it"),
                          "end other programs on the GPU, or use --jobs 1 or fewer ranks per GPU");
    shared_ = std::make_shared<Shared>(calls_, device_);
    memory_ = static_cast<std::byte*>(calls_.allocate(bytes));
    arena_ = Arena::of_device({memory_, bytes});
  }
  ~CudaBackend() override {
    if (!shared_->is_abandoned) calls_.release(memory_);
  }
  Arena& arena() override { return arena_; }
  std::string device_id() const override { return calls_.properties_of(device_).id; }
  std::shared_ptr<Queue> open_queue(const std::string& name, Activity& activity) override {
    return std::make_shared<CudaQueue>(name, shared_, activity);
  }
  void copy(const Execution& on, std::byte* to, const std::byte* from, std::size_t bytes) override {
    calls_.copy(to, from, bytes, on.stream);
  }
  void fill(const Execution& on, std::byte* to, std::byte value, std::size_t bytes) override {
    calls_.set_bytes(to, std::to_integer<int>(value), bytes, on.stream);
  }
  void pin(HostWorld::Region pages) override { calls_.pin(pages.base, pages.bytes); }
  void unpin(HostWorld::Region pages) noexcept override {
    if (!shared_->is_abandoned) calls_.unpin(pages.base);
  }
  void read(const Execution& on, void* to, const std::byte* from, std::size_t bytes) override {
    calls_.copy(to, from, bytes, on.stream);
    calls_.synchronize_stream(on.stream);
  }
  void write(const Execution& on, std::byte* to, const void* from, std::size_t bytes) override {
    calls_.copy(to, from, bytes, on.stream);
    calls_.synchronize_stream(on.stream);
  }

 private:
  Calls& calls_;
  const Seat seat_;
  const int device_;
  std::shared_ptr<Shared> shared_;
  std::byte* memory_ = nullptr;
  Arena arena_;
};

}  // namespace

std::size_t share_of(GpuMemory memory, int ranks, int contexts, std::size_t wanted) {
  const std::size_t of_contexts = static_cast<std::size_t>(contexts) * bytes_per_context;
  const std::size_t rest = memory.total > of_contexts ? memory.total - of_contexts : 0;
  const std::size_t share = nine_tenths(rest / static_cast<std::size_t>(ranks));
  const std::size_t bytes = std::min({share, nine_tenths(memory.free), wanted});
  return bytes < page ? bytes : bytes / page * page;
}

}  // namespace cuda

std::unique_ptr<Backend> open_cuda(const RankContext& context) { return std::make_unique<cuda::CudaBackend>(context); }
void require_cuda() { cuda::calls().require_driver(); }

}  // namespace lockstep::device
