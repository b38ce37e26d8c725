// Binding what a call was given to the names it declares: positional ones in order, then named ones, then defaults.
//
//   const Arguments at("Linear", declared, inputs);
//   const std::int64_t in = at.size("in");
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/build.hpp"

namespace lockstep::nn {

class Arguments {
 public:
  // Throws Error for a missing, unknown or doubled argument, naming what is called and what it takes. `declared` must
  // outlive this.
  Arguments(std::string_view called, const std::vector<ArgumentInfo>& declared, const Inputs& given);

  const Value& operator[](std::string_view name) const;
  const Tensor& tensor(std::string_view name) const;
  std::int64_t size(std::string_view name) const;     // a positive integer
  std::int64_t integer(std::string_view name) const;  // 0 or more
  double number(std::string_view name) const;
  bool boolean(std::string_view name) const;

 private:
  [[noreturn]] void wrong(std::string_view name, const char* wanted, const Value& found) const;
  std::string called_;
  const std::vector<ArgumentInfo>& declared_;
  std::vector<Value> values_;
};

// The one tensor that `method` of a module is called with; cheaper than binding. Throws Error for anything else.
const Tensor& only_input(const Module& module, std::string_view method, const Inputs& inputs);
// Throws Error naming the methods of the module when `method` is not "forward".
void require_forward(const Module& module, std::string_view method);

}  // namespace lockstep::nn
