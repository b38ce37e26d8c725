// The table of transports.
#include "engine/comm/transport.hpp"
#include "engine/core/error.hpp"

namespace lockstep::comm {

namespace {

constexpr TransportKind in_order_of_preference[] = {TransportKind::shared_memory, TransportKind::between_hosts,
                                                    TransportKind::staged, TransportKind::one_device,
                                                    TransportKind::nccl};

class BetweenHosts : public Transport {
 public:
  TransportTraits traits() const override { return {.between_hosts = true, .one_sided = true}; }
  void move(IssuedCollective& issued) const override { wait_until(issued, WaitReason::data); }
};

}  // namespace

const Transport& between_hosts_transport() {
  static const BetweenHosts transport;
  return transport;
}

const Transport& transport_of(TransportKind kind) {
  switch (kind) {
    case TransportKind::shared_memory:
      return shared_memory_transport();
    case TransportKind::staged:
      return staged_transport();
    case TransportKind::one_device:
      return one_device_transport();
    case TransportKind::nccl:
      return nccl_transport();
    case TransportKind::between_hosts:
      break;
  }
  return between_hosts_transport();
}

TransportKind choose_transport(const TransportTraits& needs) {
  for (const TransportKind kind : in_order_of_preference)
    if (transport_of(kind).traits().can(needs)) return kind;
  // Only a GPU per rank may be too much: without NCCL.
  throw UnsupportedError("no transport moves memory of this device between devices",
                         "let all ranks use one device: CUDA_VISIBLE_DEVICES=0");
}

}  // namespace lockstep::comm
