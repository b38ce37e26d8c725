#include "harness/run/trace/plan_board.hpp"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/core/checked.hpp"
#include "engine/core/resources.hpp"
#include "harness/run/trace/plan_bytes.hpp"

namespace lockstep::run {

namespace {

constexpr std::size_t place_bytes = std::size_t{256} << 10;  // only used pages cost memory
const std::size_t board_bytes = bounded_product(place_bytes, std::size_t{PlanBoard::num_places});
constexpr double most_seconds_to_wait = 2.0;

enum State : std::uint32_t { making, posted, given_up };

double now_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

// The plan follows the slot.
struct PlanBoard::Slot {
  std::atomic<std::uint64_t> digest;  // 0: free
  std::atomic<std::uint32_t> state;
  std::uint32_t size;
  char* plan() { return reinterpret_cast<char*>(this + 1); }
  static constexpr std::size_t capacity = place_bytes - 64;
};

PlanBoard::PlanBoard() {
  static_assert(sizeof(Slot) <= 64);
  void* memory =
      ::mmap(nullptr, board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw resource_error("mapping the memory of a plan", errno);
  memory_ = static_cast<char*>(memory);  // zeros: all slots are free
}

PlanBoard::~PlanBoard() { ::munmap(memory_, board_bytes); }

PlanBoard::Slot& PlanBoard::slot(int place) const {
  return *reinterpret_cast<Slot*>(memory_ + bounded_product(static_cast<std::size_t>(place), place_bytes));
}

std::optional<PlanBoard::Place> PlanBoard::find(std::uint64_t digest, int from) {
  const std::uint64_t wanted = digest | 1;  // not 0
  for (int place = from; place < num_places; ++place) {
    std::uint64_t found = 0;
    if (slot(place).digest.compare_exchange_strong(found, wanted)) return Place{place, true};
    if (found == wanted) return Place{place, false};
  }
  return std::nullopt;
}

void PlanBoard::set_state(int place, std::uint32_t state) {
  slot(place).state.store(state, std::memory_order_release);
  ::syscall(SYS_futex, &slot(place).state, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void PlanBoard::post(int place, const std::vector<plan::Collective>& planned) {
  const std::string bytes = bytes_of_plan(planned);
  if (bytes.size() > Slot::capacity) return give_up(place);
  std::memcpy(slot(place).plan(), bytes.data(), bytes.size());
  slot(place).size = static_cast<std::uint32_t>(bytes.size());
  set_state(place, posted);
}

void PlanBoard::give_up(int place) { set_state(place, given_up); }

std::optional<std::string_view> PlanBoard::read(int place, double most_seconds) {
  Slot& of = slot(place);
  const double until = now_seconds() + most_seconds;
  while (of.state.load(std::memory_order_acquire) == making) {
    const double left = until - now_seconds();
    if (left <= 0) return std::nullopt;
    timespec wait{};
    wait.tv_sec = static_cast<std::time_t>(left);
    wait.tv_nsec = static_cast<long>((left - static_cast<double>(wait.tv_sec)) * 1e9);
    ::syscall(SYS_futex, &of.state, FUTEX_WAIT, making, &wait, nullptr, 0);
  }
  if (of.state.load(std::memory_order_acquire) != posted || of.size > Slot::capacity) return std::nullopt;
  return std::string_view(of.plan(), of.size);
}

std::optional<PlanOutcome> make_unless_confirmed(PlanBoard* board, std::uint64_t digest,
                                                 const std::function<PlanOutcome()>& make,
                                                 const std::function<bool(std::string_view posted)>& confirm) {
  if (board == nullptr) return make();
  auto place = board->find(digest, 0);
  for (; place && !place->is_mine; place = board->find(digest, place->number + 1)) {
    const auto plan = board->read(place->number, most_seconds_to_wait);
    if (!plan) return make();
    if (confirm(*plan)) return std::nullopt;
  }
  if (!place) return make();
  try {
    PlanOutcome outcome = make();
    if (outcome.unforeseen.empty() && outcome.left_out.empty())
      board->post(place->number, outcome.planned);
    else
      board->give_up(place->number);
    return outcome;
  } catch (...) {
    board->give_up(place->number);
    throw;
  }
}

}  // namespace lockstep::run
