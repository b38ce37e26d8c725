// What a collective does with its elements, for memory that one member can read and write on behalf of all (internal to
// engine/comm). `Memory` says where the members' buffers are, and copies and reduces:
//
//   const std::byte* input(int member) const;        // null: the member has none
//   std::byte* output(int member) const;
//   std::size_t copy(to, from, bytes) const;          // these return the bytes stored (reduce.hpp)
//   std::size_t copy_to_all(to, from, bytes, bool may_bypass) const;    // a null destination is skipped
//   std::size_t reduce(const Reduction&, begin, count) const;
//
// `may_bypass`, and Reduction::nontemporal likewise: the destination is not used soon, so that a large copy may bypass
// the caches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/comm/control.hpp"
#include "engine/comm/reduce.hpp"
#include "engine/core/checked.hpp"

namespace lockstep::comm {

// The members' buffers as arrays. Outputs are shifted by `output_offset` bytes; null if a member has none.
struct Buffers {
  template <class Memory>
  Buffers(const Memory& memory, int size, std::size_t output_offset = 0) {
    const auto count = static_cast<std::size_t>(size);
    if (count > few) {
      many_inputs.resize(count);
      many_outputs.resize(count);
      inputs = many_inputs.data();
      outputs = many_outputs.data();
    }
    for (std::size_t i = 0; i < count; ++i) {
      std::byte* const output = memory.output(static_cast<int>(i));
      inputs[i] = memory.input(static_cast<int>(i));
      outputs[i] = output == nullptr ? nullptr : output + output_offset;
    }
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  static constexpr std::size_t few = 16;
  const std::byte* few_inputs[few];
  std::byte* few_outputs[few];
  std::vector<const std::byte*> many_inputs;
  std::vector<std::byte*> many_outputs;
  const std::byte** inputs = few_inputs;
  std::byte** outputs = few_outputs;
};

// Computes ranges of a collective's elements. A member's moved_bytes grows by the bytes of its input or output that
// the memory reports as stored.
template <class Memory>
class Mover {
 public:
  // `entries` are those of the slot.
  Mover(MemberEntry* entries, int size, const Memory& memory)
      : entries_(entries),
        memory_(memory),
        size_(size),
        num_members_(static_cast<std::size_t>(size)),
        kind_(static_cast<Operation>(entries[0].fingerprint.kind)),
        dtype_(static_cast<DType>(entries[0].fingerprint.dtype)),
        op_(static_cast<ReduceOp>(entries[0].fingerprint.op)),
        root_(entries[0].fingerprint.root),
        shard_(entries[0].fingerprint.count),
        element_(size_of(dtype_)) {}

  // Elements [begin, end) of the collective's range.
  void run(std::int64_t begin, std::int64_t end) {
    switch (kind_) {
      case Operation::all_reduce:
        return all_reduce(begin, end);
      case Operation::broadcast:
      case Operation::send:
      case Operation::receive:
        return broadcast(begin, end);
      case Operation::barrier:
        return;
      default:
        return run_shards(begin, end);
    }
  }

 private:
  // A range of elements within one shard.
  struct Piece {
    std::int64_t index;          // of the shard, in the collective's range
    int member;                  // index % size
    std::int64_t begin, within;  // the first element, in the collective's range and in the shard
    std::int64_t n;
  };

  std::size_t bytes(std::int64_t elements) const { return bounded_bytes(elements, element_); }
  int divisor() const { return op_ == ReduceOp::mean ? size_ : 1; }

  void account(int member, std::size_t stored) {
    entries_[member].moved_bytes.fetch_add(static_cast<std::int64_t>(stored), std::memory_order_relaxed);
  }
  void account_all(std::size_t stored) {
    for (int member = 0; member < size_; ++member) account(member, stored);
  }
  void account_root_and(int member, std::size_t stored) {
    account(root_, stored);
    if (member != root_) account(member, stored);
  }

  void all_reduce(std::int64_t begin, std::int64_t end) {
    const Buffers buffers(memory_, size_);
    account_all(
        memory_.reduce({dtype_, op_, {buffers.inputs, num_members_}, {buffers.outputs, num_members_}, divisor(), false},
                       begin, end - begin));
  }

  // Through the caches, because the members usually have just used the destination.
  void broadcast(std::int64_t begin, std::int64_t end) {
    const Buffers buffers(memory_, size_, bytes(begin));
    account_all(memory_.copy_to_all({buffers.outputs, num_members_}, memory_.input(root_) + bytes(begin),
                                    bytes(end - begin), false));
  }

  // The operations whose range is a sequence of shards.
  void run_shards(std::int64_t begin, std::int64_t end) {
    const Buffers buffers(memory_, kind_ == Operation::reduce_scatter ? size_ : 0);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t index = at / shard_;
      const std::int64_t stop = std::min(end, (index + 1) * shard_);
      run_piece(buffers, {index, static_cast<int>(index % size_), at, at - index * shard_, stop - at});
      at = stop;
    }
  }

  void run_piece(const Buffers& buffers, const Piece& piece) {
    const auto copy_from = [&](std::byte* to, const std::byte* from) { return memory_.copy(to, from, bytes(piece.n)); };
    const int member = piece.member;
    switch (kind_) {
      case Operation::all_gather: {
        const Buffers destinations(memory_, size_, bytes(piece.begin));
        return account_all(memory_.copy_to_all({destinations.outputs, num_members_},
                                               memory_.input(member) + bytes(piece.within), bytes(piece.n), true));
      }
      case Operation::reduce_scatter: {
        // The output holds one shard. It is shifted back, so that inputs and output count elements from the same start.
        std::byte* output = memory_.output(member) - bytes(piece.index * shard_);
        return account_all(memory_.reduce({dtype_, op_, {buffers.inputs, num_members_}, {&output, 1}, divisor(), true},
                                          piece.begin, piece.n));
      }
      case Operation::all_to_all: {
        const auto to = static_cast<int>(piece.index / size_);
        return account(to, copy_from(memory_.output(to) + bytes(member * shard_ + piece.within),
                                     memory_.input(member) + bytes(to * shard_ + piece.within)));
      }
      case Operation::gather:
        return account_root_and(
            member, copy_from(memory_.output(root_) + bytes(piece.begin), memory_.input(member) + bytes(piece.within)));
      case Operation::scatter:
        return account_root_and(
            member, copy_from(memory_.output(member) + bytes(piece.within), memory_.input(root_) + bytes(piece.begin)));
      default:
        return;
    }
  }

  MemberEntry* entries_;
  const Memory& memory_;
  int size_;
  std::size_t num_members_;
  Operation kind_;
  DType dtype_;
  ReduceOp op_;
  int root_;
  std::int64_t shard_;   // elements
  std::size_t element_;  // bytes
};

}  // namespace lockstep::comm
