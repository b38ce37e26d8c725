"""The outcome of each mutant, the table, and whether enough of them are caught."""

from __future__ import annotations

import collections
import difflib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from coverage import Around, Coverage
from execute import LATE, PATIENCE, Catch
from order import History, batches
from tree import Mutant, one_line

KINDS = {
    "expect_equal": "value", "expect_different": "value", "expect_across": "value", "plan": "plan", "witness": "counts",
    "expect_collectives": "counts", "expect_events": "order", "order": "order", "plan_order": "order", "raises": "error",
    "expect": "expectation", "HANG": "hang", "CRASH": "crash", "INVALID": "no evidence", "XPASS": "a failure expected",
}  # fmt: skip
COMPARISONS = 4  # that one mutant gets


@dataclass
class Outcome:
    mutant: Mutant
    catch: Catch | None
    num_reaching: int  # recorded cases and suites that reach it
    num_differing: int  # of those, the ones in which it makes a difference where it stands
    seconds: float
    num_ran: int = 0  # of those, under the mutant
    reason: str = ""  # why it is equivalent

    @property
    def verdict(self) -> str:
        if self.reason:
            return "equivalent"
        if self.catch is None:
            if not self.num_differing:
                return "no difference" if self.num_reaching else "not covered"
            return "survived" if self.num_ran == self.num_differing else "out of time"
        return self.catch.by

    @property
    def kind(self) -> str:
        if self.catch is None or self.catch.by != "scenario":
            return self.catch.check if self.catch and self.catch.by == "comparison" else ""
        if self.catch.check.startswith("exit code") or self.catch.check == "time limit":
            return self.catch.check
        return KINDS.get(self.catch.check, "error")  # another verb: the step failed


@dataclass
class Stage:
    """Tests that judge a mutant one stage after the other: on cpu, on sim, unit tests."""

    tests: object
    coverage: Coverage
    longest: float  # seconds of tests that one mutant gets
    at_last: bool = False  # a mutant runs here if nothing has caught it

    def in_folder(self, folder: Path) -> "Stage":
        return Stage(self.tests.in_folder(folder), self.coverage, self.longest, self.at_last)

    def is_about(self, file: str) -> bool:
        """Whether mutants of this source run here before they run elsewhere."""
        return self.tests.what == "case" and file.startswith(self.tests.place.about)


def run_mutant(mutant: Mutant, stages: list[Stage], history: History, around: Around) -> Outcome:
    """Runs what reaches the mutant, the likely and quick first, until a scenario fails. Where none does, a case whose results
    `lockstep compare` tells from those without the mutant is the catch; unit tests run only where there is none. Cases
    have the seconds that those of earlier stages left over."""
    began = time.monotonic()
    environment = {"LOCKSTEP_MUTANT": str(mutant.number)}
    reaching = differing = ran = 0
    catch = compared = None
    asked, spare = 0, 0.0
    for stage in sorted(stages, key=lambda stage: not stage.is_about(mutant.file)):
        names, seconds = stage.coverage.of(mutant.number), stage.coverage.seconds
        reaching += stage.coverage.num_reaching(mutant.number)
        differing += len(names)
        if catch is not None or (compared is not None and (stage.at_last or stage.tests.what != "case")):
            continue
        order = history.ranked(mutant.file, mutant.function, names, seconds, stage.coverage.shapes(names, around.of(mutant)))
        longest = stage.longest + (spare if stage.tests.what == "case" else 0.0)
        spare = longest
        for batch in batches(order, seconds, longest):
            ran += len(batch)
            spare = max(0.0, spare - sum(seconds[name] for name in batch))
            limit = 60 + 5 * sum(seconds[name] for name in batch)
            catch = stage.tests.run(batch, environment, limit)
            if catch is not None and catch.check in LATE:  # is it the machine?
                limit = 60 + PATIENCE * (15 + 5 * seconds.get(catch.name, 0.0))
                catch = stage.tests.run([catch.name], environment, limit, PATIENCE)
            if catch is not None and catch.by == "comparison":
                if compared is None and asked < COMPARISONS:
                    compared, asked = stage.tests.compared(catch.name, environment, limit), asked + 1
                catch = None
            if catch is not None:
                history.caught(mutant.file, mutant.function, catch.name)
                break
    return Outcome(mutant, catch or compared, reaching, differing, time.monotonic() - began, ran)


def diff_of(mutant: Mutant, text: str) -> list[str]:
    """The changed lines: `- before`, `+ after`."""
    if mutant.operator.startswith("omit"):
        changed = ""
    else:
        changed = mutant.after
    begin = text.rfind("\n", 0, mutant.begin) + 1
    end = text.find("\n", mutant.end)
    end = len(text) if end < 0 else end
    before = text[begin:end].splitlines()
    after = (text[begin : mutant.begin] + changed + text[mutant.end : end]).splitlines()
    lines = list(difflib.ndiff(before, after))
    return [one_line(line[:2]) + " " + line[2:].strip() for line in lines if line[0] in "-+" and line[2:].strip()]


def read_equivalents(path: Path) -> dict[str, str]:
    """Keys of mutants with the reason why no test can tell them from the original. Two lines each: `reason: ...`, then the key."""
    found: dict[str, str] = {}
    reason = ""
    if not path.is_file():
        return found
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("reason: "):
            reason = line.removeprefix("reason: ").strip()
        elif not reason:
            raise ValueError(f"{path}:{number}: a mutant without a line `reason: ...` before it")
        else:
            found[line.strip()] = reason
    return found


def stale(equivalents: dict[str, str], mutants: dict[str, list[Mutant]], root: Path) -> list[str]:
    """The keys of equivalents that no mutant has any more. Of the sources that are there, only those in `mutants` were read."""
    keys = {one.key for own in mutants.values() for one in own}
    files = {key: key.split("|")[0] for key in equivalents}
    return [key for key, file in files.items() if key not in keys and (file in mutants or not (root / file).exists())]


def row_of(outcome: Outcome, text: str) -> dict:
    mutant, catch = outcome.mutant, outcome.catch
    row = {"kind": "mutant", "number": mutant.number, "file": mutant.file, "line": mutant.line, "operator": mutant.operator,
           "verdict": outcome.verdict, "seconds": round(outcome.seconds, 2), "reaching": outcome.num_reaching,
           "differing": outcome.num_differing, "ran": outcome.num_ran, "diff": diff_of(mutant, text), "key": mutant.key}  # fmt: skip
    if catch:
        row |= {"by": catch.name, "check": catch.check, "check_kind": outcome.kind}
    if outcome.reason:
        row["reason"] = outcome.reason
    return row


BY_RUNS = ("scenario", "comparison")
CAUGHT = (*BY_RUNS, "unit test")


def share(rows: list[dict], *verdicts: str) -> float:
    counted = [row for row in rows if row["verdict"] != "equivalent"]
    return sum(row["verdict"] in verdicts for row in counted) / len(counted) if counted else 1.0


def table(rows: list[dict]) -> str:
    lines = []
    columns = ["scenario", "comparison", "unit test", "survived", "out of time", "no difference", "not covered", "equivalent"]
    for title, group in (("folder", lambda row: "/".join(row["file"].split("/")[:2])), ("operator", lambda row: row["operator"])):
        lines.append(f"{title:<20}" + "".join(f"{name:>13}" for name in ["mutants", *columns, "caught %", "runs %", "scenarios %"]))
        groups = collections.defaultdict(list)
        for row in rows:
            groups[group(row)].append(row)
        for name, own in [*sorted(groups.items()), ("all", rows)]:
            counts = [len(own)] + [sum(row["verdict"] == verdict for row in own) for verdict in columns]
            shares = [f"{100 * share(own, *verdicts):.1f}" for verdicts in (CAUGHT, BY_RUNS, ("scenario",))]
            lines.append(f"{name:<20}" + "".join(f"{cell:>13}" for cell in [*counts, *shares]))
        lines.append("")
    checks = collections.Counter(row["check_kind"] for row in rows if row["verdict"] == "scenario")
    lines.append("checks of scenarios: " + ", ".join(f"{name} {count}" for name, count in checks.most_common()))
    compared = collections.Counter(row["check_kind"] for row in rows if row["verdict"] == "comparison")
    lines.append("comparisons: " + ", ".join(f"{name} {count}" for name, count in compared.most_common()))
    return "\n".join(lines)


def survivors(rows: list[dict]) -> str:
    lines = []
    for row in rows:
        how = {
            "survived": f"survived all {row['differing']} in which it makes a difference",
            "out of time": f"survived {row['ran']} of the {row['differing']} in which it makes a difference, for lack of time",
            "no difference": f"makes no difference where it stands in the {row['reaching']} that reach it",
            "not covered": "not covered",
            "unit test": f"unit test only: {row.get('by')}; {row['ran']} of {row['differing']} in which it makes a difference ran",
        }.get(row["verdict"])
        if how:
            lines.append(f"{row['file']}:{row['line']}: {row['operator']} ({how})")
            lines += [f"    {line}" for line in row["diff"]]
    return "\n".join(lines)


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def add_row(path: Path, row: dict) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
