#include "engine/comm/nccl_calls.hpp"

#include <cstring>

#include <nccl.h>

#include "engine/core/error.hpp"
#include "engine/core/resources.hpp"

namespace lockstep::comm::nccl {

namespace {

static_assert(sizeof(UniqueId) == NCCL_UNIQUE_ID_BYTES);

void check(const char* call, ncclResult_t result, ncclComm_t communicator) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw ResourceError(str(call, ": ", ncclGetErrorString(result), " (", ncclGetLastError(communicator), ")"),
                      "set NCCL_DEBUG=WARN to see NCCL's own messages");
}

ncclComm_t of(Handle handle) { return static_cast<ncclComm_t>(handle); }

class Library final : public Calls {
 public:
  UniqueId unique_id() override {
    ncclUniqueId made;
    check("ncclGetUniqueId", ncclGetUniqueId(&made), nullptr);
    UniqueId id{};
    std::memcpy(id.bytes, made.internal, sizeof id.bytes);
    return id;
  }
  Handle create(int size, int rank, const UniqueId& id) override {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId given;
    std::memcpy(given.internal, id.bytes, sizeof id.bytes);
    ncclComm_t made = nullptr;
    check("ncclCommInitRankConfig", ncclCommInitRankConfig(&made, size, given, rank, &config), made);
    return made;
  }
  bool poll(Handle handle) override {
    ncclResult_t state = ncclSuccess;
    check("ncclCommGetAsyncError", ncclCommGetAsyncError(of(handle), &state), of(handle));
    check("NCCL", state, of(handle));
    return state == ncclSuccess;
  }
  void abort(Handle handle) noexcept override { ncclCommAbort(of(handle)); }
  void destroy(Handle handle) noexcept override {
    // A non-blocking communicator is finalized before it is destroyed. Its collectives have ended.
    if (ncclCommFinalize(of(handle)) == ncclSuccess)
      ncclCommDestroy(of(handle));
    else
      ncclCommAbort(of(handle));
  }
  void group_start() override { check("ncclGroupStart", ncclGroupStart(), nullptr); }
  void group_end() override { check("ncclGroupEnd", ncclGroupEnd(), nullptr); }
  void send(const void* from, std::size_t bytes, int peer, Handle handle, StreamHandle stream) override {
    check("ncclSend", ncclSend(from, bytes, ncclUint8, peer, of(handle), static_cast<cudaStream_t>(stream)),
          of(handle));
  }
  void receive(void* to, std::size_t bytes, int peer, Handle handle, StreamHandle stream) override {
    check("ncclRecv", ncclRecv(to, bytes, ncclUint8, peer, of(handle), static_cast<cudaStream_t>(stream)), of(handle));
  }
};

}  // namespace

Calls* library_calls() {
  static Library library;
  return &library;
}

}  // namespace lockstep::comm::nccl
