// What makes a convolution a product of matrices. All views contiguous.
#pragma once

#include "engine/kernels/view.hpp"

namespace lockstep::kernels {

struct Windows {
  std::int64_t batch = 1, channels = 1, height = 1, width = 1;  // of the images
  std::int64_t kernel[2] = {1, 1};                              // height, width; so below
  std::int64_t stride[2] = {1, 1};
  std::int64_t padding[2] = {0, 0};

  std::int64_t out_height() const { return (height + 2 * padding[0] - kernel[0]) / stride[0] + 1; }
  std::int64_t out_width() const { return (width + 2 * padding[1] - kernel[1]) / stride[1] + 1; }
};
// out (batch * out_height * out_width, channels * kernel height * kernel width): the window that each output sees, with
// zeros for padding.
void unfold(Space space, const Windows& windows, const View& out, const View& images);
// The reverse, adding up: each element of an image gets the sum over the windows that hold it, in order of the position
// in the kernel. Floating types that are computed in.
void fold(Space space, const Windows& windows, const View& images, const View& columns);

}  // namespace lockstep::kernels
