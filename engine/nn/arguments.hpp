// Binds the arguments of a call to the declared names: positional arguments in order, then named ones, then defaults.
//
//   const Arguments arguments("Linear", declared, inputs);
//   const std::int64_t in = arguments.size("in");
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/nn/build.hpp"

namespace lockstep::nn {

class Arguments {
 public:
  // Throws Error, with the signature, for a missing, unknown or repeated argument. `declared` must outlive this object.
  Arguments(std::string_view called, const std::vector<ArgumentInfo>& declared, const Inputs& given);

  // Each throws Error if the argument has another kind or is out of range. `name` must be declared.
  const Structure& operator[](std::string_view name) const;
  const Tensor& tensor(std::string_view name) const;
  std::int64_t size(std::string_view name) const;     // a positive integer
  std::int64_t integer(std::string_view name) const;  // 0 or more
  double number(std::string_view name) const;
  bool boolean(std::string_view name) const;

 private:
  [[noreturn]] void wrong(std::string_view name, const char* wanted, const Structure& found) const;
  std::string called_;
  const std::vector<ArgumentInfo>& declared_;
  std::vector<Structure> values_;
};

// The only input of a call of "forward": one tensor, positional or named `x`. Cheaper than Arguments. Throws Error for
// other inputs and other methods.
const Tensor& only_input(const Module& module, std::string_view method, const Inputs& inputs);
// Throws Error, with the methods of the module, if `method` is not "forward".
void require_forward(const Module& module, std::string_view method);

}  // namespace lockstep::nn
