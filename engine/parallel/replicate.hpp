// Data parallelism by replication: every rank holds the whole module, and gradients are averaged over the ranks.
//
// replicate() adds hooks; nothing communicates before the first forward, which compares the parameters of all ranks and
// gives every rank the values of rank 0. From then on each backward averages gradients in buckets, started as soon as
// they are complete and overlapping the rest of backward. At its end .grad has the mean added: the sum in the fixed
// order of engine/comm, divided once. All ranks of the mesh run the same forwards and backwards.
//
//   replicate(model, {});
//   Value loss = ...model->call(x)...;  backward({loss});       // model's gradients are the ranks' mean now
//
// After (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020); departures:
// the division comes after the sum, gradients kept back without synchronisation are reduced apart from .grad, and an
// unused parameter is an error at the end of the backward that shows it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/mesh/device_mesh.hpp"
#include "engine/nn/module.hpp"

namespace lockstep::parallel {

struct ReplicateOptions {
  std::optional<DeviceMesh> mesh;        // all ranks unless given; over several axes sums go axis by axis, inner first
  std::vector<nn::ModulePtr> ignored;    // left out with all below them
  std::optional<double> bucket_cap_mb;   // 25 MiB, the first bucket 1 MiB, unless given
  bool gradient_as_bucket_view = false;  // .grad is a view of the bucket: one copy less
  bool find_unused_parameters = false;   // parameters may go without a gradient, on some ranks or all
  bool broadcast_buffers = false;        // rank 0's buffers before each forward
  nn::Value device_id;                   // number, or a device as text: inputs are moved there, if it is an accelerator
  std::string name;                      // of the module, for the log and messages; its type unless given
};

// Throws Error when the module is replicated or fully sharded already, or the options do not fit it.
void replicate(const nn::ModulePtr& module, const ReplicateOptions& options = {});
// Whether the backwards of the forwards from now on synchronise; until they do, full gradients are kept back. With
// `recurse`, of all replicated modules below too. Gives the number of replicated modules that it changed.
int set_requires_gradient_sync(const nn::ModulePtr& module, bool value, bool recurse = true);
// Runs on the stream of the collective before each bucket's all_reduce; for delays and measurements.
void set_before_all_reduce(const nn::ModulePtr& module, std::function<void()> hook);

}  // namespace lockstep::parallel
