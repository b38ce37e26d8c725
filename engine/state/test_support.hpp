// For the tests of this folder: temporary folders, ranks, small states.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "engine/autograd/autograd.hpp"
#include "engine/comm/test_ranks.hpp"
#include "engine/core/error.hpp"
#include "engine/core/rank_context.hpp"
#include "engine/nn/build.hpp"
#include "engine/optim/optimizer.hpp"
#include "engine/tensor/ops.hpp"

namespace lockstep::state::testing {

using comm::testing_ranks::Kind;
using comm::testing_ranks::require;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-state-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw Error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs the body on all ranks. Returns the first failure, "" if there is none.
inline std::string run(int world_size, const std::function<void(int rank)>& body, Kind kind = Kind::threads) {
  for (const std::string& failure : comm::testing_ranks::run_ranks(world_size, kind, body))
    if (!failure.empty()) return failure;
  return "";
}

inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}
inline void require_error(const std::function<void()>& action, const std::string& part) {
  const std::string text = error_of(action);
  require(text.find(part) != std::string::npos, text + ", and not " + part);
}

// start, start + 1, ...
inline Tensor counting(const Dims& sizes, double start = 0.0, DType dtype = DType::float32) {
  return view(arange(start, start + static_cast<double>(num_elements(sizes)), 1.0, dtype, {}), sizes);
}

inline void require_equal(const Tensor& a, const Tensor& b, const std::string& what) {
  require(a.sizes() == b.sizes() && a.dtype() == b.dtype() && to_bytes(a) == to_bytes(b), what + " differs");
}

}  // namespace lockstep::state::testing
