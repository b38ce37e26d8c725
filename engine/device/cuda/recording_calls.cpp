#include "engine/device/cuda/recording_calls.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include <sys/mman.h>
#include <unistd.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"
#include "engine/device/protection.hpp"

namespace lockstep::device::cuda {

namespace {
// Words are also written by the host, which no call tells of, and by other processes.
constexpr std::chrono::milliseconds look_again{1};
constexpr int patience_of_polls = 4;

// The current device of a thread, in the model that it used last.
struct Current {
  std::uint64_t model = 0;
  int device = 0;
};
thread_local Current current;
std::atomic<std::uint64_t> num_models{0};

double milliseconds_now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
}  // namespace

RecordingCalls::RecordingCalls(int num_devices, std::size_t bytes_per_device, Use use)
    : id_(++num_models),
      num_devices_(num_devices),
      bytes_per_device_(bytes_per_device),
      of_program_(use == Use::program) {}

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
  require_device("launch", stream_of(stream).device);
  enqueue(stream, {nullptr, std::move(work), nullptr});
}

void RecordingCalls::launch_when(StreamHandle stream, std::function<bool()> ready, std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  enter("launch", str("s", stream_of(stream).number));
  require_device("launch", stream_of(stream).device);
  enqueue(stream, {std::move(ready), std::move(work), nullptr});
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
  // As CUDA does, which starts at its first call.
  if (started_in_ == 0) started_in_ = ::getpid();
  if (started_in_ != ::getpid())
    throw ResourceError(str(call, ": initialization error: CUDA had started in the process that was forked"),
                        "fork before the first call");
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

void RecordingCalls::require_device(const std::string& call, int device) const {
  if (device_of_thread() != device)
    throw ResourceError(str(call, ": invalid resource handle: it belongs to device ", device,
                            ", and the thread uses device ", device_of_thread()),
                        "let the thread use the device of its streams");
}

void RecordingCalls::enqueue(StreamHandle stream, Work work) {
  stream_of(stream).work.push_back(std::move(work));
  stream_of(stream).num_polls = 0;
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

bool RecordingCalls::advance(StreamHandle stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end() || found->second->held || found->second->work.empty()) return false;
  if (run_front(*found->second)) return true;
  void* const behind = found->second->work.front().behind;
  return behind != nullptr && advance(behind);
}

void RecordingCalls::progress_for(StreamHandle awaited, const std::function<bool()>& holds) {
  while (!holds() && advance(awaited)) {
  }
  changed_.notify_all();
}

void RecordingCalls::wait_until(std::unique_lock<std::mutex>& lock, StreamHandle awaited,
                                const std::function<bool()>& holds) {
  for (;;) {
    if (lazy_) {
      progress_for(awaited, holds);
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
  current = {id_, device};
}

std::size_t RecordingCalls::free_bytes() {
  const std::lock_guard lock(mutex_);
  enter("free_bytes", "");
  std::size_t used = 0;
  for (const auto& [memory, each] : allocations_)
    if (each.device == device_of_thread()) used += each.bytes;
  return bytes_per_device_ - used;
}

int RecordingCalls::device_of_thread() const { return current.model == id_ ? current.device : 0; }

int RecordingCalls::device_of(StreamHandle stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  LOCKSTEP_CHECK(found != streams_.end(), "a stream that does not exist");
  return found->second->device;
}

// ---- streams and events

StreamHandle RecordingCalls::create_stream() {
  const std::lock_guard lock(mutex_);
  const int number = next_number_;
  enter("create_stream", str("s", number));
  ++next_number_;
  auto stream = std::make_unique<ModelStream>();
  stream->number = number;
  stream->device = device_of_thread();
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
  wait_until(lock, stream, [&] { return of.work.empty(); });
}

EventHandle RecordingCalls::create_event(bool timed) {
  const std::lock_guard lock(mutex_);
  const int number = next_number_;
  enter("create_event", str("e", number));
  ++next_number_;
  auto event = std::make_unique<ModelEvent>();
  event->number = number;
  event->device = device_of_thread();
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
  require_device("record_event", stream_of(stream).device);
  require_device("record_event", of.device);
  const std::uint64_t record = ++of.recorded;
  of.stream = stream;
  enqueue(stream, {nullptr,
                   [this, event, record] {
                     const auto found = events_.find(event);  // it may have been destroyed since
                     if (found == events_.end()) return;
                     found->second->reached = record;
                     found->second->time = milliseconds_now();
                   },
                   nullptr});
}

bool RecordingCalls::event_done(EventHandle event) {
  const std::lock_guard lock(mutex_);
  const ModelEvent& of = event_of(event);
  enter("event_done", str("e", of.number));
  const auto is_done = [&of] { return of.reached == of.recorded; };
  if (!lazy_) {
    progress();
  } else if (const auto stream = streams_.find(of.stream); stream != streams_.end() && !is_done()) {
    if (++stream->second->num_polls > patience_of_polls) progress_for(of.stream, is_done);
  }
  return is_done();
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
                   nullptr, of.stream});
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
  enqueue(stream, {[word, value] { return std::atomic_ref(*word).load() >= value; }, nullptr, nullptr});
}

void RecordingCalls::write_word(StreamHandle stream, std::uint64_t* word, std::uint64_t value) {
  const std::lock_guard lock(mutex_);
  enter("write_word", str("s", stream_of(stream).number, " ", value));
  enqueue(stream, {nullptr, [word, value] { std::atomic_ref(*word).store(value); }, nullptr});
}

}  // namespace lockstep::device::cuda
