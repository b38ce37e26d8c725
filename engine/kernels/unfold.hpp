// Conversion between images and the matrix of their windows, which makes a convolution a matrix product. All views are
// contiguous, float32 or float64. Images are (batch, channels, height, width).
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

struct Windows {
  std::int64_t batch = 1, channels = 1, height = 1, width = 1;  // of the images
  std::int64_t kernel[2] = {1, 1};                              // height and width, also below
  std::int64_t stride[2] = {1, 1};
  std::int64_t padding[2] = {0, 0};

  std::int64_t out_height() const { return (height + 2 * padding[0] - kernel[0]) / stride[0] + 1; }
  std::int64_t out_width() const { return (width + 2 * padding[1] - kernel[1]) / stride[1] + 1; }
};
// out (batch * out_height * out_width, channels * kernel height * kernel width): one row per window, with zeros for the
// padding.
void unfold(Execution on, const Windows& windows, const View& out, const View& images);
// The adjoint: each element of an image is the sum over the windows (rows of `columns`) that contain it, in order of
// the position in the kernel.
void fold(Execution on, const Windows& windows, const View& images, const View& columns);

}  // namespace lockstep::kernels
