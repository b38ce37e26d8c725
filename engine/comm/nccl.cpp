// The transport of ranks with a GPU each: NCCL carries the bytes, and our kernel adds them. NCCL's own sums have an
// order that depends on the machine; these have that of reduce.hpp, so the bits are those of ranks on the host. With
// SumOrder::library NCCL adds.
#include <algorithm>
#include <vector>

#include "engine/comm/nccl_groups.hpp"
#include "engine/comm/one_device.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm {

namespace {

nccl::Sum sum_of(const Fingerprint& fingerprint) {
  return {static_cast<DType>(fingerprint.dtype), static_cast<ReduceOp>(fingerprint.op)};
}

// NCCL adds, instead of the kernel.
bool is_by_library(const Fingerprint& fingerprint, SumOrder order) {
  const auto kind = static_cast<Operation>(fingerprint.kind);
  return order == SumOrder::library && (kind == Operation::all_reduce || kind == Operation::reduce_scatter) &&
         nccl::has(sum_of(fingerprint));
}

// Elements of the part of an all_reduce that a member adds up. The last parts may be shorter or empty.
std::int64_t part_of(std::int64_t count, int size) { return (count + size - 1) / size; }

// One member's side of a collective: every member sends a part to each peer that gets one, itself included.
class Exchange {
 public:
  Exchange(IssuedCollective& issued, NcclGroup& group)
      : issued_(issued),
        group_(group),
        kind_(static_cast<Operation>(issued.fingerprint.kind)),
        size_(issued.group->size),
        me_(issued.me),
        root_(issued.fingerprint.root),
        dtype_(static_cast<DType>(issued.fingerprint.dtype)),
        count_(issued.fingerprint.count),
        shard_(bytes(count_)),
        arrivals_(issued.scratch) {}

  // Returns the bytes of the larger one of this member's buffers.
  std::size_t run() {
    if (is_by_library(issued_.fingerprint, issued_.sum_order)) return add_by_library();
    if (kind_ == Operation::all_reduce) {
      all_reduce();
      return shard_;
    }
    const bool adds = kind_ == Operation::reduce_scatter;
    exchange(
        [&](int peer) {
          return Part{part_for(peer), shard_};
        },
        [&](int peer) {
          return Place{place_of(peer), shard_};
        });
    if (adds) add_up(issued_.output, count_);
    const bool has_shards = kind_ != Operation::broadcast && kind_ != Operation::send && kind_ != Operation::receive;
    const bool has_all = (kind_ != Operation::gather && kind_ != Operation::scatter) || me_ == root_;
    return has_shards && has_all ? at(size_) : shard_;
  }

 private:
  struct Part {
    const std::byte* from = nullptr;  // null: nothing
    std::size_t bytes = 0;
  };
  struct Place {
    std::byte* to = nullptr;
    std::size_t bytes = 0;
  };
  std::size_t bytes(std::int64_t elements) const { return bounded_bytes(elements, size_of(dtype_)); }
  std::size_t at(int member) const { return bounded_product(shard_, static_cast<std::size_t>(member)); }

  // What the peer gets from this member; null: nothing.
  const std::byte* part_for(int peer) const {
    const std::byte* const in = issued_.input;
    switch (kind_) {
      case Operation::reduce_scatter:
      case Operation::all_to_all:
        return in + at(peer);
      case Operation::all_gather:
        return in;
      case Operation::gather:
        return peer == root_ ? in : nullptr;
      case Operation::scatter:
        return me_ == root_ ? in + at(peer) : nullptr;
      default:
        return me_ == root_ ? in : nullptr;
    }
  }
  // Where this member puts what the peer sends; null: the peer sends nothing.
  std::byte* place_of(int peer) const {
    std::byte* const out = issued_.output;
    switch (kind_) {
      case Operation::reduce_scatter:
        return arrivals_ + at(peer);
      case Operation::all_gather:
      case Operation::all_to_all:
        return out + at(peer);
      case Operation::gather:
        return me_ == root_ ? out + at(peer) : nullptr;
      default:
        return peer == root_ ? out : nullptr;
    }
  }

  std::size_t add_by_library() {
    const nccl::Sum sum = sum_of(issued_.fingerprint);
    const bool to_all = kind_ == Operation::all_reduce;
    group_.step(issued_, [&] {
      if (to_all) {
        group_.all_reduce(issued_.input, issued_.output, count_, sum);
      } else {
        group_.reduce_scatter(issued_.input, issued_.output, count_, sum);
      }
    });
    return to_all ? shard_ : at(size_);
  }

  template <class PartFor, class PlaceOf>
  void exchange(const PartFor& part_for, const PlaceOf& place_of) {
    group_.step(issued_, [&] {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == me_) continue;
        if (const Part part = part_for(peer); part.from != nullptr) group_.send(part.from, part.bytes, peer);
        if (const Place place = place_of(peer); place.to != nullptr) group_.receive(place.to, place.bytes, peer);
      }
    });
    const Part part = part_for(me_);
    const Place place = place_of(me_);
    if (place.to != nullptr && part.from != place.to && part.bytes > 0)
      device::cuda::calls().copy(place.to, part.from, part.bytes, issued_.execution.stream);
  }

  // The parts of all members, which have arrived, into `out`.
  void add_up(std::byte* out, std::int64_t elements) {
    std::vector<const std::byte*> parts(static_cast<std::size_t>(size_));
    for (int member = 0; member < size_; ++member) parts[static_cast<std::size_t>(member)] = arrivals_ + at(member);
    const auto op = static_cast<ReduceOp>(issued_.fingerprint.op);
    reduce_on_device(issued_.execution, {dtype_, op, parts, {&out, 1}, op == ReduceOp::mean ? size_ : 1}, 0, elements);
  }

  // Each member adds up one part of the elements, and sends the result to all.
  void all_reduce() {
    const std::int64_t part = part_of(count_, size_);
    const auto begin = [&](int member) { return std::min(count_, bounded_product(part, member)); };
    const auto offset = [&](int member) { return bytes(begin(member)); };
    const auto length = [&](int member) { return bytes(begin(member + 1) - begin(member)); };
    const std::byte* const in = issued_.input;
    std::byte* const out = issued_.output;
    shard_ = bytes(part);  // of what arrives
    exchange(
        [&](int peer) {
          return Part{in + offset(peer), length(peer)};
        },
        [&](int peer) {
          return Place{arrivals_ + at(peer), length(me_)};
        });
    add_up(out + offset(me_), begin(me_ + 1) - begin(me_));
    exchange(
        [&](int) {
          return Part{out + offset(me_), length(me_)};
        },
        [&](int peer) {
          return Place{out + offset(peer), length(peer)};
        });
    shard_ = bytes(count_);
  }

  IssuedCollective& issued_;
  NcclGroup& group_;
  const Operation kind_;
  const int size_, me_, root_;
  const DType dtype_;
  const std::int64_t count_;
  std::size_t shard_;
  std::byte* const arrivals_;  // where the parts arrive that this member adds up
};

class Nccl : public Transport {
 public:
  TransportTraits traits() const override {
    const bool is_there = nccl::calls() != nullptr;
    return {.device_memory = is_there, .between_devices = is_there, .library_sums = is_there};
  }
  // The worker of the stream waits for the end: only then it is known that no peer has failed meanwhile. A member may
  // be done before others, which still receive. They meet, so that the collective ends on all or on none: what fails
  // later on one of them is no failure of this collective.
  void move(IssuedCollective& issued) const override {
    name_refusals(issued, [&] {
      abort_at_failure(issued, [&](NcclGroup& group) {
        const std::int64_t meeting = group.open(issued, issued.execution.stream, 0);
        group.note_begin();
        const std::size_t moved = issued.fingerprint.count > 0 ? Exchange(issued, group).run() : 0;
        group.wait_for_stream(issued);
        meet_members(issued, meeting);
        issued.slot().entries()[issued.me].moved_bytes.fetch_add(static_cast<std::int64_t>(moved));
      });
    });
  }
  std::size_t scratch_bytes(const Fingerprint& fingerprint, SumOrder order, int size) const override {
    const auto kind = static_cast<Operation>(fingerprint.kind);
    if (!traits().between_devices || is_by_library(fingerprint, order)) return 0;
    if (kind != Operation::all_reduce && kind != Operation::reduce_scatter) return 0;
    const std::int64_t part = kind == Operation::all_reduce ? part_of(fingerprint.count, size) : fingerprint.count;
    return bounded_bytes(bounded_product(part, size), size_of(static_cast<DType>(fingerprint.dtype)));
  }
  // A failure at one stream also ends the communicators of those before it: the group is poisoned.
  void prepare(IssuedCollective& issued) const override {
    name_refusals(issued, [&] { open_from(issued, 0); });
  }

 private:
  static void open_from(IssuedCollective& issued, std::size_t first) {
    const std::int64_t meeting = 3 * static_cast<std::int64_t>(first);  // open() has two more
    if (first == issued.prepared.size()) return meet_members(issued, meeting);
    void* const stream = issued.prepared[first].stream;
    issued.rank->nccl_groups->note_stream(issued, stream);
    meet_members(issued, meeting);
    abort_at_failure(issued, [&](NcclGroup& group) {
      group.open(issued, stream, meeting + 1);
      open_from(issued, first + 1);
    });
  }
  // The text of a refused call reaches all members, so it names this rank.
  template <class F>
  static void name_refusals(const IssuedCollective& issued, const F& body) {
    try {
      body();
    } catch (const ResourceError& refused) {
      throw ResourceError(str("rank ", issued.rank->rank, ": ", refused.message()), refused.remedy());
    }
  }
  template <class F>
  static void abort_at_failure(IssuedCollective& issued, const F& body) {
    NcclGroup& group = issued.rank->nccl_groups->of(issued);
    try {
      body(group);
    } catch (...) {
      group.abort();
      throw;
    }
  }
};

}  // namespace

const Transport& nccl_transport() {
  static const Nccl transport;
  return transport;
}

}  // namespace lockstep::comm
