#include <chrono>
#include <thread>
#include <utility>

#include "engine/core/error.hpp"
#include "engine/core/schedule.hpp"
#include "engine/device/poison_guard.hpp"
#include "engine/device/runtime.hpp"
#include "engine/device/tracer.hpp"

namespace lockstep::device {

namespace {

[[noreturn]] void fail_range(const Stream& stream, const char* name, const Access& access) {
  throw Error(str("launch `", name, "` on ", stream.name(), ": ", text_of(access), " are outside the block of ",
                  access.memory->bytes(), " bytes"),
              "give a range inside the block");
}

[[noreturn]] void fail_device(const Stream& stream, const char* name, const Access& access) {
  throw Error(str("`", name, "` on ", stream.name(), ": an operand (", text_of(access), ") is on ",
                  to_text(access.memory->device()), ", the stream on ", to_text(stream.device())),
              is_host(access.memory->device()) || is_host(stream.device())
                  ? str("move it to ", to_text(stream.device()), " first")
                  : str("move it to ", to_text(host_device), " first"));
}

[[noreturn]] void fail_no_values(const Stream& stream, const Access& access) {
  throw Error(str("copy on ", stream.name(), ": the source (", text_of(access), ") is on ",
                  to_text(access.memory->device()), ", which has sizes and no values"),
              "make the source on a device that computes, such as cpu or sim");
}

// Runs `issue`, which gives the launch to the queue. A queue that has failed refuses it, and then it never accesses
// memory. On an inline stream `issue` runs the launch itself.
template <class F>
auto give_to_queue(Stream& stream, std::span<const Access> accesses, const F& issue) {
  try {
    return issue();
  } catch (...) {
    if (!stream.runs_inline()) LaunchDetail::forget(stream, accesses);
    throw;
  }
}

}  // namespace

Pointers LaunchDetail::prepare(Stream& stream, const char* name, std::span<const Access> accesses, Kind kind) {
  // Throws an earlier failure before the order check counts the accesses.
  if (kind == Kind::in_halves)
    stream.queue_->flush_before(accesses);
  else
    flush(stream);
  Pointers pointers(stream.execution_);
  StreamState& state = *stream.state_;
  OrderCheck& order = state.runtime->order();
  const bool check = order.on();
  if (check) order.begin_launch(state.clock);
  for (const Access& access : accesses) {
    if (access.bytes == 0) {
      pointers.push_back(nullptr);
      continue;
    }
    Memory& memory = *access.memory;
    if (access.offset > memory.bytes() || access.bytes > memory.bytes() - access.offset) [[unlikely]] {
      fail_range(stream, name, access);
    }
    if (memory.device() != stream.device_ && !(kind == Kind::copy && is_host(memory.device()))) [[unlikely]] {
      fail_device(stream, name, access);
    }
    if (check) order.access(state.clock, name, PointerAccess::shadow(memory), access);
    std::byte* const data = PointerAccess::data(memory);
    pointers.push_back(data == nullptr ? nullptr : data + access.offset);
  }
  return pointers;
}

void LaunchDetail::flush(Stream& stream) {
  if (stream.queue_->has_deferred()) [[unlikely]]
    stream.queue_->flush();
}

void LaunchDetail::forget(Stream& stream, std::span<const Access> accesses) {
  const StreamState& state = *stream.state_;
  if (!state.runtime->order().on()) return;
  for (const Access& access : accesses)
    if (access.bytes > 0) OrderCheck::forget(state.clock, PointerAccess::shadow(*access.memory));
}

bool LaunchDetail::run_if_idle(Stream& stream, std::span<const Access> accesses, const Pointers& pointers,
                               void (*call)(const void*, const Pointers&), const void* body) {
  Queue& queue = *stream.queue_;
  return give_to_queue(stream, accesses, [&] { return queue.run_if_idle(call, body, pointers); });
}

void LaunchDetail::enqueue(Stream& stream, const char* name, std::span<const Access> accesses, Pointers pointers,
                           Body body, bool may_block) {
  StreamState& state = *stream.state_;
  if (state.runtime->poison()) {
    auto guard = std::make_shared<PoisonGuard>(state.runtime->backend_of(stream.device()), stream, name, accesses);
    body = [guard, inner = std::move(body), is_beside = !stream.runs_inline()](const Pointers& p) {
      guard->before(p);
      guard->guard(inner, p);
      if (is_beside) schedule::point();  // launches of other streams may run meanwhile
      guard->after(p);
    };
  }
  if (Tracer* tracer = state.runtime->tracer(); tracer != nullptr) {
    if (TraceRecord* record = tracer->add(stream, name, false, state.clock.known))
      body = [record, queue = stream.queue_, inner = std::move(body)](const Pointers& p) {
        record->begin(*queue);
        inner(p);
        record->end(*queue);
      };
  }
  Queue& queue = *stream.queue_;
  give_to_queue(stream, accesses, [&] { queue.issue(std::move(body), std::move(pointers), may_block); });
}

void launch_deferred(Stream& stream, const char* name, std::span<const Access> accesses, Body start, Body finish) {
  Pointers pointers = LaunchDetail::prepare(stream, name, accesses, LaunchDetail::Kind::in_halves);
  LaunchDetail::defer(stream, name, accesses, std::move(pointers), std::move(start), std::move(finish));
}

void LaunchDetail::defer(Stream& stream, const char* name, std::span<const Access> accesses, Pointers pointers,
                         Body start, Body finish) {
  StreamState& state = *stream.state_;
  if (state.runtime->poison()) {
    auto guard = std::make_shared<PoisonGuard>(state.runtime->backend_of(stream.device()), stream, name, accesses);
    start = [guard, inner = std::move(start)](const Pointers& p) {
      guard->before(p);
      guard->guard(inner, p);
    };
    finish = [guard, inner = std::move(finish)](const Pointers& p) {
      guard->guard(inner, p);
      guard->after(p);
    };
  }
  if (Tracer* tracer = state.runtime->tracer(); tracer != nullptr) {
    if (TraceRecord* record = tracer->add(stream, name, true, state.clock.known)) {
      start = [record, queue = stream.queue_, inner = std::move(start)](const Pointers& p) {
        record->begin(*queue);
        inner(p);
      };
      finish = [record, queue = stream.queue_, inner = std::move(finish),
                pauses = stream.runs_inline()](const Pointers& p) {
        if (pauses) record->resume();
        inner(p);
        record->end(*queue);
      };
    }
  }
  Queue& queue = *stream.queue_;
  give_to_queue(stream, accesses,
                [&] { queue.issue_in_halves(start, std::move(finish), std::move(pointers), accesses); });
}

void copy_bytes(Stream& stream, const Access& to, const Access& from) {
  if (to.bytes != from.bytes) {
    throw Error(str("copy on ", stream.name(), ": ", from.bytes, " bytes into ", to.bytes, " bytes"),
                "give two ranges of the same size");
  }
  if (to.bytes == 0) return;
  if (computes(to.memory->device()) && !computes(from.memory->device())) fail_no_values(stream, from);
  const Access accesses[] = {{to.memory, to.offset, to.bytes, Mode::write},
                             {from.memory, from.offset, from.bytes, Mode::read}};
  const auto on_host = [](const Access& access) { return is_host(access.memory->device()); };
  const bool crosses = !is_host(stream.device()) && (on_host(to) || on_host(from));
  // The copy runs after the launches that the host's current stream has so far.
  if (crosses) stream.wait(current_stream(host_device).record());
  Pointers pointers = LaunchDetail::prepare(stream, "copy", accesses, LaunchDetail::Kind::copy);
  LaunchDetail::run_or_enqueue(stream, "copy", accesses, std::move(pointers),
                               [&backend = Runtime::current().backend_of(stream.device()), bytes = to.bytes](
                                   const Pointers& p) { backend.copy(p.execution(), p.at(0), p.at(1), bytes); });
  if (!crosses || capabilities_of(stream.device()).copies_pageable_async) return;
  const auto is_pageable = [&](const Access& access) {
    return on_host(access) && !access.memory->pinned_for(stream.device().kind);
  };
  if (is_pageable(to) || is_pageable(from)) stream.synchronize();
}

void launch_read(Stream& stream, const char* name, const Access& range, std::function<void(const std::byte*)> use) {
  const bool in_place = capabilities_of(stream.device()).runs_on_host;
  launch(stream, name, {range},
         [in_place, bytes = range.bytes, &backend = Runtime::current().backend_of(stream.device()),
          use = std::move(use)](const Pointers& p) {
           if (in_place) return use(p.at(0));
           const std::unique_ptr<std::byte[]> copy(new std::byte[bytes]);
           backend.read(p.execution(), copy.get(), p.at(0), bytes);
           use(copy.get());
         });
}

void read_to_host(void* to, Memory& from, std::size_t offset, std::size_t bytes) {
  if (bytes == 0) return;
  Stream& stream = current_stream(from.device());
  const Access accesses[] = {{&from, offset, bytes, Mode::read}};
  const Pointers pointers = LaunchDetail::prepare(stream, "read_to_host", accesses, LaunchDetail::Kind::kernel);
  stream.synchronize();
  Runtime::current().backend_of(from.device()).read(stream.execution(), to, pointers.at(0), bytes);
}

void write_from_host(Memory& to, std::size_t offset, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  Stream& stream = current_stream(to.device());
  const Access accesses[] = {{&to, offset, bytes, Mode::write}};
  const Pointers pointers = LaunchDetail::prepare(stream, "write_from_host", accesses, LaunchDetail::Kind::kernel);
  stream.synchronize();
  Runtime::current().backend_of(to.device()).write(stream.execution(), pointers.at(0), from, bytes);
}

void delay(Stream& stream, double milliseconds) {
  constexpr double max_milliseconds = 3.6e6;
  if (!(milliseconds >= 0 && milliseconds <= max_milliseconds))
    throw Error(str("delay: ", milliseconds, " milliseconds"), str("give 0 to ", max_milliseconds, " (one hour)"));
  LaunchDetail::enqueue(
      stream, "delay", {}, LaunchDetail::prepare(stream, "delay", {}, LaunchDetail::Kind::kernel),
      [milliseconds](const Pointers&) {
        if (schedule::self() != nullptr) return;  // the schedule decides how late the stream is
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
      },
      true);
}

}  // namespace lockstep::device
