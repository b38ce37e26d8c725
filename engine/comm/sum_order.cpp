// Who adds (process_group.hpp, SumOrder).
#include "engine/comm/communicator.hpp"
#include "engine/comm/transport.hpp"
#include "engine/core/error.hpp"
#include "engine/device/capabilities.hpp"
#include "engine/device/device_arena.hpp"

namespace lockstep::comm {

namespace {

[[noreturn]] void refuse(const std::string& why, const std::string& remedy) {
  throw UnsupportedError(str("sums in the order of a library: ", why),
                         str(remedy, ", or leave the order of sums at `fixed`"));
}

// All ranks learn of the same pair.
void require_a_device_per_rank(device::Device device) {
  const std::vector<std::string> ids =
      exchange(world_group(), device::device_arena(device.kind).device_id, "the order of sums");
  std::map<std::string, std::size_t> first;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const auto [found, is_new] = first.emplace(ids[rank], rank);
    if (!is_new)
      refuse(str("ranks ", found->second, " and ", rank, " share the device ", ids[rank]),
             "use no more ranks than devices");
  }
}

void require_library(device::Device device) {
  if (!device::is_accelerator(device) || device::capabilities_of(device).runs_on_host)
    refuse(str("on ", device::name_of(device.kind), " the engine adds"), "use a GPU per rank (--device cuda)");
  if (!nccl_transport().traits().library_sums) refuse("this build has no NCCL", "build with NCCL");
  if (CollectiveIssuer::endpoint_of(world_group()).control->spans_hosts != 0)
    refuse("between hosts the engine adds", "use one host");
  require_a_device_per_rank(device);
}

}  // namespace

void set_sum_order(SumOrder order, device::Device device) {
  if (order == SumOrder::library) require_library(device);
  Communicator::current().sum_order = order;
}

}  // namespace lockstep::comm
