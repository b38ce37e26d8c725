#include "harness/run/trace/plan_board.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
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

// Addresses; only used pages cost memory.
constexpr std::size_t board_bytes = std::size_t{16} << 20;
constexpr double most_seconds_to_wait = 2.0;

enum State : std::uint32_t { making, posted, given_up };

double now_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

struct PlanBoard::Slot {
  std::atomic<std::uint64_t> digest;  // 0: free
  std::atomic<std::uint32_t> state;
  std::uint32_t offset;  // of the conditions; the plan follows them
  std::uint32_t conditions_size, plan_size;
};

// The conditions and plans follow the head.
struct PlanBoard::Head {
  std::atomic<std::uint64_t> used;
  Slot slots[num_places];
};

PlanBoard::PlanBoard() {
  void* memory =
      ::mmap(nullptr, board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw resource_error("mapping the memory of the plans of a scenario", errno);
  memory_ = static_cast<char*>(memory);  // zeros: all slots are free
}

PlanBoard::~PlanBoard() { ::munmap(memory_, board_bytes); }

PlanBoard::Head& PlanBoard::head() const { return *reinterpret_cast<Head*>(memory_); }

// The places of a digest begin at one that the digest determines.
PlanBoard::Slot& PlanBoard::slot(std::uint64_t digest, int place) const {
  const std::uint64_t first = (digest >> 32) ^ digest;
  return head().slots[(first + static_cast<std::uint64_t>(place)) % num_places];
}

std::optional<PlanBoard::Place> PlanBoard::find(std::uint64_t digest, int from) {
  const std::uint64_t wanted = digest | 1;  // not 0
  for (int place = from; place < num_places; ++place) {
    std::uint64_t found = 0;
    if (slot(digest, place).digest.compare_exchange_strong(found, wanted)) return Place{place, true};
    if (found == wanted) return Place{place, false};
  }
  return std::nullopt;
}

void PlanBoard::set_state(Slot& slot, std::uint32_t state) {
  slot.state.store(state, std::memory_order_release);
  ::syscall(SYS_futex, &slot.state, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

char* PlanBoard::take_room(std::size_t bytes, std::uint32_t& offset) const {
  constexpr std::size_t alignment = 16;
  const std::size_t wanted = (bytes + alignment - 1) / alignment * alignment;
  const std::size_t room = board_bytes - sizeof(Head);
  if (wanted > room) return nullptr;
  const std::uint64_t begin = head().used.fetch_add(wanted);
  if (begin > room - wanted) {
    head().used.fetch_sub(wanted);
    return nullptr;
  }
  offset = static_cast<std::uint32_t>(sizeof(Head) + begin);
  return memory_ + offset;
}

void PlanBoard::post(std::uint64_t digest, int place, const PlanOutcome& outcome) {
  const std::string plan = bytes_of_plan(outcome.planned);
  Slot& to = slot(digest, place);
  char* room = take_room(outcome.conditions.size() + plan.size(), to.offset);
  if (room == nullptr) return give_up(digest, place);
  std::copy(plan.begin(), plan.end(), std::copy(outcome.conditions.begin(), outcome.conditions.end(), room));
  to.conditions_size = static_cast<std::uint32_t>(outcome.conditions.size());
  to.plan_size = static_cast<std::uint32_t>(plan.size());
  set_state(to, posted);
}

void PlanBoard::give_up(std::uint64_t digest, int place) { set_state(slot(digest, place), given_up); }

std::optional<PlanBoard::Posted> PlanBoard::read(std::uint64_t digest, int place, double most_seconds) {
  Slot& of = slot(digest, place);
  const double until = now_seconds() + most_seconds;
  while (of.state.load(std::memory_order_acquire) == making) {
    const double left = until - now_seconds();
    if (left <= 0) {
      // The rank that makes the plan may have ended. If it has not, it posts the plan all the same.
      std::uint32_t expected = making;
      of.state.compare_exchange_strong(expected, given_up);
      return std::nullopt;
    }
    timespec wait{};
    wait.tv_sec = static_cast<std::time_t>(left);
    wait.tv_nsec = static_cast<long>((left - static_cast<double>(wait.tv_sec)) * 1e9);
    ::syscall(SYS_futex, &of.state, FUTEX_WAIT, making, &wait, nullptr, 0);
  }
  if (of.state.load(std::memory_order_acquire) != posted) return std::nullopt;
  const std::uint64_t offset = of.offset, conditions = of.conditions_size, plan = of.plan_size;
  if (offset < sizeof(Head) || offset + conditions + plan > board_bytes) return std::nullopt;
  return Posted{{memory_ + offset, conditions}, {memory_ + offset + conditions, plan}};
}

std::shared_ptr<PlanBoard> PlanBoards::of(const std::shared_ptr<const scenario::Scenario>& scenario) {
  for (const auto& [known, board] : latest_)
    if (known == scenario) return board;
  if (latest_.size() == most_kept) latest_.pop_front();
  return latest_.emplace_back(scenario, std::make_shared<PlanBoard>()).second;
}

std::optional<PlanOutcome> make_unless_confirmed(PlanBoard* board, std::uint64_t digest,
                                                 const std::function<PlanOutcome()>& make,
                                                 const std::function<bool(const PlanBoard::Posted&)>& confirm) {
  if (board == nullptr) return make();
  auto place = board->find(digest, 0);
  for (; place && !place->is_mine; place = board->find(digest, place->number + 1)) {
    const auto plan = board->read(digest, place->number, most_seconds_to_wait);
    if (!plan) return make();
    if (confirm(*plan)) return std::nullopt;
  }
  if (!place) return make();
  try {
    PlanOutcome outcome = make();
    if (outcome.unforeseen.empty() && outcome.left_out.empty())
      board->post(digest, place->number, outcome);
    else
      board->give_up(digest, place->number);
    return outcome;
  } catch (...) {
    board->give_up(digest, place->number);
    throw;
  }
}

}  // namespace lockstep::run
