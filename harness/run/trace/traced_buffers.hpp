// The memory of parallel APIs in a dry run: blocks without bytes (engine/device/stand_in_memory.hpp) that are counted
// for as long as a run holds them. The planned collectives give their sizes.
//
//   all_gather       input and output, from the issue until the full parameters of its owner exist; in forward until
//                    those of the next one exist, or the forward of the outermost module ends
//   reduce_scatter   the input, from the issue until the next reduction or the end of the backward
//   all_reduce       of a replicated module: the bucket, until the end of the backward
//   broadcast        at start-up: one flat tensor, only while it is sent
//   reduced shards   that are added to earlier gradients: those of the last two reductions
//
// Does nothing on a rank that does not count stand-ins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/device/device.hpp"
#include "engine/tensor/tensor.hpp"
#include "harness/plan/collectives.hpp"

namespace lockstep::run {

class TracedBuffers {
 public:
  struct Owners {
    // The owner is a parameter group.
    std::function<bool(const std::string& owner)> is_group;
    // Gives the full parameters of this owner their memory, if the slots show them. Returns whether they do.
    std::function<bool(const std::string& owner)> install;
  };
  explicit TracedBuffers(Owners owners) : owners_(std::move(owners)) {}

  // Holds the buffers of the collectives that are new since the last call, and frees those that are used up.
  void follow(const std::vector<plan::Collective>& planned, device::Device device);
  // Reduced shards of these bytes are added to gradients.
  void hold_reduced(std::int64_t bytes, device::Device device);
  void end_forward() { copied_ = Gather(); }  // of the outermost module
  void end_backward();

 private:
  void hold(const plan::Collective& one, device::Device device);
  struct Gather {
    std::vector<device::MemoryPtr> buffers;
    bool in_forward = false;
  };
  // Keeps or frees the buffers of a gather whose full parameters exist. False if they do not.
  bool finish(const std::string& owner, Gather& gather);
  Owners owners_;
  std::size_t num_seen_ = 0;
  std::map<std::string, Gather> gathers_;
  Gather copied_;  // the last one that is copied out, in forward
  device::MemoryPtr reduction_;
  std::vector<device::MemoryPtr> buckets_;
  std::deque<device::MemoryPtr> reduced_;
};

// A tensor whose storage has no memory, which is not counted.
Tensor without_memory(const Dims& sizes, DType dtype, device::Device device);

}  // namespace lockstep::run
