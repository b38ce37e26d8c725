#include "engine/core/rank_context.hpp"

#include <atomic>

#include "engine/core/error.hpp"

namespace lockstep {

namespace {
thread_local RankContext* current_context = nullptr;
std::atomic<std::size_t> num_slots{0};  // service types in this program; the same slots for every rank
}  // namespace

RankContext::RankContext(int rank, int world_size, void* shared)
    : rank_(rank), world_size_(world_size), shared_(shared) {}

RankContext::~RankContext() {
  RankScope scope(*this);  // destructors of services may use the current context
  while (!destroyers_.empty()) {
    const Destroyer last = destroyers_.back();
    destroyers_.pop_back();
    void* service = services_[last.slot];
    last.destroy(service);
    services_[last.slot] = nullptr;
  }
}

RankContext& RankContext::current() {
  LOCKSTEP_CHECK(current_context != nullptr, "no rank runs on this thread");
  return *current_context;
}

RankContext* RankContext::current_or_null() { return current_context; }

std::size_t RankContext::next_slot() { return num_slots.fetch_add(1); }

RankScope::RankScope(RankContext& context) : previous_(current_context) { current_context = &context; }
RankScope::~RankScope() { current_context = previous_; }

}  // namespace lockstep
