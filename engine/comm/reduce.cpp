#include "engine/comm/reduce.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/core/checked.hpp"
#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"
#include "engine/core/nontemporal.hpp"

namespace lockstep::comm {

namespace {

// Elements that are reduced before they are stored to the outputs. Measured: long blocks for non-temporal stores, short
// blocks when many buffers share the L1 cache.
constexpr std::int64_t block_elements = 1024;
constexpr std::int64_t block_elements_cached = 512;
constexpr std::int64_t block_elements_of_many = 256;
constexpr int max_in_registers = 8;  // inputs reduced in registers

struct Sum {
  template <class C>
  static C apply(C a, C b) {
    return a + b;
  }
};
struct Product {
  template <class C>
  static C apply(C a, C b) {
    return a * b;
  }
};
struct Max {
  template <class C>
  static C apply(C a, C b) {
    if constexpr (std::is_floating_point_v<C>)
      return (a > b || a != a) ? a : b;  // NOLINT(misc-redundant-expression): not-a-number
    return a > b ? a : b;
  }
};
struct Min {
  template <class C>
  static C apply(C a, C b) {
    if constexpr (std::is_floating_point_v<C>)
      return (a < b || a != a) ? a : b;  // NOLINT(misc-redundant-expression): not-a-number
    return a < b ? a : b;
  }
};

// bool is computed as a byte, so that false < true.
template <class T>
struct Stored {
  using type = T;
};
template <>
struct Stored<bool> {
  using type = std::uint8_t;
};

// Integer sums and products use unsigned types, which wrap around without undefined behaviour.
template <class C>
struct Arithmetic {
  using type = C;
};
template <>
struct Arithmetic<std::int64_t> {
  using type = std::uint64_t;
};
template <>
struct Arithmetic<std::int32_t> {
  using type = std::uint32_t;
};

// The tree over inputs [first, first + count) of element i. The left subtree holds the largest power of two below
// count.
template <int first, int count, class Op, class C, class T>
inline C tree(const T* const* inputs, std::int64_t i) {
  if constexpr (count == 1) {
    return static_cast<C>(inputs[first][i]);
  } else {
    constexpr int left = static_cast<int>(std::bit_ceil(static_cast<unsigned>(count)) / 2);
    return Op::template apply<C>(tree<first, left, Op, C, T>(inputs, i),
                                 tree<first + left, count - left, Op, C, T>(inputs, i));
  }
}

template <int count, class Op, class C, class T>
void tree_block(C* __restrict__ out, const T* const* inputs, std::int64_t n) {
  const T* local[count];
  for (int i = 0; i < count; ++i) local[i] = inputs[i];
  for (std::int64_t i = 0; i < n; ++i) out[i] = tree<0, count, Op, C, T>(local, i);
}

template <class Op, class C, class T>
void tree_up_to_eight(C* out, const T* const* inputs, int count, std::int64_t n) {
  switch (count) {
    case 1:
      return tree_block<1, Op, C, T>(out, inputs, n);
    case 2:
      return tree_block<2, Op, C, T>(out, inputs, n);
    case 3:
      return tree_block<3, Op, C, T>(out, inputs, n);
    case 4:
      return tree_block<4, Op, C, T>(out, inputs, n);
    case 5:
      return tree_block<5, Op, C, T>(out, inputs, n);
    case 6:
      return tree_block<6, Op, C, T>(out, inputs, n);
    case 7:
      return tree_block<7, Op, C, T>(out, inputs, n);
    default:
      return tree_block<8, Op, C, T>(out, inputs, n);
  }
}

// More than eight inputs: subtrees of eight, merged like the digits of a binary counter, give the same tree.
template <class Op, class C, class T>
void tree_any(C* out, const T* const* inputs, int count, std::int64_t n) {
  C partial[8][block_elements];
  int depth = 0;
  unsigned subtrees = 0;
  const auto merge = [&] {
    C* __restrict__ left = partial[depth - 2];
    const C* __restrict__ right = partial[depth - 1];
    for (std::int64_t i = 0; i < n; ++i) left[i] = Op::template apply<C>(left[i], right[i]);
    --depth;
  };
  for (int first = 0; first < count; first += max_in_registers) {
    const int here = count - first < max_in_registers ? count - first : max_in_registers;
    LOCKSTEP_CHECK(depth < 8, "a sum over ", count, " ranks");
    tree_up_to_eight<Op, C, T>(partial[depth++], inputs + first, here, n);
    ++subtrees;
    for (unsigned bit = subtrees; (bit & 1) == 0; bit >>= 1) merge();
  }
  while (depth > 1) merge();  // NOLINT(bugprone-infinite-loop): merge counts depth down
  std::memcpy(out, partial[0], bounded_bytes<C>(n));
}

// Sums up to eight inputs in registers, one cache line at a time. Stores go to all outputs through the caches
// (prefetched for writing, because most outputs are inputs too), or with non-temporal stores to a single output that is
// aligned to cache lines. Handles full cache lines only and returns the number of elements done.
template <int count, class C>
std::int64_t sum_lines(const C* const* inputs, std::span<std::byte* const> outputs, std::size_t offset, std::int64_t n,
                       int divisor, bool nontemporal) {
  constexpr std::int64_t lanes = 64 / sizeof(C);
  constexpr std::int64_t ahead = 1024 / sizeof(C);
  const C* local[count];
  for (int i = 0; i < count; ++i) local[i] = inputs[i];
  std::int64_t at = 0;
  for (; at + lanes <= n; at += lanes) {
    C sum[lanes];
    for (std::int64_t lane = 0; lane < lanes; ++lane) sum[lane] = tree<0, count, Sum, C, C>(local, at + lane);
    if constexpr (std::is_floating_point_v<C>) {
      if (divisor != 1)
        for (C& value : sum) value /= static_cast<C>(divisor);
    }
    const std::size_t here = offset + element_offset(static_cast<std::size_t>(at), sizeof(C));
    if (nontemporal) {
      for (int i = 0; i < count; ++i) __builtin_prefetch(local[i] + at + ahead);
      store_nontemporal(outputs[0] + here, reinterpret_cast<const std::byte*>(sum));
      continue;
    }
    for (std::byte* output : outputs) {
      __builtin_prefetch(output + here + element_offset(ahead, sizeof(C)), 1);
      std::memcpy(output + here, sum, sizeof sum);
    }
  }
  if (nontemporal) fence_nontemporal_stores();
  return at;
}

template <class C>
std::int64_t sum_lines(const C* const* inputs, int num_inputs, std::span<std::byte* const> outputs, std::size_t offset,
                       std::int64_t n, int divisor, bool nontemporal) {
  switch (num_inputs) {
    case 2:
      return sum_lines<2, C>(inputs, outputs, offset, n, divisor, nontemporal);
    case 3:
      return sum_lines<3, C>(inputs, outputs, offset, n, divisor, nontemporal);
    case 4:
      return sum_lines<4, C>(inputs, outputs, offset, n, divisor, nontemporal);
    case 5:
      return sum_lines<5, C>(inputs, outputs, offset, n, divisor, nontemporal);
    case 6:
      return sum_lines<6, C>(inputs, outputs, offset, n, divisor, nontemporal);
    case 7:
      return sum_lines<7, C>(inputs, outputs, offset, n, divisor, nontemporal);
    case 8:
      return sum_lines<8, C>(inputs, outputs, offset, n, divisor, nontemporal);
    default:
      return 0;
  }
}

// Whether summing by cache lines is faster than by blocks. Measured: with non-temporal stores always (by a quarter with
// two inputs, a sixth with eight); through the caches from five inputs on (by a fifth with eight; a tenth slower with
// two).
bool sums_by_lines(const Reduction& reduction, int num_inputs, std::size_t offset) {
  if (!reduction.nontemporal) return reduction.outputs.size() > 1 && num_inputs > 4;
  return has_nontemporal_stores && reduction.outputs.size() == 1 &&
         reinterpret_cast<std::uintptr_t>(reduction.outputs[0] + offset) % 64 == 0;
}

int num_reduced_inputs(const Reduction& reduction) {
  const auto num_inputs = static_cast<int>(reduction.inputs.size());
  const bool adds = reduction.op == ReduceOp::sum || reduction.op == ReduceOp::mean;
  if (adds && num_inputs > 1 && defect_armed(Defect::sum_leaves_out_rank)) [[unlikely]]
    return num_inputs - 1;
  return num_inputs;
}

// Stores to all outputs, and returns the smallest number of bytes that an output received.
[[gnu::always_inline]] inline std::size_t store_to_all(const Reduction& reduction, std::size_t offset,
                                                       const void* result, std::size_t bytes) {
  std::size_t least = bytes;
  for (std::byte* output : reduction.outputs)
    least = std::min(least, copy(output + offset, static_cast<const std::byte*>(result), bytes, reduction.nontemporal));
  return least;
}

// Pointers to one element of every input.
template <class L>
class InputPointers {
 public:
  InputPointers(const Reduction& reduction, int count) : reduction_(reduction), count_(count) {
    if (count <= few) return;
    many_.resize(static_cast<std::size_t>(count));
    pointers_ = many_.data();
  }
  InputPointers(const InputPointers&) = delete;
  InputPointers& operator=(const InputPointers&) = delete;
  const L** at(std::int64_t element) {
    for (int i = 0; i < count_; ++i)
      pointers_[i] = reinterpret_cast<const L*>(reduction_.inputs[static_cast<std::size_t>(i)]) + element;
    return pointers_;
  }

 private:
  static constexpr int few = 64;
  const Reduction& reduction_;
  int count_;
  const L* few_[few];
  std::vector<const L*> many_;
  const L** pointers_ = few_;
};

template <class T, class Op>
std::size_t reduce_typed(const Reduction& reduction, std::int64_t begin, std::int64_t count) {
  using S = typename Stored<T>::type;
  constexpr bool wraps = std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>;
  using C = std::conditional_t<wraps, typename Arithmetic<ComputeType<S>>::type, ComputeType<S>>;
  using L = std::conditional_t<std::is_same_v<ComputeType<S>, S>, C, S>;  // as loaded
  const int num_inputs = num_reduced_inputs(reduction);
  InputPointers<L> inputs(reduction, num_inputs);
  const std::int64_t block = reduction.nontemporal ? block_elements
                             : num_inputs <= 4     ? block_elements_cached
                                                   : block_elements_of_many;
  std::int64_t done = 0;
  if constexpr (std::is_same_v<L, C> && std::is_same_v<Op, Sum>) {
    const std::size_t offset = bounded_bytes<S>(begin);
    if (sums_by_lines(reduction, num_inputs, offset))
      done = sum_lines<C>(inputs.at(begin), num_inputs, reduction.outputs, offset, count, reduction.divisor,
                          reduction.nontemporal);
  }
  std::size_t stored = bounded_bytes<S>(done);
  for (std::int64_t at = begin + done; at < begin + count; at += block) {
    const std::int64_t n = begin + count - at < block ? begin + count - at : block;
    alignas(64) C result[block_elements];
    if (num_inputs <= max_in_registers)
      tree_up_to_eight<Op, C, L>(result, inputs.at(at), num_inputs, n);
    else
      tree_any<Op, C, L>(result, inputs.at(at), num_inputs, n);
    if constexpr (std::is_floating_point_v<C>) {
      if (reduction.divisor != 1) {
        const C divisor = static_cast<C>(reduction.divisor);
        for (std::int64_t i = 0; i < n; ++i) result[i] /= divisor;
      }
    }
    const std::size_t bytes = bounded_bytes<S>(n);
    const std::size_t offset = bounded_bytes<S>(at);
    if constexpr (std::is_same_v<L, C>) {
      stored += store_to_all(reduction, offset, result, bytes);
    } else {
      alignas(64) S rounded[block_elements];
      for (std::int64_t i = 0; i < n; ++i) rounded[i] = static_cast<S>(result[i]);
      stored += store_to_all(reduction, offset, rounded, bytes);
    }
  }
  return stored;
}

}  // namespace

std::size_t reduce(const Reduction& reduction, std::int64_t begin, std::int64_t count) {
  std::size_t stored = 0;
  const auto run = [&]<class T, class Op>() { stored = reduce_typed<T, Op>(reduction, begin, count); };
  dispatch_all(reduction.dtype, [&]<class T>() {
    switch (reduction.op) {
      case ReduceOp::sum:
      case ReduceOp::mean:
        return run.template operator()<T, Sum>();
      case ReduceOp::product:
        return run.template operator()<T, Product>();
      case ReduceOp::max:
        return run.template operator()<T, Max>();
      case ReduceOp::min:
        return run.template operator()<T, Min>();
    }
  });
  return stored;
}

void check_reduction(DType dtype, ReduceOp op, const char* operation) {
  if (dtype == DType::boolean && op != ReduceOp::max && op != ReduceOp::min)
    throw Error(str(operation, ": bool has no ", name_of(op), " over ranks"),
                "use max (any) or min (all), or cast to int64");
  if (op == ReduceOp::mean && !is_floating(dtype))
    throw Error(str(operation, ": the mean of ", name_of(dtype), " would not be of that type"),
                "cast to a floating-point type, or use sum");
}

}  // namespace lockstep::comm
