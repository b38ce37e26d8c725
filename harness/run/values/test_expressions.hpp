// For tests: evaluates expressions on one rank on the cpu.
#pragma once

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "engine/core/rank_context.hpp"
#include "harness/run/values/evaluate.hpp"

namespace lockstep::run::testing_support {

class Expressions : public ::testing::Test {
 protected:
  Expressions() : rank_(context_), frame_(std::make_shared<Frame>()) {
    frame_->session = &session_;
    session_.device = {device::Kind::cpu, 0};
  }
  Value value(const std::string& text) {
    return evaluate(*scenario::parse_expression(text, scenario::Place{"t.yaml", 1, 1}), Scope{frame_});
  }
  std::string text_of(const std::string& text) { return to_text(value(text)); }
  std::string error(const std::string& text) {
    try {
      return str("no error, but ", describe(value(text)));
    } catch (const Error& thrown) {
      return thrown.what();
    }
  }
  RankContext context_{0, 1};
  RankScope rank_;
  Session session_;
  FramePtr frame_;
};

}  // namespace lockstep::run::testing_support
