// Data parallelism by replication: every rank holds the full module, and gradients are averaged over the ranks.
//
// replicate() adds hooks and does not communicate. At the first forward the ranks compare their parameters and all get
// the values of rank 0. Each backward averages gradients in buckets; the all-reduce of a bucket starts when the bucket
// is complete and overlaps the rest of backward. At the end of backward the mean is added to .grad: the sum in the
// fixed order of engine/comm, divided once. All ranks of the mesh run the same forwards and backwards.
//
//   replicate(model, {});
//   Structure loss = ...model->call(x)...;  backward({loss});       // the gradients of model are means over the ranks
//
// After (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020). Departures:
// the mean divides after the sum; gradients of backwards without synchronization are reduced apart from .grad; and an
// unused parameter is an error at the end of the first backward that does not reach it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

struct ReplicateOptions {
  std::optional<DeviceMesh> mesh;       // unset: all ranks; sums over several axes go axis by axis, the inner one first
  std::vector<nn::ModulePtr> ignored;   // left out with all modules below them
  std::optional<double> bucket_cap_mb;  // in MiB, for all buckets; unset: 25, and 1 for the first bucket
  bool gradient_as_bucket_view = false;  // .grad is a view of the bucket, which saves a copy
  bool find_unused_parameters = false;   // parameters may get no gradient, on some ranks or on all
  bool broadcast_buffers = false;        // all ranks take the buffers of rank 0 before each forward
  nn::Structure device_id;  // the index or name of a device; inputs are moved there if it is an accelerator
  std::string name;         // of the module, for log and messages; empty: its type
};

// Throws Error when the module is replicated or fully sharded already, or when the options do not fit it.
void replicate(const nn::ModulePtr& module, const ReplicateOptions& options = {});
// Whether later forwards, and their backwards, synchronize gradients. Without synchronization full gradients are kept
// back until a synchronized backward. With `recurse` this holds for all replicated modules below, too. Returns the
// number of replicated modules.
int set_requires_gradient_sync(const nn::ModulePtr& module, bool value, bool recurse = true);
// Runs the hook before the all-reduce of each bucket, on its stream; for delays and measurements. Throws Error when the
// module is not replicated.
void set_before_all_reduce(const nn::ModulePtr& module, std::function<void()> hook);

}  // namespace lockstep::parallel
