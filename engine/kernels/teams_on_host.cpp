// Teams of threads that run at the same time, for tests of the bodies of accelerators.
#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include <Kokkos_Core.hpp>

#include "engine/core/error.hpp"
#include "engine/device/protection.hpp"
#include "engine/kernels/backend.hpp"
#include "engine/kernels/kokkos_host_internal.hpp"
#include "engine/kernels/kokkos_team_internal.hpp"

namespace lockstep::kernels {

namespace {

constexpr std::size_t scratch_alignment = 64;

// Teams of plain threads: any number, on any backend.
void teams_of_threads(int team_size, std::int64_t count, std::size_t scratch_bytes, const void* functor,
                      TeamCall call) {
  const TeamScratch memory(scratch_bytes);
  std::byte* const scratch = memory.begin();
  std::barrier<> barrier(team_size);
  const auto wait = [](const void* at) { static_cast<std::barrier<>*>(const_cast<void*>(at))->arrive_and_wait(); };
  if (team_size == 1) {
    for (std::int64_t index = 0; index < count; ++index) call(functor, HostTeam(index, 0, 1, scratch, &barrier, wait));
    return;
  }
  const bool open = device::has_rights_of_its_own();
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(team_size));
  for (int rank = 0; rank < team_size; ++rank)
    threads.emplace_back([=, &barrier] {
      device::with_rights(open, [=, &barrier] {
        for (std::int64_t index = 0; index < count; ++index) {
          call(functor, HostTeam(index, rank, team_size, scratch, &barrier, wait));
          barrier.arrive_and_wait();
        }
      });
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void teams_on_host(device::Execution on, const char* label, std::int64_t count, std::size_t scratch_bytes,
                   const void* functor, TeamCall call) {
  initialize();
  if (on.team_size > 0 || !host_needs_kokkos)
    return teams_of_threads(std::max<int>(1, on.team_size), count, scratch_bytes, functor, call);
  using Policy = Kokkos::TeamPolicy<HostBackend>;
  using Member = Policy::member_type;
  const int bytes = static_cast<int>(scratch_bytes + scratch_alignment);
  LOCKSTEP_CHECK(count <= std::numeric_limits<int>::max(), label, ": ", count, " teams");
  Policy policy(static_cast<int>(count), Kokkos::AUTO);
  policy.set_scratch_size(0, Kokkos::PerTeam(bytes));
  const bool open = device::has_rights_of_its_own();
  Kokkos::parallel_for(label, policy, [=](const Member& member) {
    void* scratch = member.team_scratch(0).get_shmem(bytes);
    std::size_t room = scratch_bytes + scratch_alignment;
    std::align(scratch_alignment, scratch_bytes, scratch, room);
    const auto wait = [](const void* at) { static_cast<const Member*>(at)->team_barrier(); };
    device::with_rights(open, [&] {
      call(functor, HostTeam(member.league_rank(), member.team_rank(), member.team_size(),
                             static_cast<std::byte*>(scratch), &member, wait));
    });
  });
}

}  // namespace lockstep::kernels
