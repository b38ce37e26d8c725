#include "engine/comm/nccl_step.hpp"

#include <cstring>

#include "engine/comm/reduce.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm::nccl {

template <class F>
void StandInStep::for_each_letter(const F& body) const {
  for (const StandInCall& call : calls_) {
    if (call.kind == StandInCall::Kind::send) body(call, of_->letter_to(call.peer));
    for (int peer = 0; call.adds() && peer < of_->size; ++peer) body(call, of_->letter_to(peer));
  }
}

template <class Ready, class Run>
void StandInStep::launch(const std::shared_ptr<StandInStep>& step, const Ready& ready, const Run& run) {
  step->cuda_.launch_when(
      step->stream_, [step, ready] { return step->of_->is_aborted || ready(); },
      [step, run] {
        if (!step->of_->is_aborted) run();
      });
}

void StandInStep::enqueue(const std::shared_ptr<StandInStep>& step) {
  StandInStep* const own = step.get();
  const auto is_taken = [own] { return own->is_taken(); };
  launch(step, is_taken, [own] { own->post(); });
  for (const StandInCall& call : step->calls_) {
    if (call.kind == StandInCall::Kind::receive) {
      launch(
          step, [own, peer = call.peer] { return own->input_of(peer) != nullptr; },
          [own, &call] { own->receive(call); });
    } else if (call.adds()) {
      launch(
          step, [own] { return own->has_inputs(); }, [own, &call] { own->add_up(call); });
    }
  }
  launch(step, is_taken, [own] { own->finish(); });
}

bool StandInStep::is_taken() const {
  bool all = true;
  for_each_letter(
      [&](const StandInCall&, const Letter& letter) { all = all && letter.posted.load() == letter.taken.load(); });
  return all;
}

void StandInStep::post() const {
  for_each_letter([](const StandInCall& call, Letter& letter) {
    letter.bytes = call.bytes;
    letter.at = call.from;
    letter.posted.fetch_add(1, std::memory_order_release);
  });
}

const std::byte* StandInStep::input_of(int peer) const {
  return of_->has_letter_from(peer) ? cuda_.reach(of_->letter_from(peer).at) : nullptr;
}

bool StandInStep::fits(int peer, const StandInCall& call) const {
  const std::uint64_t bytes = of_->letter_from(peer).bytes;
  if (bytes == call.bytes) return true;
  of_->fail(str("member ", peer, " gives ", bytes, " bytes to member ", of_->member, ", which takes ", call.bytes));
  return false;
}

void StandInStep::receive(const StandInCall& call) const {
  if (fits(call.peer, call)) std::memcpy(call.to, input_of(call.peer), call.bytes);
  of_->letter_from(call.peer).taken.fetch_add(1);
}

bool StandInStep::has_inputs() const {
  for (int peer = 0; peer < of_->size; ++peer)
    if (input_of(peer) == nullptr) return false;
  return true;
}

// From the last member to the first, one after the other, with a rounding each time. A mean divides in the end.
void StandInStep::add_up(const StandInCall& call) {
  bool all_fit = true;
  for (int peer = 0; peer < of_->size; ++peer) all_fit = fits(peer, call) && all_fit;
  const auto size = static_cast<std::size_t>(of_->size), me = static_cast<std::size_t>(of_->member);
  const bool to_all = call.kind == StandInCall::Kind::all_reduce;
  const std::size_t bytes = to_all ? call.bytes : call.bytes / size, begin = to_all ? 0 : bounded_product(bytes, me);
  const auto count = static_cast<std::int64_t>(bytes / size_of(call.sum.dtype));
  const bool is_mean = call.sum.op == ReduceOp::mean;
  const ReduceOp op = is_mean ? ReduceOp::sum : call.sum.op;
  total_.assign(bytes, std::byte{0});
  std::byte* const out = total_.data();
  if (all_fit) std::memcpy(out, input_of(of_->size - 1) + begin, bytes);
  for (int peer = of_->size - 2; all_fit && peer >= 0; --peer) {
    const std::vector<const std::byte*> parts = {out, input_of(peer) + begin};
    reduce({call.sum.dtype, op, parts, {&out, 1}, 1, false}, 0, count);
  }
  const std::vector<const std::byte*> parts = {out};
  if (is_mean) reduce({call.sum.dtype, ReduceOp::mean, parts, {&out, 1}, of_->size, false}, 0, count);
  for (int peer = 0; peer < of_->size; ++peer) of_->letter_from(peer).taken.fetch_add(1);
}

void StandInStep::finish() const {
  for (const StandInCall& call : calls_)
    if (call.adds()) std::memcpy(call.to, total_.data(), total_.size());
}

}  // namespace lockstep::comm::nccl
