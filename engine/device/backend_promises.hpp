// The suite that every backend passes, for the tests of this folder (backend_*_conformance_test.cpp). engine/README.md
// lists the promises; each names its tests. The suite runs for every row of the table of kinds that this build has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine/core/error.hpp"
#include "engine/device/capabilities.hpp"
#include "engine/device/cuda/recording_calls.hpp"
#include "engine/device/stream.hpp"
#include "engine/device/test_rank.hpp"

namespace lockstep::device {

inline std::vector<Kind> backends_of_this_build() {
  std::vector<Kind> kinds;
  for (int i = 0; i < num_kinds; ++i) {
    try {
      require_available(static_cast<Kind>(i));
      kinds.push_back(static_cast<Kind>(i));
    } catch (const UnsupportedError&) {
      // The build lacks it.
    }
  }
  return kinds;
}

// The suite runs for cuda against a stand-in, too, on machines without a GPU (instance OnStandIn).
class MaybeOnStandIn {
 public:
  MaybeOnStandIn() {
    const testing::TestInfo* const info = testing::UnitTest::GetInstance()->current_test_info();
    if (std::string(info->test_suite_name()).starts_with("OnStandIn")) stand_in_.emplace(calls_);
  }

  bool is_used() const { return stand_in_.has_value(); }

 private:
  cuda::RecordingCalls calls_;
  std::optional<cuda::StandIn> stand_in_;
};

class BackendPromises : public testing::TestWithParam<Kind> {
 protected:
  Device device() const { return {GetParam(), 0}; }
  const Capabilities& can() const { return capabilities_of(GetParam()); }

  MemoryPtr block_with(const std::string& text) const {
    MemoryPtr memory = allocate(device(), text.size());
    write_from_host(*memory, 0, text.data(), text.size());
    return memory;
  }
  // The bytes of a block as text. A device that does not compute has none, which is an error.
  std::string text_in(const MemoryPtr& memory) const {
    std::string text(memory->bytes(), ' ');
    if (computes(memory->device())) {
      read_to_host(text.data(), *memory, 0, text.size());
    } else {
      EXPECT_THAT(message_of([&] { read_to_host(text.data(), *memory, 0, text.size()); }),
                  testing::HasSubstr("sizes and no values"));
    }
    return text;
  }
  void expect_text(const MemoryPtr& memory, const std::string& expected) const {
    const std::string text = text_in(memory);
    EXPECT_TRUE(text == expected || !computes(memory->device())) << text << " instead of " << expected;
  }
  static void copy(Stream& on, const MemoryPtr& to, const MemoryPtr& from) {
    copy_bytes(on, full_access(to, Mode::write), full_access(from, Mode::read));
  }

  MaybeOnStandIn stand_in_;
  OneRank rank_;
};

}  // namespace lockstep::device
