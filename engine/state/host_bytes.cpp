#include "engine/state/host_bytes.hpp"

#include <exception>
#include <memory>

#include "engine/device/stream.hpp"
#include "engine/tensor/host.hpp"

namespace lockstep::state {

namespace {

bool is_on_inline_cpu(const Tensor& tensor) {
  return device::is_host(tensor.device()) && device::current_stream(tensor.device()).runs_inline();
}

// Runs the body as a launch. Its errors are thrown here.
template <class F>
void run_now(device::Stream& stream, const char* name, const device::Access& access, F&& body) {
  std::exception_ptr problem;
  device::launch(stream, name, {access}, [&](const device::Pointers& pointers) {
    try {
      body(pointers.at(0));
    } catch (...) {
      problem = std::current_exception();
    }
  });
  stream.synchronize();
  if (problem) std::rethrow_exception(problem);
}

}  // namespace

void with_host_bytes(const Tensor& tensor, const std::function<void(const std::byte*, std::size_t)>& f) {
  if (tensor.num_elements() == 0) return f(nullptr, 0);
  if (!is_on_inline_cpu(tensor) || !tensor.is_contiguous()) {
    const std::vector<std::byte> bytes = to_bytes(tensor);
    return f(bytes.data(), bytes.size());
  }
  const auto size = static_cast<std::size_t>(tensor.num_bytes());
  run_now(device::current_stream(tensor.device()), "read for a checkpoint", read(tensor),
          [&](const std::byte* bytes) { f(bytes, size); });
}

void with_writable_bytes(const Tensor& tensor, const std::function<void(std::byte*)>& f) {
  LOCKSTEP_CHECK(tensor.is_contiguous(), "the bytes of ", describe(tensor), " are not contiguous");
  const device::Access range = write(tensor);
  if (range.bytes == 0) return;
  if (is_on_inline_cpu(tensor)) {
    run_now(device::current_stream(tensor.device()), "load from a checkpoint", range,
            [&](std::byte* bytes) { f(bytes); });
    return;
  }
  const std::unique_ptr<std::byte[]> bytes(new std::byte[range.bytes]);
  f(bytes.get());
  device::write_from_host(*range.memory, range.offset, bytes.get(), range.bytes);
}

void write_row_major(const Tensor& tensor, const std::byte* bytes) { host::write_elements(tensor, bytes); }

Tensor view_of_box(const Tensor& tensor, const Dims& at, const Dims& sizes) {
  Tensor view = tensor;
  for (int dim = 0; dim < at.size(); ++dim)
    if (sizes[dim] != view.sizes()[dim]) view = slice(view, dim, at[dim], at[dim] + sizes[dim]);
  return view;
}

}  // namespace lockstep::state
