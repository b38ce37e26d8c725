#include "harness/scenario/library.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scenario/describe.hpp"
#include "harness/scenario/testing.hpp"

namespace lockstep::scenario {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A temporary folder of scenarios.
class LibraryFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) /
            str("library_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_ / "lib");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << text;
  }
  void write_scenario(const std::string& name, const std::string& steps) const {
    write(name + ".yaml", str("scenario: ", name, "\nsummary: s\nranks: {world_size: [2]}\nsteps:\n", steps));
  }
  std::string root() const { return root_.string(); }
  std::vector<std::string> found(const std::vector<std::string>& what) const {
    std::vector<std::string> out;
    for (const std::string& path : Library(root()).find(what))
      out.push_back(fs::path(path).lexically_relative(root_).string());
    return out;
  }
  std::string errors(const std::string& name) const {
    const Diagnostics diagnostics = Library(root()).validate((root_ / name).string());
    std::string out;
    for (const Diagnostic& item : diagnostics.sorted()) {
      out += str(out.empty() ? "" : "\n", to_text(item.place), ": ", item.message);
    }
    const std::string folder = root_.filename().string() + "/";
    for (std::size_t at = out.find(folder); at != std::string::npos; at = out.find(folder, at))
      out.erase(at, folder.size());
    return out;
  }

  fs::path root_;
};

constexpr const char* step = "  - barrier: {}\n";

TEST_F(LibraryFolder, FindsByNameFileAndFolder) {
  write_scenario("a/one", step);
  write_scenario("a/two", step);
  write_scenario("b/one", step);
  write("lib/r.yaml", "routine: r\nsummary: s\nsteps:\n  - barrier: {}\n");
  EXPECT_THAT(found({}), ElementsAre("a/one.yaml", "a/two.yaml", "b/one.yaml"));
  EXPECT_THAT(found({"a/two"}), ElementsAre("a/two.yaml"));
  EXPECT_THAT(found({"*/one"}), ElementsAre("a/one.yaml", "b/one.yaml"));
  EXPECT_THAT(found({"*"}), ElementsAre("a/one.yaml", "a/two.yaml", "b/one.yaml"));
  EXPECT_THAT(found({"b"}), ElementsAre("b/one.yaml"));
  EXPECT_THAT(found({"lib/r"}), ElementsAre("lib/r.yaml"));
  EXPECT_THAT(found({root() + "/a", "a/one"}), ElementsAre("a/one.yaml", "a/two.yaml"));
  EXPECT_THAT(found({root() + "/a/one.yaml"}), ElementsAre("a/one.yaml"));
  try {
    found({"a/oen"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("no scenario `a/oen`"));
    EXPECT_THAT(error.message(), HasSubstr("did you mean `a/one`?"));
  }
}

TEST_F(LibraryFolder, FindsLinksToNowhere) {
  write_scenario("a/one", step);
  fs::create_symlink(root_ / "nowhere.yaml", root_ / "a/gone.yaml");
  fs::create_symlink("me@here.1", root_ / "a/.#one.yaml");  // of Emacs
  fs::create_directory_symlink(root_ / "a", root_ / "b.yaml");
  EXPECT_THAT(found({"a"}), ElementsAre("a/gone.yaml", "a/one.yaml"));
  EXPECT_THAT(found({}), ElementsAre("a/gone.yaml", "a/one.yaml"));
  EXPECT_THROW(Library(root()).load((root_ / "a/gone.yaml").string()), Error);
}

TEST_F(LibraryFolder, TellsTheRoutinesThatItHasReadByTheirBytes) {
  const auto digests = [&](const std::string& steps) {
    write("lib/r.yaml", "routine: r\nsummary: s\nsteps:\n" + steps);
    write("lib/unused.yaml", "routine: unused\nsummary: s\nsteps:\n  - barrier: {}\n");
    write_scenario("a/one", "  - use: r\n");
    Library library(root());
    library.load((root_ / "a/one.yaml").string());
    return library.routine_digests();
  };
  const auto first = digests("  - barrier: {}\n"), second = digests("  - barrier: {}\n\n");
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].first, "r");
  EXPECT_EQ(first, digests("  - barrier: {}\n"));
  EXPECT_NE(first, second);
}

TEST_F(LibraryFolder, PrefersExistingFileToScenarioName) {
  write_scenario("beyond/one", step);
  write_scenario("elsewhere/beyond/one", step);
  const fs::path before = fs::current_path();
  fs::current_path(root_ / "elsewhere");
  const std::vector<std::string> files = Library(root()).find({"beyond/one.yaml"});
  const std::vector<std::string> names = Library(root()).find({"beyond/one"});
  fs::current_path(before);
  EXPECT_THAT(files, ElementsAre("beyond/one.yaml"));
  EXPECT_THAT(names, ElementsAre((root_ / "beyond/one.yaml").string()));
}

TEST_F(LibraryFolder, ComparesNamesWithPaths) {
  write_scenario("a/one", step);
  write("b/one.yaml", "scenario: a/one\nsummary: s\nranks: {world_size: 2}\nsteps: [{barrier: {}}]\n");
  write("lib/r.yaml", "routine: q\nsummary: s\nsteps: [{barrier: {}}]\n");
  EXPECT_EQ(errors("a/one.yaml"), "");
  EXPECT_EQ(errors("b/one.yaml"), "b/one.yaml:1:11: `scenario` must be the path of the file: `b/one`");
  EXPECT_EQ(errors("lib/r.yaml"), "lib/r.yaml:1:10: `routine` must be the name of the file: `r`");
  EXPECT_THAT(errors("c/none.yaml"), HasSubstr("cannot read"));
  EXPECT_EQ(Library(root()).load(root() + "/a/one.yaml")->file, root_.filename().string() + "/a/one.yaml");
}

TEST_F(LibraryFolder, ChecksUsesOfRoutines) {
  write("lib/work.yaml",
        "routine: work\nsummary: s\nparameters:\n  model: model\n  n: {type: integer, default: 3}\n  kind: text\n"
        "  mesh: {type: mesh, default: all_ranks}\ngives: [out]\nsteps:\n  - let: {out: n}\n");
  const auto of_use = [&](const std::string& rest) {
    write_scenario("a/one", str("  - model: Net()\n    as: m\n  - use: work\n", rest));
    return errors("a/one.yaml");
  };
  EXPECT_EQ(of_use("    with: {model: m, kind: fast}\n    as: {out: mine}\n  - seed: mine\n"), "");
  EXPECT_EQ(of_use("    with: {model: m}\n"), "a/one.yaml:7:5: the routine work needs `kind` under `with`");
  EXPECT_EQ(of_use("    with: {model: m, kind: fast, knid: 2}\n"),
            "a/one.yaml:8:34: unknown argument `knid` of the routine work; did you mean `kind`?");
  EXPECT_EQ(of_use("    with: {model: m, kind: fast, n: 1.5}\n"), "a/one.yaml:8:37: `n`: expected an integer, got 1.5");
  EXPECT_EQ(of_use("    with: {model: x, kind: fast}\n"),
            "a/one.yaml:8:19: unknown name `x`; no earlier step binds it");
  EXPECT_EQ(of_use("    with: {model: m, kind: fast}\n    as: {uot: mine}\n"),
            "a/one.yaml:9:10: the routine work gives no `uot`; did you mean `out`?");
  EXPECT_EQ(of_use("    with: {model: m, kind: fast}\n    as: mine\n"),
            "a/one.yaml:9:9: with `use`, `as` is a map: {its name: my name}");
  write_scenario("a/two", "  - use: wrok\n");
  EXPECT_EQ(errors("a/two.yaml"), "a/two.yaml:5:10: unknown routine `wrok`; did you mean `work`?");

  write_scenario("a/three", "  - model: Net()\n    as: m\n  - use: work\n    with: {model: m, kind: ${rank}}\n");
  EXPECT_THAT(errors("a/three.yaml"), HasSubstr("a/three.yaml:8"));
  write_scenario("a/four", "  - model: Net()\n    as: m\n  - use: work\n    with: {model: m, kind: 'k${rank}'}\n");
  const auto scenario = Library(root()).load(root() + "/a/four.yaml");
  const Step& use = scenario->stages[0].steps[1];
  ASSERT_NE(use.routine, nullptr);
  EXPECT_EQ(use.routine->parameter("n")->default_value->value.as_int(), 3);
  EXPECT_EQ(use.routine->parameter("mesh")->default_value->name, "all_ranks");
  EXPECT_EQ(use.entries[0].value->kind, ExprKind::name);
  EXPECT_EQ(use.entries[1].value->kind, ExprKind::concat);
}

TEST_F(LibraryFolder, ChecksRoutines) {
  write("lib/bad.yaml",
        "routine: bad\nsummary: s\nparameters: {rank: any, m: modle, n: {type: integer, default: x}, k: {default: 1}}\n"
        "gives: [out]\nsteps:\n  - seed: other\n  - let: {m: 1}\n");
  EXPECT_EQ(errors("lib/bad.yaml"),
            "lib/bad.yaml:1:1: the routine gives `out`, which no step binds\n"
            "lib/bad.yaml:3:14: `rank` is a variable or type and cannot be a parameter\n"
            "lib/bad.yaml:3:28: unknown type `modle`; did you mean `model`?\n"
            "lib/bad.yaml:3:63: the default of `n` is not of type integer\n"
            "lib/bad.yaml:3:70: the parameter `k` needs `type`\n"
            "lib/bad.yaml:6:11: unknown name `other`; no earlier step binds it\n"
            "lib/bad.yaml:7:11: `m` is a parameter or matrix name and cannot be bound");
  // The errors of a routine are shown in each file that uses it.
  write_scenario("a/one", "  - use: bad\n    with: {rank: 1, m: 2}\n");
  EXPECT_THAT(errors("a/one.yaml"), HasSubstr("lib/bad.yaml:6:11: unknown name `other`"));
}

TEST_F(LibraryFolder, RefusesRecursionAndDepth) {
  const auto routine = [&](const std::string& name, const std::string& used) {
    write(str("lib/", name, ".yaml"), str("routine: ", name, "\nsummary: s\nsteps:\n",
                                          used.empty() ? std::string(step) : str("  - use: ", used, "\n")));
  };
  routine("a", "b");
  routine("b", "a");
  routine("self", "self");
  write_scenario("x/one", "  - use: a\n");
  EXPECT_THAT(errors("x/one.yaml"), HasSubstr("a routine must not use itself: a -> b -> a"));
  EXPECT_EQ(errors("lib/self.yaml"), "lib/self.yaml:4:10: a routine must not use itself: self -> self");
  for (int i = 1; i < 9; ++i) routine(str("r", i), str("r", i + 1));
  routine("r9", "");
  write_scenario("x/eight", "  - use: r2\n");
  write_scenario("x/nine", "  - use: r1\n");
  EXPECT_EQ(errors("x/eight.yaml"), "");
  EXPECT_THAT(errors("x/nine.yaml"), HasSubstr("routines are nested deeper than 8"));
}

TEST_F(LibraryFolder, DescribesScenarios) {
  write("lib/average.yaml",
        "routine: average\nsummary: Averages by hand.\nparameters: {m: model}\nsteps:\n"
        "  - for_each: {name: p, in: parameters(m)}\n    steps:\n      - all_reduce: {tensor: p.grad, op: mean}\n"
        "      - expect_across: {value: p.grad}\n");
  write(
      "a/one.yaml",
      "scenario: a/one\nsummary: It averages.\nmirrors: {document: test_a.py, test: averages, number: 3}\n"
      "ranks: {world_size: [2, 4]}\nmatrix: {n: [1, 2]}\nskip:\n  - {when: n == 2 and world_size == 4, reason: slow}\n"
      "steps:\n  - model: Net()\n    as: m\n  - use: average\n    with: {m: m}\n    note: by hand\n"
      "  - barrier: {}\n    raises: no *group\n    when: rank == n\n");
  Library library(root());
  const auto scenario = library.load(root() + "/a/one.yaml");
  const std::string text = explain(scenario, {});
  for (const char* piece :
       {"a/one\n  It averages.\n  Mirrors test_a.py averages (3).\n", "Cases: 3 to run, 1 skipped\n",
        "  n=2,world_size=4,launch=process,device=cpu  SKIP: slow\n", "  - model Net() -> m ",
        "  - use average with m: m ",
        "    (by hand)\n    Averages by hand.\n    - for_each name: p, in: parameters(m) ",
        "      - all_reduce tensor: p.grad, op: mean ", "average.yaml:7\n",
        "  - ranks of `all_ranks` hold different bits of `p.grad`  [", "/lib/average.yaml:8:9]",
        "  - `barrier` does not fail, or with another message than `no *group` (checked when rank == n)"}) {
    EXPECT_THAT(text, HasSubstr(piece));
  }
  const std::vector<ListRow> rows = list_rows({scenario}, {});
  EXPECT_EQ(list_text(rows),
            "SCENARIO  CASES         RANKS        MIRRORS\n"
            "a/one     3 +1 skipped  2,4 process  test_a.py averages (3)\n"
            "1 scenario, 3 cases to run\n");
  const std::string json = list_json(rows);
  for (const char* piece : {"\"scenario\": \"a/one\"", "\"number\": 3", "\"skip\": \"slow\"",
                            "\"case\": \"n=1,world_size=2,launch=process,device=cpu\""}) {
    EXPECT_THAT(json, HasSubstr(piece));
  }
}

// All scenarios and routines of the program.
TEST(Scenarios, AllValidate) {
  Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  std::vector<std::string> paths = library.find({});
  for (const std::string& name : library.routine_names()) paths.push_back(str(library.root(), "/lib/", name, ".yaml"));
  for (const std::string& path : paths) {
    const Diagnostics diagnostics = library.validate(path);
    EXPECT_TRUE(diagnostics.empty()) << diagnostics.text();
  }
  EXPECT_GT(paths.size(), 0u);
}

TEST(Scenarios, AllExpand) {
  Library library(LOCKSTEP_SOURCE_DIR "/scenarios");
  for (const std::string& path : library.find({})) {
    if (!library.validate(path).empty()) continue;  // AllValidate reports it
    EXPECT_GT(expand(library.load(path), {}).size(), 0u) << path;
  }
}

// Scenarios of a user, outside the folder of the program's scenarios.
class UserScenarios : public LibraryFolder {
 protected:
  void SetUp() override {
    LibraryFolder::SetUp();
    before_ = fs::current_path();
    write("built_in/lib/common.yaml", "routine: common\nsummary: s\nsteps:\n  - use: helper\n");
    write("built_in/lib/helper.yaml", "routine: helper\nsummary: s\nsteps:\n  - barrier: {}\n");
    write(
        "mine/deep/own.yaml",
        "scenario: own\nsummary: s\nranks: {world_size: [2]}\nsteps:\n  - use: near\n  - use: far\n  - use: common\n");
    write("mine/deep/lib/near.yaml", "routine: near\nsummary: s\nsteps:\n  - use: far\n");
    write("mine/lib/far.yaml", "routine: far\nsummary: s\nsteps:\n  - barrier: {}\n");
    fs::current_path(root_ / "mine");
  }
  void TearDown() override {
    fs::current_path(before_);
    LibraryFolder::TearDown();
  }
  std::string mistakes(const std::string& path) const {
    return Library((root_ / "built_in").string()).validate(path).text();
  }
  fs::path before_;
};

TEST_F(UserScenarios, FindRoutinesInFoldersAbove) {
  EXPECT_EQ(mistakes("deep/own.yaml"), "");
  EXPECT_EQ(mistakes("deep/lib/near.yaml"), "");
  fs::remove(root_ / "mine/lib/far.yaml");
  EXPECT_THAT(mistakes("deep/own.yaml"), HasSubstr("unknown routine `far`"));
  EXPECT_THAT(mistakes("deep/own.yaml"), HasSubstr((root_ / "mine/deep/lib").string()));
}

TEST_F(UserScenarios, DoNotChangeRoutinesOfProgram) {
  write("mine/lib/helper.yaml", "routine: helper\nsummary: s\nsteps:\n  - unknown_verb: {}\n");
  EXPECT_EQ(mistakes("deep/own.yaml"), "");  // `common` uses the program's helper
  write("mine/deep/lib/near.yaml", "routine: near\nsummary: s\nsteps:\n  - use: helper\n");
  EXPECT_THAT(mistakes("deep/own.yaml"), HasSubstr("unknown verb `unknown_verb`"));  // the nearest routine is used
}

TEST_F(UserScenarios, AreFoundWithoutRoutines) {
  EXPECT_THAT(Library((root_ / "built_in").string()).find({(root_ / "mine").string()}),
              ElementsAre((root_ / "mine/deep/own.yaml").string()));
}

TEST_F(UserScenarios, ReportSearchedFolders) {
  try {
    Library((root_ / "built_in").string()).find({"deep/owm.yaml"});
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr((fs::current_path() / "deep/owm.yaml").string()));
    EXPECT_THAT(error.message(), HasSubstr((root_ / "built_in").string()));
  }
}

}  // namespace
}  // namespace lockstep::scenario
