// How the plain values of a checkpoint return to the objects of a state.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/state/format.hpp"
#include "engine/state/tree.hpp"

namespace lockstep::state {

// One optimizer of the state. The constructor creates the state tensors that the checkpoint has, so that they are part
// of the tree, and reads the plain values. Unless commit() is called, the destructor removes what the constructor
// created.
class OptimizerLoad {
 public:
  // Throws Error if the checkpoint has another type, other groups, or values of another form. With `partial`, missing
  // values are not an error, and parameters without state in the checkpoint keep theirs.
  OptimizerLoad(const std::string& name, optim::Optimizer& optimizer, const Index& index, bool partial);
  ~OptimizerLoad();
  OptimizerLoad(const OptimizerLoad&) = delete;
  OptimizerLoad& operator=(const OptimizerLoad&) = delete;
  // Sets step counts and hyperparameters; removes the state that the checkpoint does not have.
  void commit();
  // Whether the key belongs to state that commit() removes.
  bool removes(const std::string& key) const;

 private:
  using Keys = std::map<std::string, Tensor>;  // of the state of a parameter

  void check_groups(const Index& index, bool partial);
  Keys loaded_keys(const std::vector<std::string>& originals, const Keys& held, const optim::Options& options,
                   const Index& index, bool partial);
  std::optional<std::int64_t> saved_step(const std::vector<std::string>& originals, const Index& index) const;

  std::string name_;
  optim::Optimizer& optimizer_;
  optim::Optimizer::StateDict before_;  // names, keys and options
  optim::Optimizer::StateDict after_;
  std::vector<std::string> removed_;  // prefixes of keys
  bool is_committed_ = false;
};

}  // namespace lockstep::state
