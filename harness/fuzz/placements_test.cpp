#include "harness/fuzz/placements.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/error.hpp"
#include "harness/fuzz/judge.hpp"

namespace lockstep::fuzz {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names(const std::vector<Program>& programs) {
  std::vector<std::string> all;
  for (const Program& program : programs) all.push_back(str(program.device, " ", program.launch));
  return all;
}

verdict::CaseResult passed(const std::string& device, const std::string& launch) {
  verdict::CaseResult row;
  row.device = device;
  row.launch = launch;
  row.status = verdict::Status::PASS;
  row.memory = {{"gathered", 96}, {"parameter", 400}, {"peak_total", 900}};
  return row;
}

std::vector<verdict::CaseResult> everywhere() {
  return {passed("cpu", "thread"), passed("cpu", "process"), passed("sim", "thread"), passed("sim", "process")};
}

Program with_late_evaluation() {
  Program program;
  program.steps.resize(2);
  program.steps[1].evaluates_late = true;
  return program;
}

TEST(Placements, AreBothDevicesAndBothLaunchesFromThatOfTheGrammar) {
  Program program;
  EXPECT_THAT(names(placements_of(program)), ElementsAre("cpu thread", "cpu process", "sim thread", "sim process"));
  program.device = "sim";
  program.launch = "process";
  EXPECT_THAT(names(placements_of(program)), ElementsAre("sim process", "cpu thread", "cpu process", "sim thread"));
}

TEST(Placements, AProgramThatRacesOnSimStaysOnCpu) {
  Program program = with_late_evaluation();
  EXPECT_EQ(placements_of(program).size(), 4u);
  program.parallel.offload = "cpu";
  EXPECT_THAT(names(placements_of(program)), ElementsAre("cpu thread", "cpu process"));
  program.parallel.offload.clear();
  program.move.emplace();
  program.move->parallel.offload = "cpu_pinned";
  EXPECT_THAT(names(placements_of(program)), ElementsAre("cpu thread", "cpu process"));
}

TEST(Placements, AProgramRunsOnceBesideAReplicatedCopy) {
  Program program;
  program.device = "sim";
  program.may_be_replicated = true;
  const std::vector<Program> all = placements_of(program);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[4].device, "sim");
  EXPECT_TRUE(all[4].beside_replicated);
  EXPECT_EQ(all[4].suffix, "_beside_replicated");
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const Program& one) { return one.beside_replicated; }), 1);
  program.beside_replicated = true;
  EXPECT_EQ(placements_of(program).size(), 4u);
}

TEST(Placements, ThePeaksBesideAReplicatedCopyAreItsOwn) {
  std::vector<verdict::CaseResult> rows = everywhere();
  rows.push_back(passed("cpu", "thread"));
  rows[4].scenario = "fuzz/program_beside_replicated";
  rows[4].memory["parameter"] = 800;
  EXPECT_EQ(outcome_of(verdict_of({}, rows)), Outcome::agrees);
}

TEST(Placements, TheSamePeaksEverywhereAgree) {
  EXPECT_EQ(outcome_of(verdict_of({}, everywhere())), Outcome::agrees);
  EXPECT_FALSE(is_of_peaks(verdict_of({}, everywhere())));
}

TEST(Placements, APeakThatDiffersIsADisagreementThatNamesPurposeBytesAndPlaces) {
  std::vector<verdict::CaseResult> rows = everywhere();
  rows[3].memory["gathered"] = 128;
  rows[3].memory["peak_total"] = 932;
  const verdict::CaseResult row = verdict_of({}, rows);
  EXPECT_EQ(outcome_of(row), Outcome::disagrees);
  EXPECT_TRUE(is_of_peaks(row));
  EXPECT_EQ(signature_of(row), "FAIL peaks");
  EXPECT_EQ(row.failure->message,
            "the peaks of memory differ: gathered: 96 bytes on cpu as threads, 128 on sim as processes; peak_total: "
            "900, 932");
}

TEST(Placements, APurposeThatOnePlacementDoesNotHaveCountsAsNoBytes) {
  std::vector<verdict::CaseResult> rows = everywhere();
  rows[1].memory.erase("gathered");
  EXPECT_EQ(verdict_of({}, rows).failure->message,
            "the peaks of memory differ: gathered: 96 bytes on cpu as threads, 0 on cpu as processes");
}

TEST(Placements, OffloadedProgramsHaveTheSamePeaksOnOneDevice) {
  Program program;
  program.parallel.offload = "cpu";
  std::vector<verdict::CaseResult> rows = everywhere();
  rows[2].memory["gathered"] = rows[3].memory["gathered"] = 128;
  EXPECT_EQ(outcome_of(verdict_of(program, rows)), Outcome::agrees) << "an accelerator has copies of the host's shards";
  rows[3].memory["gathered"] = 160;
  EXPECT_EQ(verdict_of(program, rows).failure->message,
            "the peaks of memory differ: gathered: 128 bytes on sim as threads, 160 on sim as processes");
}

TEST(Placements, TheFirstThatFailsStandsForTheProgram) {
  std::vector<verdict::CaseResult> rows = everywhere();
  rows[2].status = verdict::Status::HANG;
  rows[1].memory["gathered"] = 0;
  const verdict::CaseResult row = verdict_of({}, rows);
  EXPECT_EQ(row.status, verdict::Status::HANG);
  EXPECT_EQ(place_of(row), "on sim as threads");
}

}  // namespace
}  // namespace lockstep::fuzz
