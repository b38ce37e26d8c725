"""The mutants' tool does what it says, on a small source of its own: operators, switch, coverage, verdicts, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parent
sys.path.insert(0, str(CI / "mutants"))
import execute  # noqa: E402
import hosts  # noqa: E402
import judge  # noqa: E402
from coverage import Around, Coverage  # noqa: E402
from order import History, batches, scenarios_about  # noqa: E402
from points import find_points, parser_arguments  # noqa: E402
from rewrite import INCLUDE, rewrite  # noqa: E402
from tree import Mutant  # noqa: E402

# One function per operator; each returns a number that the mutant changes.
SOURCE = """
#include <array>
#include <string>
#include <vector>
int pair(int a, int b) { return 10 * a + b; }
int lower(int x) {
  if (x < 5) return 1;
  return 2;
}
bool both(bool a, bool b) { return a && b; }
int guarded(int x) {
  if (x == 3) x = 8;
  return x;
}
int order(const std::vector<int>& all) {
  int sum = 0;
  for (int one : all) sum = sum * 10 + one;
  return sum;
}
int alias() {
  int kept = 4;
  int& same = kept;
  same = 6;
  return kept;
}
void add(int& to) { to += 7; }
int call(int a, int b) {
  int total = pair(a, b);
  add(total);
  return total;
}
int quotient(int a, int b) { return a / b; }
int still(int x, int y) {
  int z = x;
  if (x < 4 && y > 0) z = 1;
  for (int one : {x}) z += one - one;
  return z - x;
}
constexpr int constant(int x) { return x < 3 ? 1 : 2; }
std::string text(int x) { return x < 3 ? "few" : "many"; }
int array() {
  std::array<int, 3> all{};
  return static_cast<int>(all.size());
}
int refused(int x) {
  if (x > 4) throw std::string(x < 9 ? "middle" : "large");
  return x;
}
"""
PROGRAM = """
#include <cstdio>
#include <vector>
#include "source.cpp"
int main() {
  std::printf("pair %d\\n", pair(1, 2));
  std::printf("lower %d %d %d\\n", lower(4), lower(5), lower(6));
  std::printf("both %d %d\\n", both(true, false), both(false, true));
  std::printf("guarded %d %d\\n", guarded(3), guarded(1));
  std::printf("order %d\\n", order({1, 2, 3}));
  std::printf("alias %d\\n", alias());
  std::printf("call %d\\n", call(1, 2));
  std::printf("quotient %d\\n", quotient(8, 2));
  still(1, 7);
}
"""
EXPECTED = {  # operator, function, stretch, mutated: the line of output under the mutant
    ("compare", "lower", "x < 5", "x <= 5"): "lower 1 1 2",
    ("negate", "lower", "x < 5", "!(x < 5)"): "lower 2 1 1",
    ("constant", "lower", "5", "5 + 1"): "lower 1 1 2",
    ("constant", "lower", "1", "0"): "lower 0 2 2",
    ("drop", "both", "a && b", "a"): "both 1 0",
    ("drop", "both", "a && b", "b"): "both 0 1",
    ("drop", "guarded", "x == 3", "true"): "guarded 8 8",
    ("compare", "guarded", "x == 3", "x != 3"): "guarded 3 8",
    ("omit_assign", "guarded", "x = 8;", ""): "guarded 3 1",
    ("reverse", "order", "all", "reversed(all)"): "order 321",
    ("arithmetic", "pair", "10 * a + b", "10 * a - b"): "pair 8",
    ("copy", "alias", "kept", "copied(kept)"): "alias 4",
    ("swap", "call", "a, b", "b, a"): "call 28",
    ("omit_call", "call", "add(total);", ""): "call 12",
    ("omit_assign", "add", "to += 7;", ""): "call 12",
    ("swap", "quotient", "a / b", "(b) / (a)"): "quotient 0",
}


def run(*command, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The small program with its mutants: their points, the number of each, and the compiled program."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "source.cpp").write_text(SOURCE)
    (folder / "main.cpp").write_text(PROGRAM)
    points = find_points(str(folder / "source.cpp"), parser_arguments(["g++", "-std=c++20"]))
    numbers, by_text, count = [], {}, 0
    for point in points:
        own = []
        for one in point.alternatives:
            count += 1
            own.append(count)
            by_text.setdefault((one.operator, point.function, SOURCE[point.begin : point.end], one.text), count)
        numbers.append(own)
    rewritten = rewrite(SOURCE, points, numbers)
    (folder / "source.cpp").write_text(rewritten.text)
    (folder / "engine/core").mkdir(parents=True)
    for suffix in ("hpp", "cpp"):
        shutil.copy(CI / f"mutants/switch.{suffix}", folder / f"engine/core/mutants_switch.{suffix}")
    sources = [folder / "main.cpp", folder / "engine/core/mutants_switch.cpp"]
    built = run("g++", "-std=c++20", "-w", f"-I{folder}", "-o", folder / "program", *sources)
    assert built.returncode == 0, built.stderr
    return folder, points, by_text, rewritten


def test_each_operator_changes_what_it_says(small):
    folder, _, by_text, _ = small
    original = run(folder / "program").stdout.splitlines()
    assert original == ["pair 12", "lower 1 2 2", "both 0 0", "guarded 8 1", "order 123", "alias 6", "call 19", "quotient 4"]
    for mutant, said in EXPECTED.items():
        lines = run(folder / "program", LOCKSTEP_MUTANT=str(by_text[mutant])).stdout.splitlines()
        changed = [line for line in lines if line not in original]
        assert said in changed, mutant


def test_no_mutants_in_constants_and_text(small):
    _, points, _, _ = small
    functions = {point.function for point in points}
    assert {"constant", "text", "array"} & functions == set()
    refused = [(one.operator, SOURCE[p.begin : p.end]) for p in points if p.function == "refused" for one in p.alternatives]
    assert ("omit_throw", 'throw std::string(x < 9 ? "middle" : "large");') in refused
    assert not any("x < 9" == source for _, source in refused)


# A seeded defect in each form. Comments name the lines whose mutants would be of the defect alone.
DEFECTS = """
enum class Defect { one };
bool defect_armed(Defect);
namespace {
int wrong(int x) { return x * 9 - 8; }  // left out
int halved(int x) { return x - 7; }
bool is_left_out(int x) { return x == 6 && defect_armed(Defect::one); }  // left out
}
int first(int x) {
  if (defect_armed(Defect::one)) [[unlikely]]
    return wrong(x + 11);  // left out
  return x + 12;
}
int second(int x) {
  if (x > 13 || defect_armed(Defect::one)) return 14;
  return defect_armed(Defect::one) ? wrong(x) + 15 : halved(x) + 16;
}
int third(int x) {
  const bool keeps = !defect_armed(Defect::one);
  if (keeps) x += 17;
  if (is_left_out(x)) x += 18;  // left out
  if (!defect_armed(Defect::one)) return x - 19;
  x += 20;  // left out
  return halved(x);  // left out
}
"""


def test_no_mutants_of_seeded_defects(tmp_path):
    (tmp_path / "defects.cpp").write_text(DEFECTS)
    points = find_points(str(tmp_path / "defects.cpp"), parser_arguments(["g++", "-std=c++20"]))
    lines = DEFECTS.splitlines()
    assert not [lines[point.line - 1] for point in points if "// left out" in lines[point.line - 1]]
    found = {(one.operator, DEFECTS[p.begin : p.end], one.text) for p in points for one in p.alternatives}
    # The product keeps its mutants, in the same conditions and branches.
    whole = "x > 13 || defect_armed(Defect::one)"
    assert {("negate", whole, f"!({whole})"), ("compare", "x > 13", "x >= 13"), ("constant", "14", "14 + 1")} <= found
    assert {("constant", number, f"{number} + 1") for number in ("7", "12", "16", "17", "19")} <= found
    assert not [one for one in found if one[0] == "drop"], "an operand that is a defect is no operand"
    assert not [one for one in found if "keeps" in one[1] or one[1] == "15"]


def test_stretches_name_the_mutants_at_a_place(small):
    _, _, by_text, rewritten = small
    at = rewritten.text.index("x <= 5")
    assert by_text[("compare", "lower", "x < 5", "x <= 5")] in rewritten.mutants_at(at)
    assert rewritten.text.startswith(INCLUDE) and rewritten.mutants_at(0) == []


def test_reached_points_are_recorded(small):
    folder, _, by_text, _ = small
    reached = folder / "reached"
    reached.write_bytes(bytes(1000))
    assert run(folder / "program", LOCKSTEP_MUTANTS_REACHED=str(reached)).returncode == 0
    found = reached.read_bytes()
    # 1: it is reached; 3: and the mutant would make a difference there
    assert all(found[number] == 3 for mutant, number in by_text.items() if mutant in EXPECTED)
    assert not any(found[number] for mutant, number in by_text.items() if mutant[1] == "refused")
    still = {mutant[2:]: found[number] for mutant, number in by_text.items() if mutant[1] == "still"}
    whole = "x < 4 && y > 0"
    for mutant in [("x < 4", "x <= 4"), ("y > 0", "y >= 0"), (whole, "x < 4"), (whole, "y > 0"), (whole, "true"), ("z = 1;", ""),
                   ("z - x", "(x) - (z)"), ("one - one", "one + one"), ("z += one - one;", "")]:  # fmt: skip
        assert still[mutant] == (3 if mutant[0] == "one - one" else 1), mutant
    assert still[("4", "4 + 1")] == 1
    assert still[("z - x", "z + x")] == still[(whole, f"!({whole})")] == 3


def test_a_recording_in_which_many_names_fail_judges_nothing(tmp_path):
    class Failing:
        what, folder = "case", tmp_path

        def names(self):
            return ["a one", "a two", "b one", "b two"]

        def in_folder(self, folder):
            return self

        def run_alone(self, name, environment, limit):
            return ("FAIL" if name in self.failing else None), "", 0.1

    for number, failing in enumerate((["a one"], ["a one", "b two"])):
        Failing.failing = failing
        coverage = Coverage(tmp_path / f"{number}.json", "digest", 8).record(Failing())
        assert coverage.lacks_judges() == (len(failing) == 2)


@pytest.mark.parametrize(
    "function,probes",
    [
        # A probe repeats no call of a function with effects, and evaluates no guarded operand without its guard.
        ("int f(int x); int g(int x) { return f(x) < 3; }", {"f(x) <= 3": ""}),
        ("bool g(const int* p, bool q) { return p && *p > 3; }", {"p": "(p) && !(*p > 3)", "*p > 3": "!(p)"}),
        ("bool g(bool p, bool q) { return p || q; }", {"p": "!(p) && (q)", "q": "(p) && !(q)"}),
        ("bool g(int n, int m) { return n == 0 || m / n == 2; }", {"n == 0": "!(n == 0) && (m / n == 2)", "m / n == 2": "(n == 0)"}),
        ("bool g(int n) { return n < 3; }", {"n <= 3": "(n) == (3)", "3 + 1": "((n) < 3) != ((n) < (3 + 1))"}),
        ("void g(int& x, int y) { x = y++; }", {"": ""}),
        ("void g(int& x, int y) { x = y; }", {"": "(x) != (y)"}),
        ("struct s { int f(); int c() const; }; int g(s a) { return a.f() < a.c(); }", {"a.f() <= a.c()": ""}),
        ("struct s { int f(); int c() const; }; int g(s a) { return 1 < a.c(); }", {"1 <= a.c()": "(1) == (a.c())"}),
        ("struct s { bool is_first(); }; bool g(s& a, bool b) { return !b || !a.is_first(); }", {"!b": "", "!a.is_first()": ""}),
        ("struct s { bool is_one() const; }; bool g(s& a, bool b) { return b || a.is_one(); }", {"b": "!(b) && (a.is_one())"}),
    ],
)
def test_probes_have_no_effects(tmp_path, function, probes):
    (tmp_path / "one.cpp").write_text(function + "\n")
    points = find_points(str(tmp_path / "one.cpp"), parser_arguments(["g++", "-std=c++20"]))
    found = {one.text: one.probe for point in points for one in point.alternatives}
    assert {text: found[text] for text in probes} == probes


def test_what_caught_a_mutant_nearby_runs_first():
    seconds = {"a one": 0.1, "a two": 0.1, "b one": 0.11, "c slow": 2.0}
    history = History()
    # Quick first, and one case of each scenario before the second of one.
    assert history.ranked("f.cpp", "g", list(seconds), seconds) == ["a one", "b one", "a two", "c slow"]
    history.caught("f.cpp", "g", "c slow")
    assert history.ranked("f.cpp", "g", list(seconds), seconds)[0] == "c slow"
    assert history.ranked("other.cpp", "g", list(seconds), seconds)[-1] == "c slow"


def test_scenarios_about_a_source_run_first_there():
    seconds = {"a/one x=1": 0.1, "b/two x=1": 0.3, "b/two x=2": 0.3}
    history = History(about={"f.cpp": ["b/two"]})
    assert history.ranked("f.cpp", "g", list(seconds), seconds)[0] == "b/two x=1"
    assert history.ranked("other.cpp", "g", list(seconds), seconds)[0] == "a/one x=1"
    for source, scenarios in scenarios_about(CI / "mutants/about.txt").items():
        assert (CI.parent / source).is_file(), source
        for scenario in scenarios:
            assert (CI.parent / f"scenarios/{scenario}.yaml").is_file(), scenario


def test_another_way_through_the_function_runs_before_more_of_the_common_one():
    names = [f"s{i}/one" for i in range(9)]
    seconds = dict.fromkeys(names, 0.1) | {"s8/one": 0.15}
    common = dict.fromkeys(names, (0b11, 0b111))
    history = History()
    assert history.ranked("f.cpp", "g", names, seconds, common)[-1] == "s8/one"
    assert history.ranked("f.cpp", "g", names, seconds, common | {"s8/one": (0b01, 0b101)})[1] == "s8/one"  # of the function
    assert "s8/one" in history.ranked("f.cpp", "g", names, seconds, common | {"s8/one": (0b11, 0b101)})[:6]  # of the source


def test_catches_are_kept_for_later_runs(tmp_path):
    seconds = {"a one": 0.1, "c slow": 2.0}
    History(tmp_path / "caught").caught("f.cpp", "g", "c slow")
    History(tmp_path / "caught").caught("f.cpp", "h", "a one", keep=False)
    later = History(tmp_path / "caught")
    assert later.ranked("f.cpp", "g", list(seconds), seconds) == ["c slow", "a one"]
    assert later.of_place[("f.cpp", "h")] == {}


class FakeTests:
    """Cases that catch nothing, but for those given; keeps the names that ran."""

    what = "case"

    def __init__(self, catching: tuple[str, ...] = (), about: tuple[str, ...] = ()):
        self.catching, self.ran, self.place = catching, [], execute.Place("cpu", about=about)

    def run(self, names, environment, limit, patience=1):
        self.ran += names
        return next((execute.Catch("scenario", name, "expect") for name in names if name in self.catching), None)


def stage(path: Path, seconds: dict[str, float], longest: float, catching: tuple[str, ...] = (), still: tuple[str, ...] = (),
          about: tuple[str, ...] = (), **more) -> judge.Stage:  # fmt: skip
    """Each of its cases reaches mutant 3 and no other point; it makes no difference there in those of `still`."""
    coverage = Coverage(path / "none", "", 8)
    coverage.seconds, coverage.asked = seconds, set(seconds)
    coverage.reached = dict.fromkeys(seconds, 1 << 3)
    coverage.differing = {name: 0 if name in still else 1 << 3 for name in seconds}
    return judge.Stage(FakeTests(catching, about), coverage, longest, **more)


def outcome_of(*stages: judge.Stage) -> judge.Outcome:
    mutant = Mutant(3, "f.cpp", 1, "g", "negate", "x", "!(x)", 0, 1, 0)
    return judge.run_mutant(mutant, list(stages), History(), Around([mutant]))


def test_survivors_of_all_cases_and_of_the_cases_that_the_time_allowed(tmp_path):
    ten = {f"s{i}/one c": 1.0 for i in range(10)}
    all_ran, some_ran = outcome_of(stage(tmp_path, ten, 20)), outcome_of(stage(tmp_path, ten, 4))
    assert (all_ran.verdict, all_ran.num_ran, all_ran.num_reaching) == ("survived", 10, 10)
    assert (some_ran.verdict, some_ran.num_ran, some_ran.num_reaching) == ("out of time", 4, 10)
    assert outcome_of(stage(tmp_path, {}, 4)).verdict == "not covered"
    calm = outcome_of(stage(tmp_path, {"s/one c": 1.0}, 4, still=("s/one c",)))
    assert (calm.verdict, calm.num_ran, calm.num_reaching) == ("no difference", 0, 1)
    said = judge.survivors([judge.row_of(one, "x") for one in (all_ran, some_ran, calm)])
    assert "survived all 10 in which it makes a difference" in said and "survived 4 of the 10 in which it makes a difference" in said
    assert "no difference where it stands in the 1 that reach it" in said
    assert "out of time" in judge.table([judge.row_of(some_ran, "x")])


def test_cases_get_the_time_that_earlier_places_left_over(tmp_path):
    few, ten = {"s/one c": 1.0}, {f"s{i}/one c": 1.0 for i in range(10)}
    second = stage(tmp_path, ten, 4)
    assert outcome_of(stage(tmp_path, few, 6), second).num_ran == 1 + 9 and len(second.tests.ran) == 9


def test_a_place_of_last_resort_runs_what_no_other_catches(tmp_path):
    few, other = {"s/one c": 1.0}, {"s/two c": 1.0}
    assert outcome_of(stage(tmp_path, few, 6), stage(tmp_path, other, 6, ("s/two c",), at_last=True)).verdict == "scenario"
    assert outcome_of(stage(tmp_path, {}, 6), stage(tmp_path, other, 6, ("s/two c",), at_last=True)).verdict == "scenario"
    last = stage(tmp_path, other, 6, ("s/two c",), at_last=True)
    caught = outcome_of(stage(tmp_path, few, 6, ("s/one c",)), last)
    assert caught.catch.name == "s/one c" and last.tests.ran == []


def test_a_place_about_the_source_comes_first(tmp_path):
    one, two = {"s/one c": 1.0}, {"s/two c": 1.0}
    for about, name in (("f.", "s/two c"), ("g.", "s/one c")):
        places = stage(tmp_path, one, 6, ("s/one c",)), stage(tmp_path, two, 6, ("s/two c",), about=(about,), at_last=True)
        assert outcome_of(*places).catch.name == name


COMPARED = """#!/bin/sh
if [ "$1" = compare ]; then [ "$2" != --trace ] || exit 0; exec cmp -s "$2" "$3"; fi
while [ $# -gt 1 ]; do [ "$1" != --results ] || results=$2; shift; done
cd "$(dirname "$results")" && echo run >> runs
printf '{"said": "%s"}\\n' "$(SAID)" > "$results"
"""


@pytest.mark.parametrize(
    "said,is_catch,is_steady",
    [
        ('echo "$LOCKSTEP_MUTANT"', True, True),
        ("wc -l < runs", False, False),
        ('test $(wc -l < runs) != 2; echo "$?"', False, True),  # the first run with the mutant differs, and not for its sake
        ('test $(wc -l < runs) != 1; echo "$?"', False, False),  # the first one without it differs
    ],
)
def test_a_difference_between_runs_must_repeat(tmp_path, said, is_catch, is_steady):
    program = tmp_path / "program"
    program.write_text(COMPARED.replace("SAID", said))
    program.chmod(0o755)
    scenarios = execute.Scenarios(program, tmp_path / "run", expected={"a c": "facts"})
    caught = scenarios.compared("a c", {"LOCKSTEP_MUTANT": "17"}, 60)
    assert (caught is not None) == is_catch
    assert bool(scenarios.expected) == is_steady  # one that is not is compared no more


def test_a_case_without_a_result_is_a_catch(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    caught = execute.Scenarios(program, tmp_path / "run").run(["a c"], {}, 60)
    assert caught == execute.Catch("scenario", "a c", "no result")


def test_a_scenario_about_its_time_limit_keeps_it(tmp_path):
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$@" >> calls\n')
    program.chmod(0o755)
    names = ["negative/hung_peers world_size=3,launch=thread,device=cpu", "replicate/single_module world_size=2,launch=thread,device=cpu"]
    tests = execute.Scenarios(program, tmp_path / "run")
    for name in names:
        tests.run([name], {}, 60)
    own, other = (tmp_path / "run/calls").read_text().splitlines()
    assert "--timeout" not in own and "--deadline" not in own and "--timeout 8" in other
    tests.run(names, {}, 60)
    assert "--timeout 8" in (tmp_path / "run/calls").read_text().splitlines()[2]


def test_a_place_that_takes_few_scenarios_takes_those_about_its_sources(tmp_path):
    scenarios = [f"a/{i}" for i in range(20)]
    scenarios[5] = "negative/touched_memory"
    rows = [json.dumps({"scenario": name, "cases": [{"world_size": 2, "case": "x=1"}]}) for name in scenarios]
    (tmp_path / "rows").write_text("\n".join(rows))
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/rows\n")
    program.chmod(0o755)
    tests = execute.Scenarios(program, tmp_path / "run", where="pages")
    assert tests.names() == ["a/0 x=1", "negative/touched_memory x=1", "a/16 x=1"]


def can_run_mpi() -> bool:
    return shutil.which("mpirun") is not None and execute.can_isolate()


def test_a_run_writes_into_its_folder_only(tmp_path):
    (tmp_path / "own").mkdir()
    ended = execute.run(["sh", "-c", "touch here; touch ../beside"], tmp_path / "own", {}, 60)
    assert (tmp_path / "own/here").exists(), ended.output
    assert (tmp_path / "beside").exists() != execute.can_isolate()


def is_running(word: bytes) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in path.read_bytes():
                return True
        except OSError:
            continue  # it has ended
    return False


@pytest.mark.skipif(not can_run_mpi(), reason="it needs mpirun and namespaces")
def test_mpirun_starts_two_hosts_and_ends_with_its_limit(tmp_path):
    def run_mpi(script: str, limit: float) -> execute.Ended:
        command, variables = hosts.by_mpirun(["sh", "-c", script], tmp_path)
        return execute.run(command, tmp_path, {"LOCKSTEP_MUTANT": "17", **variables}, limit)

    ended = run_mpi('echo "$(hostname) $OMPI_COMM_WORLD_RANK $LOCKSTEP_MUTANT"', 120)
    assert sorted(ended.output.splitlines()) == ["first 0 17", "first 2 17", "second 1 17", "second 3 17"] and ended.code == 0
    assert run_mpi("test $OMPI_COMM_WORLD_RANK != 3 || exit 5", 120).code == 5
    ended = run_mpi("sleep 86399.25", 10)
    assert ended.code is None
    until = time.monotonic() + 30
    while is_running(b"86399.25"):  # the kernel ends the processes of a namespace soon after its first one
        assert time.monotonic() < until
        time.sleep(0.2)


def test_mpirun_is_skipped_with_the_reason(tmp_path, monkeypatch):
    program = shutil.which("true")
    if shutil.which("mpirun"):
        assert hosts.lacks_mpirun(program, isolated=False) == "it needs namespaces (unshare)"
        assert hosts.lacks_mpirun(program, isolated=True) == "this build has no Open MPI"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hosts.lacks_mpirun(program, isolated=True) == "there is no mpirun"


def test_batches_grow_and_end():
    seconds = {str(i): 0.2 for i in range(100)}
    found = batches(list(seconds), seconds, longest=5.1, first=0.5, growth=2)
    assert [len(batch) for batch in found[:3]] == [2, 5, 10]
    assert [name for batch in found for name in batch] == [str(i) for i in range(25)]
    assert batches(["x"], {"x": 9.0}, longest=5) == [["x"]]  # one runs in any case


TINY = """
#include "engine/layout/tiny.hpp"
namespace tiny {
int twice(int x) { return x + x; }
int least(int a, int b) {
  if (a < b) return a;
  return b;
}
int never(int x) {
  if (x > 1) return 5;
  return 6;
}
int shown() { return 4; }
template <int n> int chosen() { return n; }
int of_template() { return chosen<2>(); }
int fixed() {
  const int size = 3;
  int all[size] = {};
  static_assert(sizeof(all) == size * sizeof(int));
  return all[1];
}
}  // namespace tiny
"""
TINY_PROGRAM = """
#include <cstdio>
#include <cstring>
#include "engine/layout/tiny.hpp"
int main(int argc, char** argv) {
  if (std::strcmp(argv[1], "list") == 0) { std::puts("[{\\"scenario\\": \\"a\\", \\"cases\\": [{\\"case\\": \\"c\\", \\"world_size\\": 1}]}]"); return 0; }
  if (std::strcmp(argv[1], "compare") == 0) {  // of the first bytes; there are no traces
    char texts[2][300] = {};
    for (int i = 0; i < 2; ++i)
      if (std::FILE* file = std::fopen(argv[argc - 2 + i], "r")) std::fread(texts[i], 1, 299, file), std::fclose(file);
    return std::strcmp(texts[0], texts[1]) != 0;
  }
  const bool right = tiny::twice(3) == 6 && tiny::least(1, 1) == 1;
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], "--results") == 0) {
      std::FILE* file = std::fopen(argv[i + 1], "w");
      std::fprintf(file, "{\\"kind\\":\\"case\\",\\"scenario\\":\\"a\\",\\"case\\":\\"c\\",\\"status\\":\\"%s\\",\\"evidence\\":%d,\\"failure\\":{\\"check\\":\\"expect\\"}}\\n", right ? "PASS" : "FAIL", tiny::shown());
      std::fclose(file);
    }
  return right ? 0 : 1;
}
"""
TINY_TEST = """
#include <gtest/gtest.h>
#include "engine/layout/tiny.hpp"
TEST(Tiny, Least) { EXPECT_EQ(tiny::least(1, 2), 1); EXPECT_EQ(tiny::least(2, 1), 1); EXPECT_EQ(tiny::of_template(), 2); }
"""
TINY_CMAKE = """
cmake_minimum_required(VERSION 3.23)
project(tiny LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_package(GTest REQUIRED)
add_library(tiny engine/layout/tiny.cpp engine/core/mutants_switch.cpp)
target_include_directories(tiny PUBLIC ${CMAKE_SOURCE_DIR})
add_executable(lockstep main.cpp)
set_target_properties(lockstep PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(lockstep tiny)
add_executable(layout_tests engine/layout/tiny_test.cpp)
set_target_properties(layout_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(layout_tests tiny GTest::gtest_main)
"""


def test_a_whole_run_reports_survivors(tmp_path):
    """A repository with one small source: verdicts by scenario, by comparison, by unit test, survived, not covered, equivalent; exit codes."""
    root = tmp_path / "repository"
    files = {
        "engine/layout/tiny.cpp": TINY, "engine/layout/tiny_test.cpp": TINY_TEST, "main.cpp": TINY_PROGRAM,
        "engine/layout/tiny.hpp": "#pragma once\nnamespace tiny { int twice(int x); int least(int a, int b); int never(int x); int shown(); int of_template(); int fixed(); }\n",
        "CMakeLists.txt": TINY_CMAKE, ".gitignore": "/build-*/\n__pycache__/\n",
    }  # fmt: skip
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    shutil.copytree(CI / "mutants", root / "ci/mutants", ignore=shutil.ignore_patterns("__pycache__", "equivalent.txt"))
    equivalent = "engine/layout/tiny.cpp|least|compare|a < b|a <= b|0"
    (root / "ci/mutants/equivalent.txt").write_text(f"reason: both are the same number\n{equivalent}\n")
    run("git", "init", "-q", root)
    report = root / "build-mutants/report.jsonl"
    command = [sys.executable, root / "ci/mutants", "engine/layout", "--report", report, "--jobs", "1"]
    ended = run(*command)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    written = map(json.loads, report.read_text().splitlines())
    rows = {(row["operator"], row["key"].split("|")[1], row["diff"][-1]): row for row in written}
    assert rows[("arithmetic", "twice", "+ int twice(int x) { return x - x; }")]["verdict"] == "scenario"
    assert rows[("arithmetic", "twice", "+ int twice(int x) { return x - x; }")]["check"] == "expect"
    assert rows[("constant", "shown", "+ int shown() { return 4 + 1; }")]["verdict"] == "comparison"
    assert rows[("constant", "shown", "+ int shown() { return 4 + 1; }")]["check"] == "compare"
    assert rows[("negate", "least", "+ if (!(a < b)) return a;")]["verdict"] == "unit test"
    assert rows[("negate", "never", "+ if (!(x > 1)) return 5;")]["verdict"] == "not covered"
    assert [row["verdict"] for row in rows.values() if row["key"] == equivalent] == ["equivalent"]
    assert "cases-mpi: skipped, " in ended.stderr
    assert "NOT enough" in ended.stdout and "engine/layout/tiny.cpp:10: negate (not covered)" in ended.stdout
    assert "chosen<" not in report.read_text()
    # A mutant of a number that must be constant does not compile; the functions beside it keep theirs.
    assert "mutants do not compile" in ended.stderr and "|fixed|" not in report.read_text()
    # The tree is as before, and bars that are reached give exit code 0.
    assert (root / "engine/layout/tiny.cpp").read_text() == TINY
    bars = ("--resume", "--caught", "10", "--by-scenarios", "5")
    assert run(*command, *bars).returncode == 0
    # An excuse that no mutant needs any more.
    excuses = root / "ci/mutants/equivalent.txt"
    excuses.write_text(excuses.read_text() + equivalent.replace("least", "fewest") + "\n")
    ended = run(*command, *bars)
    assert ended.returncode == 1 and "no mutant has this key any more: engine/layout/tiny.cpp|fewest|" in ended.stderr
    # The sample depends on the seed alone.
    listed = [run(*command, "--sample", "3", "--seed", seed, "--list").stdout for seed in ("1", "1", "2")]
    assert listed[0] == listed[1] != listed[2] and len(listed[0].splitlines()) == 3
    # An earlier report chooses mutants that still exist.
    earlier = root / "earlier.jsonl"
    kept = rows[("constant", "shown", "+ int shown() { return 4 + 1; }")]
    earlier.write_text("".join(json.dumps(row) + "\n" for row in (kept, kept | {"key": "engine/layout/tiny.cpp|gone|constant|4|5|0"})))
    again = run(*command, "--again", earlier, "--list")
    assert f"1 of the 2 mutants of {earlier} exist" in again.stderr
    assert len(again.stdout.splitlines()) == 1 and "4 -> 4 + 1" in again.stdout
