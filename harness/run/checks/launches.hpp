// The check expect_launches: the launches of a window, as the trace of the rank recorded them
// (engine/device/trace.hpp). The step notes what it expects. The launches are judged at the end of the case, when all
// of them have ended, so the check orders nothing.
//
//   LaunchCheck check{site, "sim:0", window};
//   check.concurrent = {"compute linear#1 | all_gather all_gather#2"};
//   checks.add(std::move(check));
//   ...
//   checks.judge(evidence, fail);            // on every rank, after synchronize_all
//
// Judging also holds the trace against the rank's own numbers: launches run as the clocks of the order check say, and
// the samples of memory have the peak and the end of the statistics.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/trace.hpp"
#include "harness/run/checks/checks.hpp"
#include "harness/run/observe/observation.hpp"

namespace lockstep::run {

struct LaunchCheck {
  using Texts = std::vector<std::string>;
  Site site;
  std::string device;  // "sim:0": launches on streams of other devices do not count
  LaunchRange window;
  Texts streams{};                                      // of `exactly` and `in_order`; empty: those of the texts
  std::optional<Texts> exactly{}, in_order{}, never{};  // of texts "stream name"
  std::optional<Texts> ordered{}, concurrent{};         // of texts "A < B" and "A | B"
};

// Throws Error for a text of another form, or one that names no stream.
void check_launch_texts(const LaunchCheck& check);

// Why the launches of the trace are not those of the check; empty if they are. `check` has passed check_launch_texts.
std::string launches_off(const device::Trace& trace, const LaunchCheck& check);

class LaunchChecks {
 public:
  // The number of launches so far, dropped ones included. The first call starts the trace of the rank.
  std::size_t num_traced();
  void add(LaunchCheck check) { checks_.push_back(std::move(check)); }
  // A window without a launch makes the check trivial. Needs synchronized streams.
  void judge(verdict::Evidence& evidence, const Fail& fail) const;

 private:
  std::vector<LaunchCheck> checks_;
  std::optional<device::MemoryWindow> memory_;  // since the trace started
};

}  // namespace lockstep::run
