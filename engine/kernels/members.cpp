#include "engine/kernels/members.hpp"

#include <type_traits>

#include "engine/core/error.hpp"
#include "engine/kernels/kokkos_launch_internal.hpp"

namespace lockstep::kernels {

namespace {

struct Sum {
  template <class C>
  KOKKOS_FORCEINLINE_FUNCTION C operator()(C a, C b) const {
    return a + b;
  }
};
struct Product {
  template <class C>
  KOKKOS_FORCEINLINE_FUNCTION C operator()(C a, C b) const {
    return a * b;
  }
};
// A not-a-number is neither greater than nor equal to anything, so each of both keeps one.
struct Max {
  template <class C>
  KOKKOS_FORCEINLINE_FUNCTION C operator()(C a, C b) const {
    return (a > b || a != a) ? a : b;  // NOLINT(misc-redundant-expression)
  }
};
struct Min {
  template <class C>
  KOKKOS_FORCEINLINE_FUNCTION C operator()(C a, C b) const {
    return (a < b || a != a) ? a : b;  // NOLINT(misc-redundant-expression)
  }
};

// Sums and products of integers wrap around in unsigned types, without undefined behaviour.
template <class T, class Op>
using Computed = std::conditional_t<std::is_integral_v<T> && (std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>),
                                    std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>, ComputeType<T>>;

constexpr int in_registers = 8;

// The pairwise tree over the first `count` of `most` values, into the first. The bounds of the loops are constants, so
// that the values stay in registers.
template <int most, class Op, class C>
KOKKOS_FORCEINLINE_FUNCTION void add_up(C* values, int count, const Op& op) {
  for (int step = 1; step < most; step *= 2)
    for (int i = 0; i + step < most; i += 2 * step)
      if (i + step < count) values[i] = op(values[i], values[i + step]);
}

template <class T, class Op>
struct MembersKernel {
  using C = Computed<T, Op>;
  const T* inputs[max_members];
  T* outputs[max_members];
  int num_inputs, num_outputs, divisor;

  KOKKOS_FUNCTION C eight(int first, std::int64_t i) const {
    C values[in_registers];
    const int count = num_inputs - first < in_registers ? num_inputs - first : in_registers;
    for (int k = 0; k < in_registers; ++k)
      if (k < count) values[k] = static_cast<C>(inputs[first + k][i]);
    add_up<in_registers>(values, count, Op{});
    return values[0];
  }
  KOKKOS_FUNCTION void operator()(std::int64_t i) const {
    C result;
    if (num_inputs <= in_registers) {
      result = eight(0, i);
    } else {
      // Subtrees of eight are nodes of the tree.
      C subtrees[max_members / in_registers];
      const int count = (num_inputs + in_registers - 1) / in_registers;
      for (int k = 0; k < count; ++k) subtrees[k] = eight(k * in_registers, i);
      add_up<max_members / in_registers>(subtrees, count, Op{});
      result = subtrees[0];
    }
    if constexpr (std::is_floating_point_v<C>)
      if (divisor != 1) result /= static_cast<C>(divisor);
    const T stored = static_cast<T>(result);
    for (int k = 0; k < num_outputs; ++k) outputs[k][i] = stored;
  }
};

template <class T, class Op>
void run_members(Execution on, const MemberBuffers& buffers, std::int64_t begin, std::int64_t count) {
  MembersKernel<T, Op> kernel{};
  kernel.num_inputs = static_cast<int>(buffers.inputs.size());
  kernel.num_outputs = static_cast<int>(buffers.outputs.size());
  kernel.divisor = buffers.divisor;
  for (std::size_t k = 0; k < buffers.inputs.size(); ++k)
    kernel.inputs[k] = reinterpret_cast<const T*>(buffers.inputs[k]) + begin;
  for (std::size_t k = 0; k < buffers.outputs.size(); ++k)
    kernel.outputs[k] = reinterpret_cast<T*>(buffers.outputs[k]) + begin;
  run(on, "lockstep::reduce_members", count, kernel);
}

}  // namespace

void reduce_members(Execution on, const MemberBuffers& buffers, std::int64_t begin, std::int64_t count) {
  LOCKSTEP_CHECK(
      !buffers.inputs.empty() && buffers.inputs.size() <= max_members && buffers.outputs.size() <= max_members,
      buffers.inputs.size(), " inputs and ", buffers.outputs.size(), " outputs");
  dispatch_all(buffers.dtype, [&]<class Named>() {
    using T = std::conditional_t<std::is_same_v<Named, bool>, std::uint8_t, Named>;  // so that false < true
    if (buffers.op == MemberOp::max) return run_members<T, Max>(on, buffers, begin, count);
    if (buffers.op == MemberOp::min) return run_members<T, Min>(on, buffers, begin, count);
    if constexpr (std::is_same_v<Named, bool>) {
      throw InternalError("a sum or product of bool");
    } else if (buffers.op == MemberOp::sum) {
      run_members<T, Sum>(on, buffers, begin, count);
    } else {
      run_members<T, Product>(on, buffers, begin, count);
    }
  });
}

}  // namespace lockstep::kernels
