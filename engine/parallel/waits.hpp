// Every wait of the parallel APIs is an enumerated edge: which stream waits, for which work, and why.
//
// wait() is the only function of this folder that makes a stream wait; collectives (engine/comm) and copies between
// devices (engine/device) also wait for the current stream. A seeded defect of order leaves out the waits of its edges,
// in wait() only. The table "Which stream waits for which" of the README is wait_edges_table().
//
//   wait(WaitEdge::all_gather_for_copy_in, streams.all_gather, streams.copy_in);
//
// To add a wait: add an edge here and a row in waits.cpp, a seeded defect that leaves it out (engine/core/defects.hpp),
// a scenario in which the order check reports the two accesses, and the new table to the README (the test prints it).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/comm/process_group.hpp"
#include "engine/core/defects.hpp"
#include "engine/device/stream.hpp"

namespace lockstep::parallel {

enum class WaitEdge : std::uint8_t {
  // ---- replicate ----
  compute_for_bucket_all_reduce,
  compute_for_bucket_division,
  // ---- fully_shard: all-gather ----
  copy_in_for_optimizer,
  copy_in_for_shard_writes,
  copy_in_for_kept_shards,
  all_gather_for_copy_in,
  compute_for_all_gather,
  compute_for_unused_all_gather,
  compute_for_unused_copy_in,
  copy_in_for_copy_out,
  all_gather_for_copy_out,
  all_gather_for_unsharded_use,
  // ---- fully_shard: reduction ----
  reduce_scatter_for_gradients,
  compute_for_previous_reduce_scatter,
  compute_for_earlier_reduction,
  all_reduce_for_reduce_scatter,
  compute_for_reduction,
  // ---- fully_shard: offload to the host ----
  host_for_copy_in,
  host_add_for_offload,
  host_for_offload  // the last one: waits.cpp counts on it
};

struct WaitEdgeInfo {
  WaitEdge edge;
  const char* waiting;  // the stream that waits, and when
  const char* awaited;  // the work that it waits for
  const char* reason;
  Defect left_out_by;  // the seeded defect that leaves this wait out
};
std::span<const WaitEdgeInfo> wait_edges();  // in the order of the enumeration
// A Markdown table with one row per edge; ends with a newline.
std::string wait_edges_table();

// Later launches on `waiting` run after the event, after all launches on `awaited` so far, or after the collective. The
// last form throws CollectiveError when the collective failed.
void wait(WaitEdge edge, device::Stream& waiting, const device::Event& event);
void wait(WaitEdge edge, device::Stream& waiting, device::Stream& awaited);
void wait(WaitEdge edge, device::Stream& waiting, const comm::Work& work);

}  // namespace lockstep::parallel
