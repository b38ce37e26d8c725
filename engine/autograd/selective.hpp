// The results that a selective checkpoint keeps (checkpoint.hpp). The first forward of the region decides for each call
// of an operation, and keeps the results of the chosen ones. A recomputation returns them instead of computing.
//
// Calls are counted per operation, in the order of the first forward. Operations without recording (NoGrad) are not
// seen: they are always computed, and work of the parallel APIs that runs in one of the two passes only, such as an
// all-gather, shifts no count. A kept result of a random operation has the state of the generator after it, so that
// later operations draw the numbers of the forward.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/autograd/checkpoint.hpp"
#include "engine/autograd/computed.hpp"
#include "engine/core/random.hpp"

namespace lockstep {

class KeptResults {
 public:
  // `title`: begins messages.
  KeptResults(SavePolicyFunction policy, bool restore_random_state, std::string title);

  // Both throw the errors of the operation. The first: computes, and keeps if the policy says so.
  std::vector<Tensor> first(const char* operation, const ComputationLayer::Compute& compute);
  // Returns the kept results, or computes. Throws Error for kept results that were changed in place, and for a call of
  // an operation that the first forward made less often.
  std::vector<Tensor> again(const char* operation, const ComputationLayer::Compute& compute);
  void begin_recomputation();

  // Within the scope operations pass these results.
  class Scope : public ComputationLayer {
   public:
    Scope(KeptResults* kept, bool recomputes)
        : ComputationLayer(Position::innermost), kept_(kept), recomputes_(recomputes) {}
    std::vector<Tensor> results(const char* operation, const Compute& compute) override;

   private:
    KeptResults* kept_;
    bool recomputes_;
  };

 private:
  struct Results {
    std::vector<Tensor> tensors;  // aliases without history
    std::vector<std::uint64_t> versions;
    std::optional<Generator::State> after;  // if the operation drew numbers
  };
  struct Calls {
    std::vector<std::optional<Results>> calls;  // by number; empty: to be computed again
    std::size_t num_again = 0;                  // in the current recomputation
  };
  void require_unchanged(const char* operation, std::size_t number, const Results& kept) const;

  SavePolicyFunction policy_;
  bool restore_random_state_;
  std::string title_;
  std::map<std::string_view, Calls> operations_;
};

}  // namespace lockstep
