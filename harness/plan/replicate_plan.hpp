// The collectives of one replicated module, computed from events and independently of the engine.
//
// The first forward compares the parameters of the ranks (start_up) and broadcasts those of rank 0. Each backward with
// gradient synchronization that reaches the module averages its gradients in buckets. The first such backward has one
// bucket per dtype; the next forward rebuilds the buckets in gradient order and broadcasts them (two small
// collectives). With find_unused_parameters, the buckets are filled in registration order and never rebuilt, and each
// backward adds an all-reduce of the map of used parameters. A recorded forward that finds other frozen parameters than
// the one before starts with the first buckets again, without a new comparison of parameters.
//
// Order: a bucket is reduced when it waits for no parameter and all buckets before it are issued. A parameter that this
// backward does not reach is not waited for if it holds a gradient of an earlier backward without synchronization, or
// with find_unused_parameters. A parameter that is reached but receives no gradient delays its bucket to the end of the
// backward.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/plan/bucket_plan.hpp"
#include "harness/plan/collectives.hpp"
#include "harness/plan/facts.hpp"

namespace lockstep::plan {

struct Axis {
  std::string name;
  int size = 1;
};

struct ReplicateChoices {
  std::string owner;
  std::vector<Axis> axes;  // of the mesh, the innermost last
  std::set<ModuleId> ignored;
  std::optional<std::int64_t> bucket_cap_bytes;
  bool find_unused_parameters = false;
  bool broadcast_buffers = false;
};

// Called for each collective, with all members set except phase, line and turn.
using IssueCollective = std::function<void(Collective)>;

class ReplicatePlan {
 public:
  // A parameter slot of a module.
  struct Slot {
    ModuleId module = 0;
    std::size_t index = 0;  // among its parameters
    friend auto operator<=>(const Slot&, const Slot&) = default;
  };
  // The tensors that replicate applies to.
  struct CoveredTensors {
    std::vector<std::pair<Slot, TensorId>> parameters;  // frozen ones too, in registration order
    std::vector<TensorId> buffers;
  };
  // `find_covered` finds them at the time of the call. `awaited`: the parameters that the current backward will reach.
  ReplicatePlan(ReplicateChoices choices, std::function<CoveredTensors()> find_covered, const Facts& facts,
                const std::set<TensorId>& awaited, IssueCollective issue);

  void set_gradient_sync(bool value) { sync_ = value; }
  void enter(bool recording, bool in_backward);  // a forward; recomputations are not reported
  void backward_reaches();                       // the outputs of the module
  void gradient(TensorId parameter);             // the parameter has received a gradient
  bool owns(TensorId parameter) const;           // its gradient is averaged
  void end_backward();

 private:
  struct Member {
    Slot slot;
    TensorId id = 0;
    DType dtype = DType::float32;
    int device = 0;
    friend bool operator==(const Member&, const Member&) = default;
  };
  void synchronize_parameters();
  void update_buckets(bool recording);
  std::vector<Member> find_trained() const;
  void reset_buckets();
  std::vector<BucketMember> bucket_members() const;
  void settle_without_gradient(std::size_t member);
  void reduce_ready();
  void broadcast_values(const std::vector<TensorId>& tensors, const char* family);
  void issue_on_all_axes(const char* family, const char* operation, std::int64_t bytes, bool least);

  ReplicateChoices choices_;
  std::function<CoveredTensors()> find_covered_;
  const Facts& facts_;
  const std::set<TensorId>& awaited_;
  IssueCollective issue_;
  bool started_ = false;
  bool sync_ = true;             // the gradient synchronization flag
  bool forward_sync_ = true;     // its value at the last forward
  std::vector<Member> members_;  // averaged parameters in registration order, from the last reset of the buckets
  std::map<TensorId, std::size_t> index_of_;  // of a parameter in members_
  std::set<TensorId> unreduced_;              // have gradients of backwards without synchronization; some may be frozen
  BucketList buckets_;
  bool order_known_ = false;
  std::vector<int> gradient_order_;  // indices of members, in the order of their gradients
  // of the current backward
  bool reached_ = false;
  bool reduces_ = false;
  std::set<std::size_t> settled_;  // members that no bucket waits for
  std::size_t next_bucket_ = 0;
};

}  // namespace lockstep::plan
