#include "harness/run/trace/plan_board.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <thread>

#include <sys/mman.h>

#include "engine/core/resources.hpp"

namespace lockstep::run {

namespace {

constexpr std::size_t board_bytes = std::size_t{4} << 20;  // only used pages cost memory
constexpr double most_seconds_to_wait = 2.0;

enum class BoardState : std::uint32_t { empty, claimed, posted, given_up };

// Texts are numbered; the other members are numbers.
struct Entry {
  std::uint32_t family, operation, axis, phase, owner;
  std::int32_t group_size, line, turn;
  std::uint32_t bytes_are_least, unused;
  std::int64_t bytes;
};

class Writer {
 public:
  void add(const plan::Collective& one) {
    entries_.push_back({number_of(one.family), number_of(one.operation), number_of(one.axis), number_of(one.phase),
                        number_of(one.owner), one.group_size, one.line, one.turn, one.bytes_are_least ? 1U : 0U, 0,
                        one.bytes});
  }

  // Number of texts and of entries, the texts with their lengths, the entries.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    const auto append = [&out](const void* from, std::size_t size) {
      const auto* const first = static_cast<const std::byte*>(from);
      out.insert(out.end(), first, first + size);
    };
    const std::uint64_t counts[2] = {texts_.size(), entries_.size()};
    append(counts, sizeof counts);
    for (const std::string& text : texts_) {
      const std::uint64_t length = text.size();
      append(&length, sizeof length);
      append(text.data(), text.size());
    }
    append(entries_.data(), entries_.size() * sizeof(Entry));
    return out;
  }

 private:
  std::uint32_t number_of(const std::string& text) {
    const auto [at, added] = numbers_.emplace(text, static_cast<std::uint32_t>(texts_.size()));
    if (added) texts_.push_back(text);
    return at->second;
  }
  std::map<std::string, std::uint32_t> numbers_;
  std::vector<std::string> texts_;
  std::vector<Entry> entries_;
};

// Takes the next bytes, or nothing beyond the end.
class Cursor {
 public:
  Cursor(const std::byte* bytes, std::size_t size) : at_(bytes), left_(size) {}
  const std::byte* take(std::size_t size) {
    if (size > left_) return nullptr;
    left_ -= size;
    return std::exchange(at_, at_ + size);
  }
  bool copy(void* to, std::size_t size) {
    const std::byte* from = take(size);
    if (from != nullptr) std::memcpy(to, from, size);
    return from != nullptr;
  }
  std::size_t left() const { return left_; }

 private:
  const std::byte* at_;
  std::size_t left_;
};

}  // namespace

std::vector<std::byte> bytes_of_plan(const std::vector<plan::Collective>& planned) {
  Writer writer;
  for (const plan::Collective& one : planned) writer.add(one);
  return writer.bytes();
}

std::optional<std::vector<plan::Collective>> plan_from_bytes(const std::byte* bytes, std::size_t size) {
  Cursor cursor(bytes, size);
  std::uint64_t counts[2];
  if (!cursor.copy(counts, sizeof counts)) return std::nullopt;
  std::vector<std::string> texts;
  for (std::uint64_t i = 0; i < counts[0]; ++i) {
    std::uint64_t length = 0;
    if (!cursor.copy(&length, sizeof length)) return std::nullopt;
    const std::byte* text = cursor.take(length);
    if (text == nullptr) return std::nullopt;
    texts.emplace_back(reinterpret_cast<const char*>(text), length);
  }
  if (cursor.left() % sizeof(Entry) != 0 || cursor.left() / sizeof(Entry) != counts[1]) return std::nullopt;
  std::vector<plan::Collective> planned;
  planned.reserve(counts[1]);
  for (Entry entry; cursor.copy(&entry, sizeof entry);) {
    for (const std::uint32_t number : {entry.family, entry.operation, entry.axis, entry.phase, entry.owner})
      if (number >= texts.size()) return std::nullopt;
    planned.push_back({texts[entry.family], texts[entry.operation], texts[entry.axis], entry.group_size,
                       texts[entry.phase], texts[entry.owner], entry.line, entry.bytes, entry.bytes_are_least != 0,
                       entry.turn});
  }
  return planned;
}

struct PlanBoard::Head {
  std::atomic<BoardState> state;
  std::uint64_t digest;
  std::uint64_t size;
  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
  static constexpr std::size_t capacity = board_bytes - 64;
};

PlanBoard::PlanBoard() {
  static_assert(sizeof(Head) <= 64);
  void* memory =
      ::mmap(nullptr, board_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw resource_error("mapping the memory of a plan", errno);
  head_ = new (memory) Head{};
}

PlanBoard::~PlanBoard() { ::munmap(head_, board_bytes); }

bool PlanBoard::claim() {
  BoardState expected = BoardState::empty;
  return head_->state.compare_exchange_strong(expected, BoardState::claimed);
}

void PlanBoard::post(std::uint64_t digest, const std::vector<plan::Collective>& planned) {
  const std::vector<std::byte> bytes = bytes_of_plan(planned);
  if (bytes.size() > Head::capacity) return give_up();
  std::memcpy(head_->data(), bytes.data(), bytes.size());
  head_->digest = digest;
  head_->size = bytes.size();
  head_->state.store(BoardState::posted, std::memory_order_release);
}

void PlanBoard::give_up() { head_->state.store(BoardState::given_up, std::memory_order_release); }

std::optional<std::vector<plan::Collective>> PlanBoard::read(std::uint64_t digest, double most_seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(most_seconds);
  while (head_->state.load(std::memory_order_acquire) == BoardState::claimed) {
    if (std::chrono::steady_clock::now() > until) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  if (head_->state.load(std::memory_order_acquire) != BoardState::posted || head_->digest != digest ||
      head_->size > Head::capacity)
    return std::nullopt;
  return plan_from_bytes(head_->data(), head_->size);
}

TakenPlan take_plan(PlanBoard* board, std::uint64_t digest, const std::function<PlanOutcome()>& make) {
  if (board == nullptr) return {make(), true};
  if (!board->claim()) {
    if (auto planned = board->read(digest, most_seconds_to_wait)) {
      PlanOutcome outcome;
      outcome.planned = std::move(*planned);
      return {std::move(outcome), false};
    }
    return {make(), true};
  }
  try {
    PlanOutcome outcome = make();
    if (outcome.unforeseen.empty() && outcome.left_out.empty())
      board->post(digest, outcome.planned);
    else
      board->give_up();
    return {std::move(outcome), true};
  } catch (...) {
    board->give_up();
    throw;
  }
}

}  // namespace lockstep::run
