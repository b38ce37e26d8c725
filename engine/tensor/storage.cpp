#include "engine/tensor/storage.hpp"

#include "engine/core/error.hpp"
#include "engine/device/capabilities.hpp"
#include "engine/tensor/storage_state.hpp"

namespace lockstep {

device::Memory& Storage::memory() const {
  if (memory_ && device::computes(device_)) [[likely]]
    return *memory_;
  const std::string what = owner.empty() ? str("a storage of ", bytes_, " bytes") : str("`", owner, "`");
  if (!device::computes(device_)) {
    throw Error(str(what, " is on the meta device: it has a shape and no values"),
                "make the model on cpu or sim, or give it memory before it is used");
  }
  if (bytes_ == 0) {
    throw Error(str(what, " on ", device::to_text(device_), " is empty and has no memory"), "skip empty tensors");
  }
  throw Error(str("the memory of ", what, " on ", device::to_text(device_), " is released",
                  state.empty() ? std::string() : str(" (", state, ")")),
              state == state_model_dropped ? "keep the model until the last backward through its graphs"
                                           : "unshard it before it is read");
}

void Storage::attach(device::MemoryPtr memory) {
  LOCKSTEP_CHECK(memory != nullptr, "attach() without memory to `", owner, "`; use release()");
  if (memory->device() != device_) {
    throw Error(str("attaching memory on ", device::to_text(memory->device()), " to a storage on ",
                    device::to_text(device_), owner.empty() ? std::string() : str(" (`", owner, "`)")),
                "allocate it on the device of the storage");
  }
  if (memory->bytes() < bytes_) {
    throw Error(str("attaching ", memory->bytes(), " bytes to a storage of ", bytes_, " bytes",
                    owner.empty() ? std::string() : str(" (`", owner, "`)")),
                "allocate at least the bytes of the storage");
  }
  memory_ = std::move(memory);
}

}  // namespace lockstep
