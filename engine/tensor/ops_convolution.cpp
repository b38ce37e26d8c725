// conv2d as one matrix product. The 16-bit types are computed in float32 and rounded once.
#include "engine/core/checked.hpp"
#include "engine/core/error.hpp"
#include "engine/kernels/unfold.hpp"
#include "engine/tensor/ops.hpp"
#include "engine/tensor/ops_launch.hpp"
#include "engine/tensor/ops_network.hpp"

namespace lockstep::raw {

namespace {

DType compute_type(DType dtype) { return size_of(dtype) == 2 ? DType::float32 : dtype; }

kernels::Windows windows_of(const Tensor& x, const Tensor& weight, const Dims& stride, const Dims& padding) {
  kernels::Windows of{x.size(0), x.size(1), x.size(2), x.size(3)};
  for (int i = 0; i < 2; ++i) {
    of.kernel[i] = weight.size(2 + i);
    of.stride[i] = stride[i];
    of.padding[i] = padding[i];
  }
  return of;
}

std::int64_t product(const Dims& sizes) {
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) all = checked_multiply(all, size, "conv2d");
  return all;
}
std::int64_t num_windows(const kernels::Windows& of) { return product({of.batch, of.out_height(), of.out_width()}); }
std::int64_t padded(std::int64_t size, std::int64_t padding) {
  return checked_add(size, checked_multiply(2, padding, "conv2d: padding"), "conv2d: padding");
}

// (windows, channels * kernel)
Tensor columns_of(const Tensor& x, const kernels::Windows& of) {
  const Tensor wide = contiguous(cast(x, compute_type(x.dtype())));
  const std::int64_t window = product({of.channels, of.kernel[0], of.kernel[1]});
  const Tensor out = empty(Dims{num_windows(of), window}, wide.dtype(), x.device());
  run_kernel(
      "unfold",
      [of](kernels::Execution execution, const kernels::View& to, const kernels::View& from) {
        kernels::unfold(execution, of, to, from);
      },
      out, wide);
  return out;
}

Tensor matrix_of(const Tensor& weight) {
  return reshape(cast(weight, compute_type(weight.dtype())),
                 Dims{weight.size(0), product({weight.size(1), weight.size(2), weight.size(3)})});
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor* bias, const Dims& stride, const Dims& padding) {
  require_floating("conv2d", x);
  require_same_device("conv2d", x, weight);
  if (bias) require_same_device("conv2d", x, *bias);
  bool fits = x.num_dims() == 4 && weight.num_dims() == 4 && x.size(1) == weight.size(1) &&
              x.dtype() == weight.dtype() && (!bias || bias->dtype() == x.dtype());
  fits = fits && stride.size() == 2 && padding.size() == 2 && stride[0] > 0 && stride[1] > 0 && padding[0] >= 0 &&
         padding[1] >= 0;
  fits = fits && weight.num_elements() > 0 && padded(x.size(2), padding[0]) >= weight.size(2) &&
         padded(x.size(3), padding[1]) >= weight.size(3);
  if (!fits)
    throw Error(str("conv2d: ", describe(x), " with weight ", describe(weight), ", stride ", to_text(stride),
                    ", padding ", to_text(padding)),
                "give x (batch, in, height, width) and a weight (out, in, height, width) of its type, no larger than "
                "the image");
  const kernels::Windows of = windows_of(x, weight, stride, padding);
  const Tensor wide_bias = bias ? cast(*bias, compute_type(x.dtype())) : Tensor();
  const Tensor rows = linear(columns_of(x, of), matrix_of(weight), bias ? &wide_bias : nullptr);
  const Tensor images = view(rows, Dims{of.batch, of.out_height(), of.out_width(), weight.size(0)});
  return cast(contiguous(permute(images, {0, 3, 1, 2})), x.dtype());
}

ConvolutionGradients conv2d_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, const Dims& stride,
                                     const Dims& padding, bool for_x, bool for_weight, bool for_bias) {
  const kernels::Windows of = windows_of(x, weight, stride, padding);
  const Tensor wide = cast(grad, compute_type(x.dtype()));
  const Tensor rows = reshape(contiguous(permute(wide, {0, 2, 3, 1})), Dims{num_windows(of), weight.size(0)});
  ConvolutionGradients out;
  if (for_x) {
    const Tensor columns = matmul(rows, matrix_of(weight));
    const Tensor images = empty(x.sizes(), wide.dtype(), x.device());
    run_kernel(
        "fold",
        [of](kernels::Execution execution, const kernels::View& to, const kernels::View& from) {
          kernels::fold(execution, of, to, from);
        },
        images, columns);
    out.x = cast(images, x.dtype());
  }
  if (for_weight)
    out.weight = reshape(cast(matmul(lockstep::transpose(rows, 0, 1), columns_of(x, of)), x.dtype()), weight.sizes());
  if (for_bias) out.bias = cast(sum(rows, Dims{0}, false), x.dtype());
  return out;
}

}  // namespace lockstep::raw
