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

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::float64:
      return ncclFloat64;
    case DType::float16:
      return ncclFloat16;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::int64:
      return ncclInt64;
    case DType::int32:
      return ncclInt32;
    case DType::boolean:
      break;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::mean:
      return ncclAvg;
    case ReduceOp::product:
      return ncclProd;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::sum:
      break;
  }
  return ncclSum;
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
    // A non-blocking communicator is finalized before it is destroyed. That may go on when the call returns
    // (ncclInProgress). Its collectives have ended, so it is then aborted: a wait would depend on the peers.
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
  void all_reduce(const void* from, void* to, std::size_t count, const Sum& sum, Handle handle,
                  StreamHandle stream) override {
    check("ncclAllReduce",
          ncclAllReduce(from, to, count, type_of(sum.dtype), op_of(sum.op), of(handle),
                        static_cast<cudaStream_t>(stream)),
          of(handle));
  }
  void reduce_scatter(const void* from, void* to, std::size_t count, const Sum& sum, Handle handle,
                      StreamHandle stream) override {
    check("ncclReduceScatter",
          ncclReduceScatter(from, to, count, type_of(sum.dtype), op_of(sum.op), of(handle),
                            static_cast<cudaStream_t>(stream)),
          of(handle));
  }
};

}  // namespace

Calls* library_calls() {
  static Library library;
  return &library;
}

}  // namespace lockstep::comm::nccl
