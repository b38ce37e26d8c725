#include "engine/kernels/unfold.hpp"

#include "engine/core/checked.hpp"
#include "engine/kernels/kokkos_launch_internal.hpp"

namespace lockstep::kernels {

namespace {

// Writes one window, which is a row of `out`.
template <class T>
struct Unfold {
  T* out;
  const T* images;
  Windows windows;
  std::int64_t out_height, out_width;
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    const std::int64_t size = windows.channels * windows.kernel[0] * windows.kernel[1];
    const std::int64_t row = index / size, at = index - row * size;
    const std::int64_t column = row % out_width, line = row / out_width % out_height;
    const std::int64_t x = column * windows.stride[1] - windows.padding[1] + at % windows.kernel[1];
    const std::int64_t y = line * windows.stride[0] - windows.padding[0] + at / windows.kernel[1] % windows.kernel[0];
    const std::int64_t channel = at / (windows.kernel[0] * windows.kernel[1]);
    const std::int64_t image = row / (out_width * out_height);
    const bool inside = y >= 0 && y < windows.height && x >= 0 && x < windows.width;
    out[index] =
        inside ? images[((image * windows.channels + channel) * windows.height + y) * windows.width + x] : T(0);
  }
  void operator()(std::int64_t row) const {
    const std::int64_t column = row % out_width, line = row / out_width % out_height;
    const std::int64_t image = row / (out_width * out_height);
    const std::int64_t top = line * windows.stride[0] - windows.padding[0],
                       left = column * windows.stride[1] - windows.padding[1];
    T* to = out + row * windows.channels * windows.kernel[0] * windows.kernel[1];
    for (std::int64_t channel = 0; channel < windows.channels; ++channel)
      for (std::int64_t y = top; y < top + windows.kernel[0]; ++y) {
        const bool inside = y >= 0 && y < windows.height;
        const T* const from =
            images + ((image * windows.channels + channel) * windows.height + (inside ? y : 0)) * windows.width;
        for (std::int64_t x = left; x < left + windows.kernel[1]; ++x)
          *to++ = inside && x >= 0 && x < windows.width ? from[x] : T(0);
      }
  }
};

// Computes one line of one channel of one image on the host, and one element elsewhere.
template <class T>
struct Fold {
  T* images;
  const T* columns;
  Windows windows;
  std::int64_t out_height, out_width;
  KOKKOS_FUNCTION void portable(std::int64_t index) const {
    const std::int64_t line = index / windows.width;
    images[index] = sum_at(line, index - line * windows.width);
  }
  void operator()(std::int64_t line) const {
    T* const to = images + line * windows.width;
    for (std::int64_t x = 0; x < windows.width; ++x) to[x] = sum_at(line, x);
  }
  KOKKOS_INLINE_FUNCTION T sum_at(std::int64_t of_line, std::int64_t x) const {
    const std::int64_t y = of_line % windows.height, channel = of_line / windows.height % windows.channels;
    const std::int64_t image = of_line / (windows.height * windows.channels);
    const std::int64_t kernel = windows.kernel[0] * windows.kernel[1];
    T sum = T(0);
    for (std::int64_t i = 0; i < windows.kernel[0]; ++i) {
      const std::int64_t down = y + windows.padding[0] - i;
      if (down < 0 || down % windows.stride[0] != 0 || down / windows.stride[0] >= out_height) continue;
      for (std::int64_t j = 0; j < windows.kernel[1]; ++j) {
        const std::int64_t along = x + windows.padding[1] - j;
        if (along < 0 || along % windows.stride[1] != 0 || along / windows.stride[1] >= out_width) continue;
        const std::int64_t row =
            (image * out_height + down / windows.stride[0]) * out_width + along / windows.stride[1];
        sum += columns[(row * windows.channels + channel) * kernel + i * windows.kernel[1] + j];
      }
    }
    return sum;
  }
};

}  // namespace

void unfold(Execution on, const Windows& windows, const View& out, const View& images) {
  dispatch_wide("lockstep::unfold", out.dtype, [&]<class T>() {
    run(on, "lockstep::unfold",
        bounded_product(bounded_product(windows.batch, windows.out_height()), windows.out_width()),
        Unfold<T>{data_of<T>(out), data_of<const T>(images), windows, windows.out_height(), windows.out_width()},
        num_elements(out));
  });
}

void fold(Execution on, const Windows& windows, const View& images, const View& columns) {
  dispatch_wide("lockstep::fold", images.dtype, [&]<class T>() {
    run(on, "lockstep::fold", bounded_product(bounded_product(windows.batch, windows.channels), windows.height),
        Fold<T>{data_of<T>(images), data_of<const T>(columns), windows, windows.out_height(), windows.out_width()},
        num_elements(images));
  });
}

}  // namespace lockstep::kernels
