// The transport of ranks with a GPU each: NCCL carries the bytes, and our kernel adds them. NCCL's own sums have an
// order that depends on the machine; these have that of reduce.hpp, so the bits are those of ranks on the host.
#include <algorithm>
#include <vector>

#include "engine/comm/nccl_groups.hpp"
#include "engine/comm/one_device.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// One member's side of a collective.
class Exchange {
 public:
  Exchange(IssuedCollective& issued, NcclGroup& group)
      : issued_(issued),
        group_(group),
        size_(issued.group->size),
        me_(issued.me),
        root_(issued.fingerprint.root),
        dtype_(static_cast<DType>(issued.fingerprint.dtype)),
        count_(issued.fingerprint.count),
        shard_(bytes(count_)) {}

  // Returns the bytes of the larger one of this member's buffers.
  std::size_t run() {
    const std::byte* const in = issued_.input;
    std::byte* const out = issued_.output;
    const bool is_root = me_ == root_;
    switch (static_cast<Operation>(issued_.fingerprint.kind)) {
      case Operation::all_reduce:
        all_reduce();
        return shard_;
      case Operation::reduce_scatter:
        step([&](int peer) { group_.send(in + at(peer), shard_, peer); },
             [&](int peer) { group_.receive(arrived(peer), shard_, peer); }, own(arrived(me_), in + at(me_), shard_));
        add_up(out, count_);
        return at(size_);
      case Operation::all_gather:
        step([&](int peer) { group_.send(in, shard_, peer); },
             [&](int peer) { group_.receive(out + at(peer), shard_, peer); }, own(out + at(me_), in, shard_));
        return at(size_);
      case Operation::all_to_all:
        step([&](int peer) { group_.send(in + at(peer), shard_, peer); },
             [&](int peer) { group_.receive(out + at(peer), shard_, peer); }, own(out + at(me_), in + at(me_), shard_));
        return at(size_);
      case Operation::gather:
        step(
            [&](int peer) {
              if (peer == root_) group_.send(in, shard_, peer);
            },
            [&](int peer) {
              if (is_root) group_.receive(out + at(peer), shard_, peer);
            },
            is_root ? own(out + at(me_), in, shard_) : Own{});
        return is_root ? at(size_) : shard_;
      case Operation::scatter:
        step(
            [&](int peer) {
              if (is_root) group_.send(in + at(peer), shard_, peer);
            },
            [&](int peer) {
              if (peer == root_) group_.receive(out, shard_, peer);
            },
            is_root ? own(out, in + at(me_), shard_) : Own{});
        return is_root ? at(size_) : shard_;
      case Operation::broadcast:
      case Operation::send:
      case Operation::receive:
        step(
            [&](int peer) {
              if (is_root) group_.send(in, shard_, peer);
            },
            [&](int peer) {
              if (peer == root_) group_.receive(out, shard_, peer);
            },
            is_root && out != nullptr ? own(out, in, shard_) : Own{});
        return shard_;
      case Operation::barrier:
        break;
    }
    return 0;
  }

 private:
  // What a member gives to itself.
  struct Own {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0;
  };
  static Own own(std::byte* to, const std::byte* from, std::size_t bytes) { return {to, from, bytes}; }
  std::size_t bytes(std::int64_t elements) const { return bounded_bytes(elements, size_of(dtype_)); }
  std::size_t at(int member) const { return bounded_product(shard_, static_cast<std::size_t>(member)); }
  // Where the part of a member that this one adds up arrives.
  std::byte* arrived(int member) {
    if (arrivals_ == nullptr) arrivals_ = group_.scratch(at(size_));
    return arrivals_ + at(member);
  }

  template <class Send, class Receive>
  void step(const Send& send, const Receive& receive, const Own& mine) {
    group_.step(issued_, [&] {
      for (int peer = 0; peer < size_; ++peer) {
        if (peer == me_) continue;
        send(peer);
        receive(peer);
      }
    });
    if (mine.bytes > 0 && mine.to != mine.from)
      device::cuda::calls().copy(mine.to, mine.from, mine.bytes, issued_.execution.stream);
  }

  // The parts of all members, which have arrived, into `out`.
  void add_up(std::byte* out, std::int64_t elements) {
    std::vector<const std::byte*> parts;
    for (int member = 0; member < size_; ++member) parts.push_back(arrived(member));
    const auto op = static_cast<ReduceOp>(issued_.fingerprint.op);
    reduce_on_device(issued_.execution, {dtype_, op, parts, {&out, 1}, op == ReduceOp::mean ? size_ : 1}, 0, elements);
  }

  // Each member adds up one part of the elements, and sends the result to all. The last parts may be shorter or empty.
  void all_reduce() {
    const std::int64_t part = (count_ + size_ - 1) / size_;
    const auto begin = [&](int member) { return std::min(count_, bounded_product(part, member)); };
    const auto offset = [&](int member) { return bytes(begin(member)); };
    const auto length = [&](int member) { return bytes(begin(member + 1) - begin(member)); };
    const std::byte* const in = issued_.input;
    std::byte* const out = issued_.output;
    shard_ = bytes(part);  // of arrived()
    step([&](int peer) { group_.send(in + offset(peer), length(peer), peer); },
         [&](int peer) { group_.receive(arrived(peer), length(me_), peer); },
         own(arrived(me_), in + offset(me_), length(me_)));
    if (length(me_) > 0) add_up(out + offset(me_), begin(me_ + 1) - begin(me_));
    step([&](int peer) { group_.send(out + offset(me_), length(me_), peer); },
         [&](int peer) { group_.receive(out + offset(peer), length(peer), peer); }, Own{});
    shard_ = bytes(count_);
  }

  IssuedCollective& issued_;
  NcclGroup& group_;
  const int size_, me_, root_;
  const DType dtype_;
  const std::int64_t count_;
  std::size_t shard_;
  std::byte* arrivals_ = nullptr;
};

class Nccl : public Transport {
 public:
  TransportTraits traits() const override {
    const bool is_there = nccl::calls() != nullptr;
    return {.device_memory = is_there, .between_devices = is_there};
  }
  // The worker of the stream waits for the end: only then it is known that no peer has failed meanwhile.
  void move(IssuedCollective& issued) const override {
    NcclGroup& group = issued.rank->nccl_groups->of(issued.group, issued.execution.stream);
    try {
      group.open(issued);
      const std::size_t moved = issued.fingerprint.count > 0 ? Exchange(issued, group).run() : 0;
      group.wait_for_stream(issued);
      issued.slot().entries()[issued.me].moved_bytes.fetch_add(static_cast<std::int64_t>(moved));
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
