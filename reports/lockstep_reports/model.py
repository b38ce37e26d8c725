"""A run, its cases and their evidence as plain values, which rows.py reads from a results file. None means that the file does not
hold the value, or holds one of the wrong type; the page shows it as absent.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterable

from .values import numbers_by_rank, same_bits

EXPECTED = ("PASS", "XFAIL", "SKIP", "UNSUPPORTED")
LEFT_OUT = ("SKIP", "UNSUPPORTED")  # not run
UNEXPECTED = ("CRASH", "HANG", "FAIL", "INVALID", "XPASS", "MISSING")
STATUSES = ("PASS", "FAIL", "XFAIL", "XPASS", "SKIP", "UNSUPPORTED", "HANG", "CRASH", "INVALID", "MISSING")

MEANING = {
    "PASS": "all checks held, with evidence",
    "FAIL": "a check did not hold",
    "XFAIL": "failed, as the scenario expects",
    "XPASS": "passed, but the scenario expects a failure",
    "SKIP": "skipped, for the scenario's reason",
    "UNSUPPORTED": "this machine or build lacks something",
    "HANG": "ended by its timeout",
    "CRASH": "a rank died unexpectedly",
    "INVALID": "gathered no evidence",
    "MISSING": "listed, but the run ended before this case",
}

# From worst to mildest. The verdict of several cases is the first of these among them.
_WORST_FIRST = (*UNEXPECTED, "PASS", "XFAIL", "UNSUPPORTED", "SKIP")

PURPOSES = ("parameter", "gradient", "gathered", "activation", "optimizer", "communication", "other")
PHASES = ("forward", "backward", "optimizer", "other")


def is_unexpected(status: str) -> bool:
    """Whether the verdict is unexpected. An unknown verdict is."""
    return status not in EXPECTED


def worst(statuses: Iterable[str]) -> str | None:
    found = set(statuses)
    unknown = sorted(found - set(_WORST_FIRST))
    return unknown[0] if unknown else next((status for status in _WORST_FIRST if status in found), None)


# -- the rows ----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    version: str | None = None
    started: str | None = None
    command: list[str] = field(default_factory=list)
    build: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)


@dataclass
class Summary:
    counts: dict[str, int]
    seconds: float | None
    exit_code: int | None


@dataclass
class Evidence:
    comparisons: int = 0
    trivial: int = 0
    elements: int = 0
    same_bits: int = 0
    bits_required: int = 0
    bits_relaxed: int = 0  # a tolerance took their place, for the order of sums
    max_abs_difference: float | None = None
    rtol: float | None = None
    atol: float | None = None
    of_largest: float | None = None
    collectives_checked: int = 0
    orders_checked: int = 0
    errors_expected: int = 0
    planned_in_order: int = 0  # never evidence
    conditions: int = 0

    @property
    def any(self) -> bool:
        return self.comparisons + self.conditions + self.collectives_checked + self.orders_checked + self.errors_expected > 0

    def add(self, other: "Evidence") -> None:
        """Adds counts, and keeps the largest difference and tolerance. Not-a-number counts as the largest."""
        for name in EVIDENCE_COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if other.comparisons or other.max_abs_difference:
            self.max_abs_difference = _larger(self.max_abs_difference, other.max_abs_difference)
        if other.comparisons:
            for name in ("rtol", "atol", "of_largest"):
                setattr(self, name, _larger(getattr(self, name), getattr(other, name)))


EVIDENCE_COUNTS = (
    "comparisons conditions trivial elements same_bits bits_required bits_relaxed collectives_checked orders_checked errors_expected"
    " planned_in_order".split()
)


def _larger(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    if math.isnan(a) or math.isnan(b):
        return math.nan
    return max(a, b)


@dataclass
class Collective:
    family: str
    operation: str
    axis: str
    group_size: int | None
    phase: str
    count: int
    bytes: int
    rank: int | None
    stage: str | None


@dataclass
class PlanRow:
    """The collectives that rank 0 was planned to issue, and those that it issued."""

    family: str
    operation: str
    axis: str
    group_size: int | None
    phase: str
    planned: int
    planned_bytes: int
    bytes_are_least: bool  # more were allowed
    observed: int
    observed_bytes: int
    stage: str | None

    @property
    def count_differs(self) -> bool:
        return self.planned != self.observed

    @property
    def bytes_differ(self) -> bool:
        if self.bytes_are_least:
            return self.observed_bytes < self.planned_bytes
        return self.observed_bytes != self.planned_bytes

    @property
    def differs(self) -> bool:
        return self.count_differs or self.bytes_differ


@dataclass
class Failure:
    check: str | None
    file: str | None
    line: int | None
    column: int | None
    rank: int | None
    iteration: int | None
    message: str | None
    also: list[str]
    source: list[str] = field(default_factory=list)  # the lines of the step in its file, from `line` on
    scenario_line: int | None = None  # of the scenario's own file, where it uses the routine of `file`

    @property
    def listing(self) -> str:
        """The lines of the step with their numbers."""
        first = self.line or 1
        width = len(str(first + len(self.source) - 1))
        return "\n".join(f"{number:>{width}} | {line}" for number, line in enumerate(self.source, first))

    @property
    def place(self) -> str | None:
        if not self.file:
            return None
        parts = [self.file]
        if self.line:
            parts.append(str(self.line))
            if self.column:
                parts.append(str(self.column))
        return ":".join(parts)


@dataclass
class Curves:
    """Losses by rank. A rank without records has an empty list."""

    losses: list[list[float]]
    reference: list[list[float]] | None

    @property
    def points(self) -> int:
        return sum(len(rank) for rank in self.losses)

    def compared(self) -> list[tuple[float, float]]:
        """Pairs (loss, reference) of all ranks and iterations that have both."""
        if self.reference is None:
            return []
        return [pair for ours, theirs in zip(self.losses, self.reference) for pair in zip(ours, theirs)]

    @property
    def num_same_bits(self) -> int:
        return sum(same_bits(ours, theirs) for ours, theirs in self.compared())


@dataclass
class Case:
    scenario: str
    case: str
    status: str
    mirrors: int | None = None
    params: dict[str, Any] = field(default_factory=dict)
    world_size: int | None = None
    launch: str | None = None
    device: str | None = None
    sum_order: str | None = None  # "library"; None: the fixed order
    reason: str | None = None
    seconds: float | None = None
    evidence: Evidence | None = None
    collectives: list[Collective] = field(default_factory=list)
    plan: list[PlanRow] = field(default_factory=list)
    plan_not_judged: str | None = None  # why
    memory: dict[str, int] = field(default_factory=dict)
    stage_memory: dict[str, dict[str, int]] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    timeline: str | None = None  # a file, from the folder of the results file or absolute
    repro: str | None = None
    index: int = 0

    @property
    def unexpected(self) -> bool:
        return is_unexpected(self.status)

    @property
    def off_plan(self) -> bool:
        return any(row.differs for row in self.plan) or self.order_apart is not None

    @property
    def order_apart(self) -> str | None:
        """The first place where the order differs from the plan, on a rank without another failure."""
        return self.failure.message if self.failure and self.failure.check == "plan_order" else None

    @property
    def words(self) -> list[str]:
        """The entries of the case's identity."""
        return [word for word in self.case.split(",") if word]

    @property
    def curves(self) -> Curves | None:
        losses = numbers_by_rank(self.records.get("losses"))
        if losses is None:
            return None
        return Curves(losses, numbers_by_rank(self.records.get("reference_losses")))


# -- totals --------------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """The cases of one scenario, or of one mirrored test."""

    name: str
    cases: list[Case] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        return ordered_counts(case.status for case in self.cases)

    @property
    def status(self) -> str | None:
        return worst(case.status for case in self.cases)

    @property
    def ran(self) -> bool:
        return any(case.status not in LEFT_OUT for case in self.cases)

    @property
    def num_library_sums(self) -> int:
        """Cases that ran with sums in the order of a library."""
        return sum(bool(case.sum_order) and case.status not in LEFT_OUT for case in self.cases)

    @property
    def scenarios(self) -> list[str]:
        return list(dict.fromkeys(case.scenario for case in self.cases))

    @property
    def seconds(self) -> float:
        return sum(case.seconds for case in self.cases if case.seconds is not None and math.isfinite(case.seconds))

    @property
    def evidence(self) -> Evidence:
        total = Evidence()
        for case in self.cases:
            if case.evidence:
                total.add(case.evidence)
        return total


def ordered_counts(statuses: Iterable[str]) -> dict[str, int]:
    """Unexpected verdicts first, then the others, each in its fixed order."""
    counts = Counter(statuses)
    known = [status for status in _WORST_FIRST if counts[status]]
    unknown = sorted(status for status in counts if status not in _WORST_FIRST)
    return {status: counts[status] for status in unknown + known}


@dataclass
class Results:
    source: str
    run: Run | None = None
    cases: list[Case] = field(default_factory=list)
    summary: Summary | None = None
    cut_line: int | None = None  # the last line, if it is truncated
    unreadable_lines: list[int] = field(default_factory=list)
    unknown_rows: list[int] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        return ordered_counts(case.status for case in self.cases)

    @property
    def unexpected(self) -> list[Case]:
        return [case for case in self.cases if case.unexpected]

    def unexpected_groups(self) -> list[list[Case]]:
        """Unexpected cases of one scenario with the same verdict at the same step. They most likely have one cause."""
        groups: dict[tuple, list[Case]] = {}
        for case in self.unexpected:
            where = (case.failure.check, case.failure.place) if case.failure else None
            groups.setdefault((case.scenario, case.status, where), []).append(case)
        return list(groups.values())

    def by_scenario(self) -> list[Group]:
        groups: dict[str, Group] = {}
        for case in self.cases:
            groups.setdefault(case.scenario, Group(case.scenario)).cases.append(case)
        return list(groups.values())

    def mirroring(self, number: int, name: str) -> Group:
        return Group(name, [case for case in self.cases if case.mirrors == number])

    def reasons(self) -> list[tuple[str, str, list[Case]]]:
        """(status, reason, cases) of the cases that did not run or failed as expected."""
        found: dict[tuple[str, str], list[Case]] = {}
        for case in self.cases:
            if case.status in ("SKIP", "UNSUPPORTED", "XFAIL"):
                found.setdefault((case.status, case.reason or ""), []).append(case)
        return [(status, reason, cases) for (status, reason), cases in found.items()]

    def collective_totals(self) -> list[Collective]:
        """By family, operation and phase over all cases, of rank 0 (a row without a rank holds for all)."""
        totals: dict[tuple[str, str, str], Collective] = {}
        for case in self.cases:
            for row in case.collectives:
                if row.rank not in (None, 0):
                    continue
                key = (row.family, row.operation, row.phase)
                total = totals.setdefault(key, Collective(*key[:2], "", None, key[2], 0, 0, None, None))
                total.count += row.count
                total.bytes += row.bytes
        order = {phase: place for place, phase in enumerate(PHASES)}
        return sorted(totals.values(), key=lambda row: (row.family, row.operation, order.get(row.phase, len(order))))

    def warnings(self) -> list[str]:
        """Notes about irregularities of the file itself."""
        found = []
        if self.cut_line:
            found.append(f"Line {self.cut_line}, the last, is truncated: the run ended while it was written.")
        if self.unreadable_lines:
            found.append(f"{_lines(self.unreadable_lines)} no JSON object and skipped.")
        if self.unknown_rows:
            found.append(f"{_lines(self.unknown_rows)} of a kind unknown to this page and skipped.")
        if not self.run:
            found.append("The file has no row for the run: command, build and machine are unknown.")
        if not self.summary:
            found.append("The file has no summary: the run has not ended, or was interrupted.")
        elif self.summary.counts != self.counts:
            said = ", ".join(f"{number} {status}" for status, number in ordered_counts_of(self.summary.counts)) or "none"
            found.append(f"The counts of the file's summary differ from its cases: {said}.")
        return found


def ordered_counts_of(counts: dict[str, int]) -> list[tuple[str, int]]:
    return list(ordered_counts(Counter(counts).elements()).items())


def _lines(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"Line {numbers[0]} is"
    shown = ", ".join(str(number) for number in numbers[:5]) + (" ..." if len(numbers) > 5 else "")
    return f"{len(numbers)} lines ({shown}) are"
