#include "harness/cli/inspect_commands.hpp"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/core/defects.hpp"
#include "harness/cli/test_support.hpp"

namespace lockstep::cli {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Inspect : public testing::Test {
 protected:
  Inspect() {
    home_.add("a", passes);
    home_.add("folder/b", is_skipped);
  }
  Ended run(std::vector<std::string> arguments) const { return lockstep(home_, std::move(arguments)); }
  Home home_;
};

TEST_F(Inspect, ListsScenariosWithTheirCases) {
  const Ended text = run({"list"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("a "), HasSubstr("folder/b")));
  EXPECT_THAT(run({"list", "folder/*"}).out, Not(HasSubstr("\na ")));
  const auto rows = nlohmann::json::parse(run({"list", "--json"}).out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["scenario"], "a");
  EXPECT_EQ(rows[1]["scenario"], "folder/b");
}

TEST_F(Inspect, ExplainsStepsAndCases) {
  const Ended ended = run({"explain", "a"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("A test."), HasSubstr("expect_equal"), HasSubstr("world_size=1")));
  EXPECT_THAT(ended.out, Not(HasSubstr("Collectives that rank 0 must")));
}

TEST_F(Inspect, ExplainsThePlanOfTheCaseThatIsAsked) {
  home_.add("replicated",
            "ranks: {world_size: [2, 4], launch: [thread]}\nsteps:\n  - {model: \"Linear(2, 2)\", as: net}\n"
            "  - replicate: net\n  - forward: {loss: \"sum(net(ones(1, 2)))\"}\n  - backward: loss\n"
            "  - expect: net.weight.grad != none\n");
  EXPECT_THAT(
      run({"explain", "replicated"}).out,
      AllOf(HasSubstr("case [world_size=2,launch=thread,device=cpu]; --case shows another"), HasSubstr("all_reduce")));
  EXPECT_THAT(run({"explain", "replicated", "--case", "world_size=4"}).out,
              HasSubstr("case [world_size=4,launch=thread,device=cpu]"));
  const Ended none = run({"explain", "replicated", "--case", "world_size=3"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no case of replicated matches world_size=3"));
}

TEST_F(Inspect, ValidatesFilesAndRoutines) {
  const Ended sound = run({"validate"});
  EXPECT_EQ(sound.code, 0);
  EXPECT_EQ(sound.out, "2 files are valid\n");
  std::ofstream(home_ / "scenarios/lib/r.yaml") << "routine: r\nsummary: A test.\nsteps:\n  - no_such_verb: 1\n";
  home_.add("wrong", "ranks: {world_size: [1]}\nsteps:\n  - no_such_verb: 1\n  - also_no_verb: 1\n");
  const Ended wrong = run({"validate"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.out,
              AllOf(HasSubstr("wrong.yaml:5:5: "), HasSubstr("wrong.yaml:6:5: "), HasSubstr("r.yaml:4:5: ")));
  EXPECT_THAT(wrong.out, HasSubstr("\n3 errors in 2 of 4 files\n"));
  EXPECT_EQ(run({"validate", "a"}).out, "1 file is valid\n");
}

TEST_F(Inspect, ValidatesWhatTheCasesOfASoundFileDo) {
  home_.add("silent", "ranks: {world_size: [1]}\nsteps:\n  - let: {x: 1}\n");
  const Ended ended = run({"validate", "silent"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("no step checks anything"), HasSubstr("\n1 error in 1 of 1 file\n")));
}

TEST_F(Inspect, EscapesCharactersThatSteerTheTerminal) {
  std::ofstream(home_ / "scenarios/steers.yaml") << "scenario: steers\nsummary: \"A \\e[31mtest.\"\n" << passes;
  std::ofstream(home_ / "scenarios/wrong.yaml")
      << "scenario: wrong\nsummary: A test.\nranks: {world_size: [1]}\nsteps:\n"
         "  - \"\\e[31mverb\": 1\n";
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"explain", "steers"}, {"list", "steers", "--json"}, {"validate", "wrong"}}) {
    const Ended ended = run(arguments);
    EXPECT_THAT(ended.out, AllOf(HasSubstr("1b[31m"), Not(HasSubstr("\x1b")))) << arguments.front();
  }
  home_.add("b", fails);
  run({"run", "b", "--results", home_ / "r.jsonl"});
  std::ofstream(home_ / "r.jsonl.dumps/case-1/case.txt") << "\x1b[31mb\n";
  EXPECT_THAT(run({"explain-hang", home_ / "r.jsonl"}).out, testing::StartsWith("\\x1b[31mb\n"));
}

TEST_F(Inspect, PrintsTheSchemaAndTheReference) {
  EXPECT_EQ(nlohmann::json::parse(run({"schema"}).out)["$schema"], "http://json-schema.org/draft-07/schema#");
  EXPECT_THAT(run({"reference"}).out, HasSubstr("expect_equal"));
  EXPECT_EQ(run({"reference", "--documents"}).code, 0);
}

TEST_F(Inspect, ListsEveryDefect) {
  const std::string text = run({"defects"}).out, json = run({"defects", "--json"}).out;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), num_defects());
  const auto first = nlohmann::json::parse(json.substr(0, json.find('\n')));
  EXPECT_EQ(first["name"], defect_table()[0].name);
  EXPECT_EQ(first["seen_by"], name_of(defect_table()[0].kind));
  EXPECT_EQ(first["place"], defect_table()[0].place);
  EXPECT_EQ(first["does"], defect_table()[0].effect);
}

TEST_F(Inspect, ExplainsADumpOrListsSeveral) {
  home_.add("b", fails);
  const std::string results = home_ / "r.jsonl";
  run({"run", "b", "--results", results});
  const Ended one = run({"explain-hang", results});
  EXPECT_EQ(one.code, 0);
  EXPECT_THAT(one.out, testing::StartsWith("b [world_size=1,launch=thread,device=cpu]\nlockstep run 'b' --case "));
  run({"run", "b", "--repeat", "2", "--results", results});
  EXPECT_THAT(run({"explain-hang", results}).out, AllOf(HasSubstr("2 cases have a dump; name the folder of one:\n"),
                                                        HasSubstr("r.jsonl.dumps/case-2  b [")));
  std::ofstream(results + ".dumps/case-1/recorder.jsonl") << "";
  const Ended empty = run({"explain-hang", results + ".dumps/case-1"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, HasSubstr("the flight recorder dump in " + results + ".dumps/case-1 is empty"));
  EXPECT_EQ(run({"explain-hang", home_ / "none"}).code, 2);
}

}  // namespace
}  // namespace lockstep::cli
