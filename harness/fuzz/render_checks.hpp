// The checks of a training, and the state that they share with its steps (render_steps.cpp).
#pragma once

#include <cstddef>
#include <string>

#include "harness/fuzz/render_internal.hpp"

namespace lockstep::fuzz {

class Checks {
 public:
  Checks(const Program& program, bool for_peer, Json& steps);

 protected:
  void put(const std::string& verb, const Json& arguments) { steps_.push_back({{verb, arguments}}); }
  void put(const std::string& verb, const Json& arguments, const std::string& as) {
    steps_.push_back({{verb, arguments}, {"as", as}});
  }
  void record(int index, const Json& values);  // for the peer
  std::string own(std::size_t k) const;        // microbatch k of this rank
  void evaluate();
  void expect_resharded(const Step& step);
  void keep_input_gradients(const std::string& loss, const Step& step);
  void compare_input_gradients(const Step& step, int index);
  void compare_losses(const Step& step);
  void compare_models();
  void compare_states();
  void compare(const std::string& actual, const std::string& expected);
  void compare_gradients(const std::string& actual, const std::string& expected);
  bool is_on_host() const;

  const bool for_peer_;
  const Program& program_;
  const Parallel* parallel_;  // of the model under test
  Json& steps_;
  bool exact_ = true;
  std::string me_, x_;  // the index of this rank's inputs, and the inputs of the step

 private:
  void gather_losses();
  void compare_test();
  void compare_plainly(const std::string& model);
  Json allowance(const std::string& actual, const std::string& expected) const;
};

}  // namespace lockstep::fuzz
