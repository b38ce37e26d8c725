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
  Windows of;
  std::int64_t out_height, out_width;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const {
    const std::int64_t column = row % out_width, line = row / out_width % out_height;
    const std::int64_t image = row / (out_width * out_height);
    const std::int64_t top = line * of.stride[0] - of.padding[0], left = column * of.stride[1] - of.padding[1];
    T* to = out + row * of.channels * of.kernel[0] * of.kernel[1];
    for (std::int64_t channel = 0; channel < of.channels; ++channel)
      for (std::int64_t y = top; y < top + of.kernel[0]; ++y) {
        const bool inside = y >= 0 && y < of.height;
        const T* const from = images + ((image * of.channels + channel) * of.height + (inside ? y : 0)) * of.width;
        for (std::int64_t x = left; x < left + of.kernel[1]; ++x)
          *to++ = inside && x >= 0 && x < of.width ? from[x] : T(0);
      }
  }
};

// Computes one line of one channel of one image.
template <class T>
struct Fold {
  T* images;
  const T* columns;
  Windows of;
  std::int64_t out_height, out_width;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const {
    const std::int64_t y = index % of.height, channel = index / of.height % of.channels;
    const std::int64_t image = index / (of.height * of.channels);
    const std::int64_t kernel = of.kernel[0] * of.kernel[1];
    T* const to = images + index * of.width;
    for (std::int64_t x = 0; x < of.width; ++x) {
      T sum = T(0);
      for (std::int64_t i = 0; i < of.kernel[0]; ++i) {
        const std::int64_t down = y + of.padding[0] - i;
        if (down < 0 || down % of.stride[0] != 0 || down / of.stride[0] >= out_height) continue;
        for (std::int64_t j = 0; j < of.kernel[1]; ++j) {
          const std::int64_t along = x + of.padding[1] - j;
          if (along < 0 || along % of.stride[1] != 0 || along / of.stride[1] >= out_width) continue;
          const std::int64_t row = (image * out_height + down / of.stride[0]) * out_width + along / of.stride[1];
          sum += columns[(row * of.channels + channel) * kernel + i * of.kernel[1] + j];
        }
      }
      to[x] = sum;
    }
  }
};

template <class F>
void dispatch_wide(DType dtype, F&& f) {
  if (dtype == DType::float32) return f.template operator()<float>();
  LOCKSTEP_CHECK(dtype == DType::float64, "windows of ", name_of(dtype));
  f.template operator()<double>();
}

}  // namespace

void unfold(Space space, const Windows& windows, const View& out, const View& images) {
  dispatch_wide(out.dtype, [&]<class T>() {
    run(space, "lockstep::unfold",
        bounded_product(bounded_product(windows.batch, windows.out_height()), windows.out_width()),
        Unfold<T>{static_cast<T*>(out.data), static_cast<const T*>(images.data), windows, windows.out_height(),
                  windows.out_width()});
  });
}

void fold(Space space, const Windows& windows, const View& images, const View& columns) {
  dispatch_wide(images.dtype, [&]<class T>() {
    run(space, "lockstep::fold", bounded_product(bounded_product(windows.batch, windows.channels), windows.height),
        Fold<T>{static_cast<T*>(images.data), static_cast<const T*>(columns.data), windows, windows.out_height(),
                windows.out_width()});
  });
}

}  // namespace lockstep::kernels
