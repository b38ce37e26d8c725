// Teams whose threads run one at a time: each has a stack of its own, and they take turns on the caller's thread. A
// thread runs to its next barrier, then the next one does. They go from the first to the last and back, and every other
// team begins with the last. Where a kernel lacks a barrier, a thread reads before another one writes, in one
// direction.
#undef _FORTIFY_SOURCE  // it refuses jumps from one stack to another
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <ucontext.h>

#include "engine/core/error.hpp"
#include "engine/kernels/kokkos_team_internal.hpp"

namespace lockstep::kernels {

namespace {

constexpr int team_size = 3;  // divides no number of lanes evenly
constexpr std::size_t stack_bytes = 256 << 10;

// The stacks of a host thread's teams. Teams do not nest.
std::byte* stack_of(int rank) {
  static thread_local std::array<std::unique_ptr<std::byte[]>, team_size> stacks;
  auto& stack = stacks[static_cast<std::size_t>(rank)];
  if (!stack) stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
  return stack.get();
}

// Where a thread of a team goes on. Later turns are jumps, because a change of contexts takes two calls of the system.
class Turn {
 public:
  void begin_at(void (*function)(), std::byte* stack) {
    ::getcontext(&first_);
    first_.uc_stack.ss_sp = stack;
    first_.uc_stack.ss_size = stack_bytes;
    ::makecontext(&first_, function, 0);
    is_first_ = true;
  }
  // Runs the other until it, or another one, goes back to this.
  void leave_to(Turn& other) {
    if (_setjmp(later_) == 0) other.go();
  }
  [[noreturn]] void go() {
    if (!is_first_) std::longjmp(later_, 1);
    is_first_ = false;
    ::setcontext(&first_);
    __builtin_unreachable();
  }

 private:
  ucontext_t first_{};
  std::jmp_buf later_{};
  bool is_first_ = false;
};

class TeamInTurn {
 public:
  // `step`: 1 begins with the first thread, -1 with the last.
  TeamInTurn(std::int64_t count, std::byte* scratch, const void* functor, TeamCall call, int step)
      : count_(count), scratch_(scratch), functor_(functor), call_(call), first_step_(step) {
    begin_with(step);
  }

  // Returns whether the threads came to the same barriers.
  bool run() {
    running = this;
    for (int rank = 0; rank < team_size; ++rank) turn_of(rank).begin_at(&TeamInTurn::begin, stack_of(rank));
    caller_.leave_to(turn_of(rank_));
    return agree_;
  }

 private:
  enum class Place { barrier, end };

  static inline thread_local TeamInTurn* running = nullptr;

  static void begin() { running->run_thread(); }
  static void wait(const void* team) { static_cast<TeamInTurn*>(const_cast<void*>(team))->arrive(Place::barrier); }

  Turn& turn_of(int rank) { return turns_[static_cast<std::size_t>(rank)]; }
  void begin_with(int step) {
    step_ = step;
    rank_ = step > 0 ? 0 : team_size - 1;
  }

  void run_thread() {
    const int rank = rank_;
    for (std::int64_t index = 0; index < count_; ++index) {
      call_(functor_, HostTeam(index, rank, team_size, scratch_, this, wait));
      arrive(Place::end);
    }
    caller_.go();  // all have come to the last end
  }

  // Returns when all threads have come to the place, and it is this one's turn.
  void arrive(Place place) {
    const int me = rank_;
    if (num_arrived_ == 0) place_ = place;
    if (place != place_) {
      agree_ = false;
      caller_.go();
    }
    if (++num_arrived_ < team_size) {
      rank_ += step_;
    } else {
      num_arrived_ = 0;
      if (place == Place::end) first_step_ = -first_step_;
      begin_with(place == Place::end ? first_step_ : -step_);
    }
    if (rank_ != me) turn_of(me).leave_to(turn_of(rank_));
  }

  std::int64_t count_;
  std::byte* scratch_;
  const void* functor_;
  TeamCall call_;
  Turn caller_;
  std::array<Turn, team_size> turns_;
  int first_step_;       // of this team
  int rank_ = 0;         // of the thread that runs
  int step_ = 1;         // from its rank to that of the next one
  int num_arrived_ = 0;  // at place_
  Place place_ = Place::end;
  bool agree_ = true;
};

}  // namespace

void teams_in_turn(const char* label, std::int64_t count, std::size_t scratch_bytes, const void* functor,
                   TeamCall call) {
  if (count == 0) return;
  if (!can_take_turns) return teams_on_host({device::Space::portable, 1}, label, count, scratch_bytes, functor, call);
  static thread_local int step = 1;
  step = -step;
  const TeamScratch scratch(scratch_bytes);
  const bool agree = TeamInTurn(count, scratch.begin(), functor, call, step).run();
  LOCKSTEP_CHECK(agree, label, ": a thread of a team has ended, and another one is at a barrier");
}

}  // namespace lockstep::kernels
