#include "engine/parallel/waits.hpp"

#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/rank_context.hpp"

namespace lockstep::parallel {
namespace {

const char* const begin_mark = "<!-- begin: wait_edges_table() -->\n";
const char* const end_mark = "<!-- end: wait_edges_table() -->\n";

TEST(WaitEdges, AreTheTableOfTheReadme) {
  const std::string path = LOCKSTEP_SOURCE_DIR "/engine/parallel/README.md";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::ostringstream read;
  read << file.rdbuf();
  const std::string text = read.str();
  const std::size_t begin = text.find(begin_mark), end = text.find(end_mark);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << path << " has lost " << begin_mark << end_mark;
  const std::size_t from = begin + std::string(begin_mark).size();
  EXPECT_EQ(text.substr(from, end - from), wait_edges_table())
      << "Replace the lines between the two marks in " << path << " by these:\n\n"
      << wait_edges_table();
}

// Every defect of order in this folder leaves out an edge, except the one that prefetches a wrong group.
TEST(WaitEdges, CoverTheDefectsOfOrder) {
  std::set<std::string_view> covered, of_order;
  for (const WaitEdgeInfo& row : wait_edges())
    covered.insert(defect_table()[static_cast<std::size_t>(row.left_out_by) - 1].name);
  for (int i = 0; i < num_defects(); ++i)
    if (const DefectInfo& info = defect_table()[i]; info.place == "engine/parallel" && info.kind == DefectKind::order)
      of_order.insert(info.name);
  EXPECT_EQ(of_order.erase("shard_prefetch_wrong_group"), 1u);
  EXPECT_EQ(covered, of_order);
}

TEST(WaitEdges, AreLeftOutByTheirDefectOnly) {
  RankContext context(0, 1);
  const RankScope scope(context);
  device::Stream& compute = device::stream({}, device::Role::compute);
  device::Stream& copy_in = device::stream({}, device::Role::copy_in);
  const auto finishes = [&] {
    bool finished = false;
    device::launch_deferred(
        copy_in, "test", {}, [](const device::Pointers&) {}, [&finished](const device::Pointers&) { finished = true; });
    wait(WaitEdge::compute_for_all_gather, compute, copy_in);
    const bool seen = finished;
    copy_in.synchronize();
    return seen;
  };
  EXPECT_TRUE(finishes());
  arm_defect(Defect::shard_compute_ignores_gather);
  EXPECT_FALSE(finishes());
  arm_defect(Defect::shard_gather_ignores_copy_in);
  EXPECT_TRUE(finishes());
  arm_defect(Defect::none);
}

}  // namespace
}  // namespace lockstep::parallel
