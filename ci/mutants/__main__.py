"""Mutants of the engine and the verdict: built once, switched by number, each run against the tests that reach it."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import execute  # noqa: E402
import judge  # noqa: E402
from coverage import Around, Coverage  # noqa: E402
from order import History, scenarios_about  # noqa: E402
from relink import Relinked, draw  # noqa: E402
from tree import Mutant, Tree  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [f"engine/{layer}" for layer in
           ("layout", "device", "kernels", "tensor", "comm", "mesh", "autograd", "nn", "optim", "parallel", "state")]  # fmt: skip
FOLDERS.append("harness/verdict")
EQUIVALENTS = Path(__file__).resolve().parent / "equivalent.txt"


def say(line: str) -> None:
    print(f"== {line}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/mutants.sh", description=__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="folders of sources, such as engine/layout; default: all")
    parser.add_argument("--sample", type=int, metavar="N", help="this many mutants, drawn by --seed; default: all")
    parser.add_argument("--seed", type=int, help="of the sample; default: drawn, and printed")
    parser.add_argument("--again", type=Path, metavar="REPORT", help="those mutants of an earlier report that still exist")
    parser.add_argument("--sources", type=int, metavar="N",
                        help="mutants of this many sources only, drawn by --seed; built from the release build in a minute or two")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="compilers, and mutants, at once (%(default)s)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write one line of JSON per mutant")
    parser.add_argument("--resume", action="store_true", help="keep the outcomes that the report has, and add the others")
    parser.add_argument("--seconds", type=float, help="start no further mutant after this time")
    parser.add_argument("--longest", type=float, default=6, metavar="SECONDS",
                        help="of cases on cpu that one mutant gets, and half or a quarter as many in each other place; time left over passes on (%(default)s)")  # fmt: skip
    parser.add_argument("--cases", type=int, default=6, metavar="N", help="of each scenario that may judge (%(default)s)")
    parser.add_argument("--caught", type=float, default=95, metavar="PERCENT", help="that must be caught (%(default)s)")
    parser.add_argument("--by-scenarios", type=float, default=90, metavar="PERCENT", help="that runs of scenarios must catch, by their checks or compared with runs without the mutant (%(default)s)")  # fmt: skip
    parser.add_argument("--scenarios", action="append", default=[], metavar="NAME",
                        help="only these scenarios, such as 'training/*'; may be repeated")  # fmt: skip
    parser.add_argument("--on", nargs="+", choices=[*execute.PLACES], default=[*execute.PLACES], metavar="WHERE",
                        help="where scenarios run, in turn: cpu, sim, schedule (sim, ranks as threads under a random schedule), "
                             "cuda (on a stand-in), hosts (two hosts of two ranks each, over sockets), and, where these catch nothing, pages (sim, whose memory "
                             "system calls close), nccl (on a stand-in with a GPU per rank), nccl_hosts (such hosts on that stand-in), "
                             "mpi (such hosts under mpirun); default: all")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the mutants and run none")
    parser.add_argument("--only", type=int, action="append", metavar="NUMBER", help="this mutant; may be repeated")
    parser.add_argument("--folder", type=Path, default=ROOT / "build-mutants", help="of the build (%(default)s)")
    parser.add_argument("--no-unit-tests", action="store_true", help="build and run no unit tests")
    return parser.parse_args()


def test_targets(folders: list[str]) -> list[str]:
    layers = {"/".join(folder.split("/")[:2]) for folder in folders}
    return [f"{layer.split('/')[1]}_tests" for layer in sorted(layers) if list((ROOT / layer).rglob("*_test.cpp"))]


def chosen_from(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    if options.only:
        return [one for one in mutants if one.number in options.only]
    if options.again:
        known = [json.loads(line) for line in options.again.read_text().splitlines()]
        mutants = [one for one in mutants if one.key in {row["key"] for row in known}]
        say(f"{len(mutants)} of the {len(known)} mutants of {options.again} exist")
    if options.sample is None or options.sample >= len(mutants):
        return mutants
    say(f"a sample of {options.sample} of {len(mutants)} mutants, --seed {options.seed}")
    # By the key and not by the number: a mutant stays in the sample of a seed when other sources change.
    return sorted(mutants, key=lambda one: hashlib.sha256(f"{options.seed} {one.key}".encode()).digest())[: options.sample]


def stages_of(tree: Tree, options: argparse.Namespace, folders: list[str]) -> list[judge.Stage]:
    size = max(one.number for own in tree.mutants.values() for one in own) + 1
    program, folder = tree.binary / "bin" / "lockstep", tree.folder / "run"
    suites: list = []
    for where in sorted(options.on, key=lambda where: execute.PLACES[where].at_last):
        share = 1 if where == "cpu" else 4 if execute.PLACES[where].at_last else 2
        suites.append((execute.Scenarios(program, folder, options.scenarios, where, options.cases if where == "cpu" else 1),
                       options.longest / share))  # fmt: skip
    if not options.no_unit_tests:
        programs = [tree.binary / "tests" / target for target in test_targets(folders)]
        suites.append((execute.UnitTests(programs, folder), options.longest / 2))
    found = []
    for tests, longest in suites:
        reason = tests.lacking()
        if reason:
            say(f"{tests.kept_as}: skipped, {reason}")
            continue
        digest = hashlib.sha256()
        for one in getattr(tests, "programs", {"": program}).values():
            digest.update(one.read_bytes())
        if tests.what == "case":
            for path in sorted((tree.source / "scenarios").rglob("*.yaml")):
                digest.update(path.read_bytes())
        path = tree.folder / f"reached-{tests.kept_as}.json"
        coverage = Coverage(path, digest.hexdigest(), size).record(tests, options.jobs, say)
        if coverage.failing:
            some = ", ".join(f"{name} ({how})" for name, how in sorted(coverage.failing.items())[:3])
            say(f"{tests.kept_as}: {len(coverage.asked)}; without a mutant, {len(coverage.failing)} do not pass and judge none: {some}")
        # If a recording changes what the program does, cases fail, and mutants that they reach count as not covered.
        is_last = tests.what == "case" and tests.place.at_last
        if not is_last and coverage.lacks_judges():
            say("that is too many to judge anything: a probe has an effect, or this machine is too slow")
            sys.exit(3)
        if tests.what == "case":
            tests.expected = coverage.facts
        found.append(judge.Stage(tests, coverage, longest, is_last))
    return found


class Outcomes:
    """The rows of the chosen mutants, in the order of their ends, written to the report as they come."""

    def __init__(self, chosen: list[Mutant], options: argparse.Namespace, tree: Tree):
        self.chosen, self.options, self.tree = chosen, options, tree
        self.rows: list[dict] = []
        self.history = History(tree.folder / "caught.jsonl", scenarios_about(execute.ABOUT))
        self.around = Around([one for own in tree.mutants.values() for one in own])
        self.lock = threading.Lock()
        self.waiting: list[Mutant] = []
        equivalents = judge.read_equivalents(EQUIVALENTS)
        known = {}
        if options.resume and options.report and options.report.is_file():
            known = {row["key"]: row for row in map(json.loads, options.report.read_text().splitlines())}
        for mutant in chosen:
            if mutant.key in equivalents:
                self.rows.append(self.row_of(judge.Outcome(mutant, None, 0, 0, 0, reason=equivalents[mutant.key])))
            elif mutant.key in known and known[mutant.key]["verdict"] != "equivalent":
                self.rows.append(known[mutant.key])
                if "by" in known[mutant.key]:
                    self.history.caught(mutant.file, mutant.function, known[mutant.key]["by"], keep=False)
            else:
                self.waiting.append(mutant)
        self.waiting.reverse()
        if options.report:
            judge.write_rows(options.report, self.rows)

    def row_of(self, outcome: judge.Outcome) -> dict:
        return judge.row_of(outcome, self.tree.text_of(outcome.mutant.file))

    def run(self, stages: list[judge.Stage]) -> list[dict]:
        began = time.monotonic()

        def work(index: int) -> None:
            own = [stage.in_folder(self.tree.folder / f"run-{index}") for stage in stages]
            while self.waiting and not (self.options.seconds and time.monotonic() - began > self.options.seconds):
                try:
                    mutant = self.waiting.pop()
                except IndexError:
                    return
                self.add(judge.run_mutant(mutant, own, self.history, self.around))

        with ThreadPoolExecutor(self.options.jobs) as pool:
            for one in [pool.submit(work, index) for index in range(self.options.jobs)]:
                one.result()
        return self.rows

    def add(self, outcome: judge.Outcome) -> None:
        with self.lock:
            self.rows.append(self.row_of(outcome))
            if self.options.report:
                judge.add_row(self.options.report, self.rows[-1])
            mutant = outcome.mutant
            how = f" ({outcome.catch.name}: {outcome.catch.check})" if outcome.catch else ""
            place = f"{len(self.rows)}/{len(self.chosen)} {mutant.file}:{mutant.line} {mutant.operator}"
            say(f"{place}: {outcome.verdict}{how}, {outcome.seconds:.1f} s")


def main() -> int:
    options = arguments()
    folders = [folder.rstrip("/") for folder in options.folders] or FOLDERS
    wrong = [folder for folder in folders if not any(folder == known or folder.startswith(known + "/") for known in FOLDERS)]
    if wrong:
        print(f"mutants: no sources for mutants in {', '.join(wrong)}; the folders are {', '.join(FOLDERS)}", file=sys.stderr)
        return 2
    if not execute.can_isolate():
        say("this machine permits no namespaces (unshare): mutants run with all rights of this user")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    began = time.monotonic()
    targets = ["lockstep"] + ([] if options.no_unit_tests else test_targets(folders))
    if options.sources is not None:
        tree = Relinked(ROOT, options.folder.resolve())
        files = draw(tree.selected(folders), options.sources, ROOT, random.Random(options.seed))
        say(f"--sources {options.sources} --seed {options.seed}: {' '.join(files)}")
        mutants = tree.build_sources(files, targets, options.jobs, say)
    else:
        tree = Tree(ROOT, options.folder.resolve())
        mutants = tree.build(folders, targets, options.jobs, say)
    say(f"{len(mutants)} mutants in {', '.join(folders)}; built in {time.monotonic() - began:.0f} s")
    chosen = chosen_from(mutants, options)
    if options.list:
        for one in chosen:
            before, after = " ".join(one.before.split()), " ".join(one.after.split())
            print(f"{one.number} {one.file}:{one.line} {one.operator}: {before} -> {after}")
        return 0
    stale = judge.stale(judge.read_equivalents(EQUIVALENTS), tree.mutants, ROOT)
    for key in stale:
        say(f"{EQUIVALENTS.name}: remove this line, no mutant has this key any more: {key}")
    rows = Outcomes(chosen, options, tree).run(stages_of(tree, options, folders))
    print(judge.survivors(rows))
    print(judge.table(rows))
    caught, by_runs, by_checks = (100 * judge.share(rows, *verdicts) for verdicts in (judge.CAUGHT, judge.BY_RUNS, ("scenario",)))
    enough = caught >= options.caught and by_runs >= options.by_scenarios
    print(f"{len(rows)} of {len(chosen)} mutants ran: {caught:.1f} % caught (at least {options.caught:g}), {by_runs:.1f} % by runs of "
          f"scenarios (at least {options.by_scenarios:g}), {by_checks:.1f} % by their checks: {'enough' if enough else 'NOT enough'}")  # fmt: skip
    return 0 if enough and rows and not stale else 1


if __name__ == "__main__":
    sys.exit(main())
