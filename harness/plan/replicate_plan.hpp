// The collectives of one replicated module, worked out from events: an independent reading of what replicate promises.
//
// First forward: the ranks agree on the parameters (start_up) and take those of rank 0. Each synchronised backward that
// reaches the module averages its gradients in buckets: one a type in the first, then cut in the order in which
// gradients came, which the next forward agrees on with two small broadcasts. With unused parameters looked for, the
// buckets are cut in registration order once and for all, and each backward counts who used what. A forward that finds
// other parameters frozen than the one before begins anew with the buckets, without a new agreement.
//
// Order: a bucket is reduced as soon as nothing that it waits for is missing and those before it are on their way. What
// this backward does not reach is not waited for if its gradient was kept back before, or if unused parameters are
// looked for; what is reached and gets nothing holds its bucket up to the end of the backward.
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
  std::vector<Axis> axes;  // of the mesh, the inner last
  std::set<ModuleId> ignored;
  std::optional<std::int64_t> bucket_cap_bytes;
  bool find_unused_parameters = false;
  bool broadcast_buffers = false;
};

// Takes what is issued: family, operation and the rest filled in but for phase and line.
using Issue = std::function<void(Collective)>;

class ReplicatePlan {
 public:
  // `covers`: the tensors that the module answers for now, found when they are needed.
  struct Slot {
    ModuleId module = 0;
    std::size_t index = 0;  // among its parameters
    friend auto operator<=>(const Slot&, const Slot&) = default;
  };
  struct Covered {
    std::vector<std::pair<Slot, TensorId>> parameters;  // frozen ones too, in registration order
    std::vector<TensorId> buffers;
  };
  using Cover = std::function<Covered()>;
  // `awaited`: the parameters that the backward which runs comes to.
  ReplicatePlan(ReplicateChoices choices, Cover cover, const Facts& facts, const std::set<TensorId>& awaited,
                Issue issue);

  void set_gradient_sync(bool value) { sync_ = value; }
  void enter(bool recording);           // a forward that is no recomputation
  void backward_reaches();              // the module's outputs
  void gradient(TensorId parameter);    // a gradient has come to that parameter
  bool owns(TensorId parameter) const;  // one of those that are averaged
  void end_backward();

 private:
  struct Member {
    Slot slot;
    TensorId id = 0;
    DType dtype = DType::float32;
    friend bool operator==(const Member&, const Member&) = default;
  };
  void start();
  void follow_changes(bool recording);
  std::vector<Member> trained_now() const;
  void plan_first();
  std::vector<BucketMember> bucket_members() const;
  void reduce_ready();
  void broadcast_values(const std::vector<TensorId>& tensors, const char* family);
  void issue_on_whole(const char* family, const char* operation, std::int64_t bytes, bool least);

  ReplicateChoices choices_;
  Cover cover_;
  const Facts& facts_;
  const std::set<TensorId>& awaited_;
  Issue issue_;
  bool started_ = false;
  bool sync_ = true;             // the flag
  bool forward_sync_ = true;     // as the last forward read it
  std::vector<Member> members_;  // averaged parameters, in registration order, as they were when buckets were cut
  std::map<TensorId, std::size_t> place_of_;  // of a parameter among them
  std::set<Slot> kept_;                       // of members that hold gradients of backwards without synchronisation
  BucketList buckets_;
  bool order_known_ = false;
  std::vector<int> ready_;  // indices of members, in the order of their gradients
  // of the backward
  bool reached_ = false;
  bool collects_ = false;
  std::set<std::size_t> settled_;  // members that nothing more is waited for of
  std::size_t next_bucket_ = 0;
};

}  // namespace lockstep::plan
