#include "engine/comm/reduce.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engine/core/defects.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

// What is summed before it is stored to the outputs; measured: long for stores past the caches, short when many streams
// share the first cache.
constexpr std::int64_t block_elements = 1024;
constexpr std::int64_t block_elements_cached = 512;
constexpr std::int64_t block_elements_of_many = 256;
constexpr int wide = 8;  // inputs summed in registers

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
    if constexpr (std::is_floating_point_v<C>) return (a > b || a != a) ? a : b;
    return a > b ? a : b;
  }
};
struct Min {
  template <class C>
  static C apply(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) return (a < b || a != a) ? a : b;
    return a < b ? a : b;
  }
};

// bool is computed as a byte: false < true.
template <class T>
struct Stored {
  using type = T;
};
template <>
struct Stored<bool> {
  using type = std::uint8_t;
};

// Integer sums wrap around without undefined behaviour.
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

// The tree over inputs first .. first + count, of element i: the left half is the largest power of two below count.
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

// More than eight: subtrees of eight, merged as a binary counter counts, give the same tree.
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
  for (int first = 0; first < count; first += wide) {
    const int here = count - first < wide ? count - first : wide;
    LOCKSTEP_CHECK(depth < 8, "a sum over ", count, " ranks");
    tree_up_to_eight<Op, C, T>(partial[depth++], inputs + first, here, n);
    ++subtrees;
    for (unsigned bit = subtrees; (bit & 1) == 0; bit >>= 1) merge();
  }
  while (depth > 1) merge();
  std::memcpy(out, partial[0], static_cast<std::size_t>(n) * sizeof(C));
}

// Sums of five to eight inputs that go to several places: a line of all inputs at a time, summed in registers and
// stored to all. Lines are asked for well ahead and to be written: most places are the inputs themselves. Measured: a
// fifth faster than by blocks with eight inputs, a tenth slower with two. Whole lines only; the number of elements
// done.
template <int count, class C>
std::int64_t sum_lines_to_all(const C* const* inputs, std::span<std::byte* const> outputs, std::size_t offset,
                              std::int64_t n, int divisor) {
  constexpr std::int64_t lanes = 64 / sizeof(C);
  constexpr std::size_t ahead = 1024;
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
    for (std::byte* output : outputs) {
      std::byte* to = output + offset + static_cast<std::size_t>(at) * sizeof(C);
      __builtin_prefetch(to + ahead, 1);
      std::memcpy(to, sum, sizeof sum);
    }
  }
  return at;
}

template <class C>
std::int64_t sum_lines_to_all(const C* const* inputs, int num_inputs, std::span<std::byte* const> outputs,
                              std::size_t offset, std::int64_t n, int divisor) {
  switch (num_inputs) {
    case 5:
      return sum_lines_to_all<5, C>(inputs, outputs, offset, n, divisor);
    case 6:
      return sum_lines_to_all<6, C>(inputs, outputs, offset, n, divisor);
    case 7:
      return sum_lines_to_all<7, C>(inputs, outputs, offset, n, divisor);
    case 8:
      return sum_lines_to_all<8, C>(inputs, outputs, offset, n, divisor);
    default:
      return 0;
  }
}

template <class T, class Op>
void reduce_typed(const Reduction& reduction, std::int64_t begin, std::int64_t count) {
  using S = typename Stored<T>::type;
  constexpr bool wraps = std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>;
  using C = std::conditional_t<wraps, typename Arithmetic<ComputeType<S>>::type, ComputeType<S>>;
  using L = std::conditional_t<std::is_same_v<ComputeType<S>, S>, C, S>;  // as loaded
  constexpr int most = 64;
  const L* few[most];
  const L** inputs = few;
  std::vector<const L*> many;
  auto num_inputs = static_cast<int>(reduction.inputs.size());
  if (num_inputs > most) {
    many.resize(static_cast<std::size_t>(num_inputs));
    inputs = many.data();
  }
  const bool adds = reduction.op == ReduceOp::sum || reduction.op == ReduceOp::mean;
  if (adds && num_inputs > 1 && defect_armed(Defect::sum_leaves_out_rank)) [[unlikely]]
    --num_inputs;
  const std::int64_t block = reduction.streams ? block_elements
                             : num_inputs <= 4 ? block_elements_cached
                                               : block_elements_of_many;
  std::int64_t done = 0;
  if constexpr (std::is_same_v<L, C> && std::is_same_v<Op, Sum>) {
    if (reduction.outputs.size() > 1 && !reduction.streams) {
      for (int i = 0; i < num_inputs; ++i)
        inputs[i] = reinterpret_cast<const L*>(reduction.inputs[static_cast<std::size_t>(i)]) + begin;
      done = sum_lines_to_all<C>(inputs, num_inputs, reduction.outputs, static_cast<std::size_t>(begin) * sizeof(S),
                                 count, reduction.divisor);
    }
  }
  for (std::int64_t at = begin + done; at < begin + count; at += block) {
    const std::int64_t n = begin + count - at < block ? begin + count - at : block;
    for (int i = 0; i < num_inputs; ++i)
      inputs[i] = reinterpret_cast<const L*>(reduction.inputs[static_cast<std::size_t>(i)]) + at;
    alignas(64) C result[block_elements];
    if (num_inputs <= wide)
      tree_up_to_eight<Op, C, L>(result, inputs, num_inputs, n);
    else
      tree_any<Op, C, L>(result, inputs, num_inputs, n);
    if constexpr (std::is_floating_point_v<C>) {
      if (reduction.divisor != 1) {
        const C divisor = static_cast<C>(reduction.divisor);
        for (std::int64_t i = 0; i < n; ++i) result[i] /= divisor;
      }
    }
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(S);
    const std::size_t offset = static_cast<std::size_t>(at) * sizeof(S);
    if constexpr (std::is_same_v<L, C>) {
      for (std::byte* output : reduction.outputs)
        copy(output + offset, reinterpret_cast<const std::byte*>(result), bytes, reduction.streams);
    } else {
      alignas(64) S rounded[block_elements];
      for (std::int64_t i = 0; i < n; ++i) rounded[i] = static_cast<S>(result[i]);
      for (std::byte* output : reduction.outputs)
        copy(output + offset, reinterpret_cast<const std::byte*>(rounded), bytes, reduction.streams);
    }
  }
}

#if defined(__x86_64__)
// 64 bytes past the caches; `to` is aligned to 64.
inline void store_past_caches(std::byte* to, const std::byte* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX__)
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
#else
  for (int i = 0; i < 4; ++i)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
#endif
}

void copy_past_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
  if (head >= bytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  constexpr std::size_t ahead = 2048;
  const std::size_t lines = bytes / 64;
  for (std::size_t line = 0; line < lines; ++line, to += 64, from += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from + ahead), _MM_HINT_NTA);
    store_past_caches(to, from);
  }
  std::memcpy(to, from, bytes % 64);
  _mm_sfence();
}
#endif

// Line by line, each read once. Stores that go through the caches ask for their lines well ahead: with many streams of
// stores the processor does not foresee them by itself.
void copy_lines_to_all(std::byte* const* to, std::size_t count, const std::byte* from, std::size_t num_lines,
                       bool streams) {
  struct Line {
    std::byte bytes[64];
  };
  const std::size_t bytes = num_lines * 64;
#if defined(__x86_64__)
  if (streams) {
    // Some lines of each place at a time: memory likes them in one piece.
    constexpr std::size_t ahead = 2048, piece = 4 * 64;
    for (std::size_t at = 0; at < bytes; at += piece) {
      const std::size_t end = at + piece < bytes ? at + piece : bytes;
      for (std::size_t line = at; line < end; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(from + line + ahead), _MM_HINT_NTA);
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t line = at; line < end; line += 64) store_past_caches(to[i] + line, from + line);
    }
    _mm_sfence();
    return;
  }
#endif
  constexpr std::size_t ahead = 512;
  for (std::size_t at = 0; at < bytes; at += 64) {
    Line line;
    std::memcpy(&line, from + at, sizeof line);
    for (std::size_t i = 0; i < count; ++i) {
      __builtin_prefetch(to[i] + at + ahead, 1);
      std::memcpy(to[i] + at, &line, sizeof line);
    }
  }
}

}  // namespace

void copy(std::byte* to, const std::byte* from, std::size_t bytes, bool streams) {
  if (to == from || bytes == 0) return;
#if defined(__x86_64__)
  if (streams && bytes >= 256) {
    copy_past_caches(to, from, bytes);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

void copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, bool streams) {
  constexpr std::size_t most = 16;  // places at a time
  constexpr std::size_t least_bytes = 4096;
  if (to.size() > most) {
    copy_to_all(to.first(most), from, bytes, streams);
    return copy_to_all(to.subspan(most), from, bytes, streams);
  }
  std::byte* places[most];
  std::size_t count = 0;
  const auto alignment = [](const std::byte* place) { return reinterpret_cast<std::uintptr_t>(place) % 64; };
  bool alike = true;
  for (std::byte* place : to) {
    if (place == from || place == nullptr) continue;
    places[count++] = place;
    alike = alike && alignment(place) == alignment(places[0]);
  }
  if (count == 0 || bytes == 0) return;
  if (!alike || bytes < least_bytes) {
    for (std::size_t i = 0; i < count; ++i) copy(places[i], from, bytes, streams);
    return;
  }
  const std::size_t head = (64 - alignment(places[0])) % 64;
  const std::size_t num_lines = (bytes - head) / 64, tail = head + num_lines * 64;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(places[i], from, head);
    std::memcpy(places[i] + tail, from + tail, bytes - tail);
    places[i] += head;
  }
  copy_lines_to_all(places, count, from + head, num_lines, streams);
}

void reduce(const Reduction& reduction, std::int64_t begin, std::int64_t count) {
  dispatch_all(reduction.dtype, [&]<class T>() {
    switch (reduction.op) {
      case ReduceOp::sum:
      case ReduceOp::mean:
        return reduce_typed<T, Sum>(reduction, begin, count);
      case ReduceOp::product:
        return reduce_typed<T, Product>(reduction, begin, count);
      case ReduceOp::max:
        return reduce_typed<T, Max>(reduction, begin, count);
      case ReduceOp::min:
        return reduce_typed<T, Min>(reduction, begin, count);
    }
  });
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
