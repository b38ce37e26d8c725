#include "harness/run/trace/plan_bytes.hpp"

#include <cstring>
#include <map>
#include <utility>

#include "engine/core/checked.hpp"

namespace lockstep::run {

namespace {

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
  std::string bytes() const {
    std::string out;
    const auto append = [&out](const void* from, std::size_t size) {
      out.append(static_cast<const char*>(from), size);
    };
    const std::uint64_t counts[2] = {texts_.size(), entries_.size()};
    append(counts, sizeof counts);
    for (const std::string& text : texts_) {
      const std::uint64_t length = text.size();
      append(&length, sizeof length);
      append(text.data(), text.size());
    }
    append(entries_.data(), bounded_product(entries_.size(), sizeof(Entry)));
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
  explicit Cursor(std::string_view bytes) : at_(bytes.data()), left_(bytes.size()) {}
  const char* take(std::size_t size) {
    if (size > left_) return nullptr;
    left_ -= size;
    return std::exchange(at_, at_ + size);
  }
  bool copy(void* to, std::size_t size) {
    const char* from = take(size);
    if (from != nullptr) std::memcpy(to, from, size);
    return from != nullptr;
  }
  std::size_t left() const { return left_; }

 private:
  const char* at_;
  std::size_t left_;
};

}  // namespace

std::string bytes_of_plan(const std::vector<plan::Collective>& planned) {
  Writer writer;
  for (const plan::Collective& one : planned) writer.add(one);
  return writer.bytes();
}

bool visit_plan(std::string_view bytes, const std::function<bool(const CollectiveView&)>& visit) {
  Cursor cursor(bytes);
  std::uint64_t counts[2];
  if (!cursor.copy(counts, sizeof counts)) return false;
  std::vector<std::string_view> texts;
  for (std::uint64_t i = 0; i < counts[0]; ++i) {
    std::uint64_t length = 0;
    if (!cursor.copy(&length, sizeof length)) return false;
    const char* text = cursor.take(length);
    if (text == nullptr) return false;
    texts.emplace_back(text, length);
  }
  if (cursor.left() % sizeof(Entry) != 0 || cursor.left() / sizeof(Entry) != counts[1]) return false;
  for (Entry entry; cursor.copy(&entry, sizeof entry);) {
    for (const std::uint32_t number : {entry.family, entry.operation, entry.axis, entry.phase, entry.owner})
      if (number >= texts.size()) return false;
    if (!visit({texts[entry.family], texts[entry.operation], texts[entry.axis], texts[entry.phase], texts[entry.owner],
                entry.group_size, entry.line, entry.turn, entry.bytes, entry.bytes_are_least != 0}))
      return false;
  }
  return true;
}

std::optional<std::vector<plan::Collective>> plan_from_bytes(std::string_view bytes) {
  std::vector<plan::Collective> planned;
  const bool is_whole = visit_plan(bytes, [&planned](const CollectiveView& one) {
    planned.push_back({std::string(one.family), std::string(one.operation), std::string(one.axis), one.group_size,
                       std::string(one.phase), std::string(one.owner), one.line, one.bytes, one.bytes_are_least,
                       one.turn});
    return true;
  });
  if (!is_whole) return std::nullopt;
  return planned;
}

}  // namespace lockstep::run
