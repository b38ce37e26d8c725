#include "engine/device/cuda/recording_calls.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/protection.hpp"

namespace lockstep::device::cuda {

namespace {
// Words are also written by the host, which no call tells of.
constexpr std::chrono::milliseconds look_again{1};
constexpr int patience_of_polls = 16;

// What a handle says of an allocation.
struct Exported {
  pid_t process;
  int file;
  std::size_t bytes;
};

void* map(int file, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

double milliseconds_now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
}  // namespace

RecordingCalls::RecordingCalls(int num_devices, std::size_t bytes_per_device, Use use)
    : num_devices_(num_devices), bytes_per_device_(bytes_per_device), of_program_(use == Use::program) {}

RecordingCalls::~RecordingCalls() {
  for (const auto& [memory, bytes] : opened_) ::munmap(memory, bytes);
  for (const auto& [memory, each] : allocations_) {
    ::munmap(memory, each.bytes);
    ::close(each.file);
  }
}

// ---- for tests

void RecordingCalls::hold(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  stream_of(stream).held = true;
}

void RecordingCalls::resume(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  stream_of(stream).held = false;
  progress();
}

void RecordingCalls::be_lazy() {
  const std::lock_guard lock(mutex_);
  lazy_ = true;
}

void RecordingCalls::hold_all(bool on) {
  const std::lock_guard lock(mutex_);
  holds_new_ = on;
  for (const auto& [handle, stream] : streams_) stream->held = on;
  progress();
}

void RecordingCalls::launch(StreamHandle stream, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  enter("launch", str("s", stream_of(stream).number));
  enqueue(stream, {nullptr, std::move(work)});
}

void RecordingCalls::launch_when(StreamHandle stream, std::function<bool()> ready, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  enter("launch", str("s", stream_of(stream).number));
  enqueue(stream, {std::move(ready), std::move(work)});
}

void RecordingCalls::fail(const std::string& call, int nth) {
  const std::lock_guard lock(mutex_);
  failing_[call] = nth;
}

std::vector<std::string> RecordingCalls::log() const {
  const std::lock_guard lock(mutex_);
  return log_;
}

int RecordingCalls::count(const std::string& call) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(call);
  return found == counts_.end() ? 0 : found->second;
}

std::map<std::string, int> RecordingCalls::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

int RecordingCalls::num_live_events() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(events_.size());
}

int RecordingCalls::num_live_allocations() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(allocations_.size());
}

int RecordingCalls::num_pinned() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(pinned_.size());
}

// ---- the model

void RecordingCalls::enter(const std::string& call, const std::string& operands) {
  if (!of_program_) log_.push_back(operands.empty() ? call : str(call, " ", operands));
  ++counts_[call];
  if (const auto failing = failing_.find(call); failing != failing_.end() && --failing->second == 0) {
    failing_.erase(failing);
    throw ResourceError(str(call, ": refused on purpose"), "a test asked for it");
  }
}

RecordingCalls::ModelStream& RecordingCalls::stream_of(StreamHandle stream) {
  const auto found = streams_.find(stream);
  LOCKSTEP_CHECK(found != streams_.end(), "a call with a stream that does not exist");
  return *found->second;
}

RecordingCalls::ModelEvent& RecordingCalls::event_of(EventHandle event) {
  const auto found = events_.find(event);
  LOCKSTEP_CHECK(found != events_.end(), "a call with an event that does not exist");
  return *found->second;
}

void RecordingCalls::enqueue(StreamHandle stream, Work work) {
  stream_of(stream).work.push_back(std::move(work));
  num_polls_ = 0;
  if (!lazy_) progress();
}

bool RecordingCalls::run_front(ModelStream& stream) {
  if (stream.held || stream.work.empty() || (stream.work.front().ready && !stream.work.front().ready())) return false;
  const Work next = std::move(stream.work.front());
  stream.work.pop_front();
  if (!next.run) return true;
  const OpenMemory of_device;
  next.run();
  return true;
}

void RecordingCalls::progress() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [handle, stream] : streams_)
      while (run_front(*stream)) moved = true;
  }
  changed_.notify_all();
}

void RecordingCalls::progress_for(ModelStream& awaited, const std::function<bool()>& holds) {
  while (!holds()) {
    if (run_front(awaited)) continue;
    bool moved = false;  // on a stream that it may wait for
    for (const auto& [handle, stream] : streams_) moved = moved || run_front(*stream);
    if (!moved) break;
  }
  changed_.notify_all();
}

void RecordingCalls::wait_until(std::unique_lock<std::mutex>& lock, ModelStream* stream,
                                const std::function<bool()>& holds) {
  for (;;) {
    if (lazy_ && stream != nullptr) {
      progress_for(*stream, holds);
    } else {
      progress();
    }
    if (holds()) return;
    changed_.wait_for(lock, look_again);
  }
}

// ---- devices

void RecordingCalls::require_driver() {
  if (!no_driver.empty()) throw UnsupportedError(no_driver, "use --device sim");
}

int RecordingCalls::driver_version() { return no_driver.empty() ? 13000 : 0; }

int RecordingCalls::num_devices() {
  require_driver();
  const std::lock_guard lock(mutex_);
  enter("num_devices", "");
  return num_devices_;
}

DeviceProperties RecordingCalls::properties_of(int device) {
  const std::lock_guard lock(mutex_);
  enter("properties_of", str(device));
  return {"stand-in of CUDA on the host", str("stand-in ", device), 9, 0, bytes_per_device_};
}

void RecordingCalls::use_device(int device) {
  const std::lock_guard lock(mutex_);
  enter("use_device", str(device));
  LOCKSTEP_CHECK(device >= 0 && device < num_devices_, "device ", device, " of ", num_devices_);
}

std::size_t RecordingCalls::free_bytes() {
  const std::lock_guard lock(mutex_);
  enter("free_bytes", "");
  std::size_t used = 0;
  for (const auto& [memory, each] : allocations_) used += each.bytes;
  return bytes_per_device_ - used;
}

// ---- streams and events

StreamHandle RecordingCalls::create_stream() {
  const std::lock_guard lock(mutex_);
  const int number = next_number_;
  enter("create_stream", str("s", number));
  ++next_number_;
  auto stream = std::make_unique<ModelStream>();
  stream->number = number;
  stream->held = holds_new_;
  void* const handle = stream.get();
  streams_.emplace(handle, std::move(stream));
  return handle;
}

void RecordingCalls::destroy_stream(StreamHandle stream) noexcept {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

void RecordingCalls::synchronize_stream(StreamHandle stream) {
  std::unique_lock lock(mutex_);
  enter("synchronize_stream", str("s", stream_of(stream).number));
  ModelStream& of = stream_of(stream);
  wait_until(lock, &of, [&] { return of.work.empty(); });
}

EventHandle RecordingCalls::create_event(bool timed) {
  const std::lock_guard lock(mutex_);
  const int number = next_number_;
  enter("create_event", str("e", number));
  ++next_number_;
  auto event = std::make_unique<ModelEvent>();
  event->number = number;
  event->timed = timed;
  void* const handle = event.get();
  events_.emplace(handle, std::move(event));
  return handle;
}

void RecordingCalls::destroy_event(EventHandle event) noexcept {
  const std::lock_guard lock(mutex_);
  events_.erase(event);
}

void RecordingCalls::record_event(EventHandle event, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  ModelEvent& of = event_of(event);
  enter("record_event", str("s", stream_of(stream).number, " e", of.number));
  const std::uint64_t record = ++of.recorded;
  of.stream = &stream_of(stream);
  enqueue(stream, {nullptr, [this, event, record] {
                     const auto found = events_.find(event);  // it may have been destroyed since
                     if (found == events_.end()) return;
                     found->second->reached = record;
                     found->second->time = milliseconds_now();
                   }});
}

bool RecordingCalls::event_done(EventHandle event) {
  const std::lock_guard lock(mutex_);
  const ModelEvent& of = event_of(event);
  enter("event_done", str("e", of.number));
  if (!lazy_ || ++num_polls_ > patience_of_polls) progress();
  return of.reached == of.recorded;
}

void RecordingCalls::synchronize_event(EventHandle event) {
  std::unique_lock lock(mutex_);
  const ModelEvent& of = event_of(event);
  enter("synchronize_event", str("e", of.number));
  const std::uint64_t record = of.recorded;
  wait_until(lock, of.stream, [&of, record] { return of.reached >= record; });
}

// The stream waits for the record that the event has now.
void RecordingCalls::wait_event(StreamHandle stream, EventHandle event) {
  const std::lock_guard lock(mutex_);
  const ModelEvent& of = event_of(event);
  enter("wait_event", str("s", stream_of(stream).number, " e", of.number));
  enqueue(stream, {[this, event, record = of.recorded] {
                     const auto found = events_.find(event);
                     return found == events_.end() || found->second->reached >= record;
                   },
                   nullptr});
}

float RecordingCalls::milliseconds_between(EventHandle begin, EventHandle end) {
  const std::lock_guard lock(mutex_);
  const ModelEvent &first = event_of(begin), &last = event_of(end);
  enter("milliseconds_between", str("e", first.number, " e", last.number));
  LOCKSTEP_CHECK(first.timed && last.timed, "the time of an event that takes none");
  LOCKSTEP_CHECK(
      first.recorded > 0 && first.reached == first.recorded && last.recorded > 0 && last.reached == last.recorded,
      "the time of an event that is not done");
  return static_cast<float>(last.time - first.time);
}

void RecordingCalls::wait_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) {
  const std::lock_guard lock(mutex_);
  enter("wait_word", str("s", stream_of(stream).number, " ", value));
  enqueue(stream, {[word, value] { return std::atomic_ref(*word).load() >= value; }, nullptr});
}

void RecordingCalls::write_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) {
  const std::lock_guard lock(mutex_);
  enter("write_word", str("s", stream_of(stream).number, " ", value));
  enqueue(stream, {nullptr, [word, value] { std::atomic_ref(*word).store(value); }});
}

// ---- memory

void* RecordingCalls::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  enter("allocate", str(bytes));
  // A file in memory, so that a handle works in another process. The pages are used where they are touched.
  const int file = ::memfd_create("stand-in of device memory", MFD_CLOEXEC);
  void* const memory = file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0 ? map(file, bytes) : nullptr;
  if (memory == nullptr) throw ResourceError(str("allocate of ", bytes, " bytes: no memory"), "ask for less");
  allocations_[memory] = {bytes, file};
  if (of_program_) protect({static_cast<std::byte*>(memory), bytes});
  return memory;
}

void RecordingCalls::release(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) return;
  forget_protected(static_cast<const std::byte*>(memory), found->second.bytes);
  ::munmap(memory, found->second.bytes);
  ::close(found->second.file);
  allocations_.erase(found);
}

void RecordingCalls::pin(void* pages, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  enter("pin", str(bytes));
  LOCKSTEP_CHECK(pinned_.emplace(pages, bytes).second, "pages that are pinned twice");
}

void RecordingCalls::unpin(void* pages) noexcept {
  const std::lock_guard lock(mutex_);
  pinned_.erase(pages);
}

bool RecordingCalls::is_pageable(const void* memory) const {
  const auto holds = [memory](const void* base, std::size_t bytes) {
    return memory >= base && memory < static_cast<const std::byte*>(base) + bytes;
  };
  return std::none_of(pinned_.begin(), pinned_.end(), [&](const auto& of) { return holds(of.first, of.second); }) &&
         std::none_of(opened_.begin(), opened_.end(), [&](const auto& of) { return holds(of.first, of.second); }) &&
         std::none_of(allocations_.begin(), allocations_.end(),
                      [&](const auto& of) { return holds(of.first, of.second.bytes); });
}

// As CUDA does: pageable memory is read before the call returns, and a copy to pageable memory has run then.
void RecordingCalls::copy(void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  std::unique_lock lock(mutex_);
  ModelStream& of = stream_of(stream);
  enter("copy", str("s", of.number, " ", bytes));
  if (is_pageable(from)) {
    const auto* const begin = static_cast<const std::byte*>(from);
    enqueue(stream, {nullptr, [to, staged = std::vector<std::byte>(begin, begin + bytes)] {
                       std::memcpy(to, staged.data(), staged.size());
                     }});
  } else {
    enqueue(stream, {nullptr, [=] { std::memmove(to, from, bytes); }});
  }
  if (is_pageable(to)) wait_until(lock, &of, [&of] { return of.work.empty(); });
}

void RecordingCalls::set_bytes(void* to, int byte, std::size_t bytes, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  enter("set_bytes", str("s", stream_of(stream).number, " ", bytes));
  enqueue(stream, {nullptr, [=] { std::memset(to, byte, bytes); }});
}

MemoryHandle RecordingCalls::handle_of(void* allocation) {
  const std::lock_guard lock(mutex_);
  enter("handle_of", "");
  LOCKSTEP_CHECK(allocations_.contains(allocation), "the handle of memory that is no allocation");
  const Allocation& found = allocations_.at(allocation);
  const Exported exported{::getpid(), found.file, found.bytes};
  MemoryHandle handle{};
  std::memcpy(handle.bytes, &exported, sizeof exported);
  return handle;
}

void* RecordingCalls::open_handle(const MemoryHandle& handle) {
  const std::lock_guard lock(mutex_);
  enter("open_handle", "");
  Exported exported{};
  std::memcpy(&exported, handle.bytes, sizeof exported);
  const int file = ::open(str("/proc/", exported.process, "/fd/", exported.file).c_str(), O_RDWR | O_CLOEXEC);
  void* const memory = file >= 0 ? map(file, exported.bytes) : nullptr;
  if (file >= 0) ::close(file);
  if (memory == nullptr) throw ResourceError("open_handle: no such memory", "keep its process alive");
  opened_[memory] = exported.bytes;
  if (of_program_) protect({static_cast<std::byte*>(memory), exported.bytes});
  return memory;
}

void RecordingCalls::close_handle(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  if (!of_program_) log_.emplace_back("close_handle");
  ++counts_["close_handle"];
  const auto found = opened_.find(memory);
  if (found == opened_.end()) return;
  forget_protected(static_cast<const std::byte*>(memory), found->second);
  ::munmap(memory, found->second);
  opened_.erase(found);
}

}  // namespace lockstep::device::cuda
