"""The data of each case for the page's script: small, formatted, and bounded for results files of any size."""

from __future__ import annotations

import json
from typing import Any

from .documents import DOCUMENTS
from .formats import NONE, format_bytes, format_count, format_difference, format_tolerance
from .model import PURPOSES, Case, Collective, Evidence, Failure, PlanRow, Results

MAX_ROWS = 40
MAX_ALSO = 16
MAX_SIBLINGS = 40
MAX_RECORDS = 12
MAX_LISTING = 2000  # characters of a step, as written in its file
MAX_SEARCHED = 400
FACTS = (
    "comparisons", "conditions", "trivial", "elements", "same bits", "bits required", "largest difference", "loosest tolerance",
    "collectives checked", "orders checked", "errors expected", "in planned order",
)  # fmt: skip
# Heads of tables, each with a mark for columns of numbers. A table names its head by the index here.
HEADS = (
    ("stage", False), ("rank", False), ("family", False), ("operation", False), ("axis", False), ("group", True), ("phase", False),
    ("count", True), ("bytes", True), ("planned", True), ("observed", True), ("bytes planned", True), ("bytes observed", True),
)  # fmt: skip
_STAGE, _RANK, _FAMILY, _OPERATION, _AXIS, _GROUP, _PHASE, _COUNT, _BYTES, _PLANNED, _OBSERVED, _BYTES_PLANNED, _BYTES_OBSERVED = range(
    len(HEADS)
)


def _between(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))


class Limits:
    """Limits of the texts of a case. They shrink as the number of cases grows, so that the size of the page stays bounded."""

    def __init__(self, num_cases: int, num_unexpected: int):
        self.records = _between(600, 800_000 // max(num_cases, 1), 12_000)  # of a case, shared by its records
        self.message = _between(400, 800_000 // max(num_unexpected, 1), 6000)
        self.also = _between(160, self.message // 6, 1000)
        self.num_also = MAX_ALSO if self.message >= 3000 else 4
        self.siblings = MAX_SIBLINGS if self.message >= 3000 else 10


def page_data(results: Results, timelines: dict[int, tuple[str, str]]) -> dict[str, Any]:
    """`timelines` maps the index of a case to the id of its timeline in the page ("" if it is not drawn) and the path of its file."""
    limits = Limits(len(results.cases), len(results.unexpected))
    return {
        "facts": FACTS,
        "heads": HEADS,
        "cases": [_case(case, limits, timelines.get(case.index)) for case in results.cases],
    }


def _case(case: Case, limits: Limits, timeline: tuple[str, str] | None) -> dict[str, Any]:
    data: dict[str, Any] = {"words": search_words(case), "chosen": [document_of(case), case.launch or "", case.device or ""]}
    searched = " ".join(filter(None, (case.reason, case.failure.message if case.failure else None)))
    if searched:
        data["text"] = " ".join(searched.split())[:MAX_SEARCHED].lower()
    if case.failure:
        data["failure"] = _failure(case.failure, limits)
    elif case.unexpected:
        data["no_failure"] = f"The results file gives no failure for it{_why_none(case)}."
    if case.reason:
        data["reason"] = cut(case.reason, limits.message)
    if case.plan_not_judged:
        data["plan"] = "The plan was not judged: " + cut(case.plan_not_judged, limits.message)
    if case.sum_order:
        data["sums"] = _sums(case)
    if case.evidence:
        data["evidence"] = _evidence(case.evidence)
    tables = [table for table in (_plan(case.plan), _collectives(case.collectives)) if table]
    if tables:
        data["tables"] = tables
    if case.memory:
        data["memory"] = [_peaks("Peak memory", case.memory)]
        data["memory"] += [_peaks(f"in stage {stage}", peaks) for stage, peaks in list(case.stage_memory.items())[:MAX_RECORDS]]
    if case.records:
        data["records_title"] = "recorded: " + cut(", ".join(case.records), 200)
        shown = list(case.records.items())[:MAX_RECORDS]
        room = min(limits.records // len(shown), 1200)
        data["records"] = [[cut(name, 200), value_text(value, room)] for name, value in shown]
    if timeline:
        data["timeline"] = timeline
    if case.repro:
        data["repro"] = case.repro
    return data


def _sums(case: Case) -> str:
    text = f"Sums over ranks have the order {cut(case.sum_order or '', 40)}"
    num = case.evidence.bits_relaxed if case.evidence else 0
    return f"{text}. A tolerance took the place of required bits in {format_count(num)} comparison{'' if num == 1 else 's'}."


def _why_none(case: Case) -> str:
    if case.status == "MISSING":
        return ": the run ended before this case"
    return ": it passed, but the scenario expects it to fail" if case.status == "XPASS" else ""


def _failure(failure: Failure, limits: Limits) -> dict[str, Any]:
    more = "" if failure.rank is None else f", rank {failure.rank}"
    more += "" if failure.iteration is None else f", iteration {failure.iteration}"
    data: dict[str, Any] = {"check": failure.check, "place": failure.place, "more": more}
    if failure.source:
        data["listing"] = cut(failure.listing, MAX_LISTING)
    if failure.message:
        data["message"] = cut(failure.message, limits.message)
    if failure.also:
        data["also"] = [cut(line, limits.also) for line in failure.also[: limits.num_also]]
        data["num_also"] = len(failure.also)
        if len(failure.also) > limits.num_also:
            data["also"].append(f"{len(failure.also) - limits.num_also} more in the results file.")
    return data


def _evidence(evidence: Evidence) -> list[str]:
    counts = (
        evidence.comparisons, evidence.conditions, evidence.trivial, evidence.elements, evidence.same_bits, evidence.bits_required,
        evidence.collectives_checked, evidence.orders_checked, evidence.errors_expected,
        evidence.planned_in_order,
    )  # fmt: skip
    texts = [format_count(count) for count in counts]
    difference = format_difference(evidence.max_abs_difference) if evidence.comparisons else NONE
    return texts[:6] + [difference, tolerance_text(evidence)] + texts[6:]


def _collectives(rows: list[Collective]) -> dict[str, Any] | None:
    if not rows:
        return None
    heads = [_FAMILY, _OPERATION, _AXIS, _GROUP, _PHASE, _COUNT, _BYTES]
    ranks, stages = any(row.rank is not None for row in rows), any(row.stage for row in rows)
    heads = [_STAGE] * stages + [_RANK] * ranks + heads
    return {
        "title": "Collectives",
        "kind": "",
        "heads": heads,
        "rows": [
            [row.stage or ""] * stages
            + ["all" if row.rank is None else str(row.rank)] * ranks
            + [row.family, row.operation, row.axis, _group(row.group_size), row.phase, format_count(row.count), format_count(row.bytes)]
            for row in rows[:MAX_ROWS]
        ],
        "note": _more(rows),
    }


def _plan(rows: list[PlanRow]) -> dict[str, Any] | None:
    """Planned and observed collectives side by side. A cell that differs is a list with one entry, which the script marks."""
    if not rows:
        return None
    num_off = sum(row.differs for row in rows)
    stages = any(row.stage for row in rows)
    ordered = [row for row in rows if row.differs] + [row for row in rows if not row.differs]
    return {
        "title": "Collectives planned and observed: " + (f"{num_off} of {len(rows)} rows differ" if num_off else "all agree"),
        "kind": "plan",
        "heads": [_STAGE] * stages
        + [_FAMILY, _OPERATION, _AXIS, _GROUP, _PHASE, _PLANNED, _OBSERVED, _BYTES_PLANNED, _BYTES_OBSERVED],
        "rows": [[row.stage or ""] * stages + plan_cells(row) for row in ordered[:MAX_ROWS]],
        "note": _more(rows),
    }


def plan_cells(row: PlanRow) -> list[Any]:
    observed, seen_bytes = format_count(row.observed), format_count(row.observed_bytes)
    return [
        row.family,
        row.operation,
        row.axis,
        _group(row.group_size),
        row.phase,
        format_count(row.planned),
        [observed] if row.count_differs else observed,
        ("\N{GREATER-THAN OR EQUAL TO} " if row.bytes_are_least else "") + format_count(row.planned_bytes),
        [seen_bytes] if row.bytes_differ else seen_bytes,
    ]


def _group(size: int | None) -> str:
    return NONE if size is None else str(size)


def _more(rows: list) -> str:
    return f"{len(rows) - MAX_ROWS} more rows in the results file." if len(rows) > MAX_ROWS else ""


def _peaks(name: str, memory: dict[str, int]) -> list[str]:
    known = [(purpose, memory[purpose]) for purpose in PURPOSES if purpose in memory]
    known += [(purpose, size) for purpose, size in memory.items() if purpose not in PURPOSES and purpose != "peak_total"]
    peak = format_bytes(memory["peak_total"]) if "peak_total" in memory else ""
    rest = ", ".join(f"{purpose} {format_bytes(size)}" for purpose, size in known)
    return [name, peak, f": {cut(rest, 400)}" if rest else ""]


# -- texts, also for the templates -------------------------------------------------------------------------------------


def document_of(case: Case) -> str:
    """The index of the document whose test the case mirrors, as text; "other" without one."""
    for place, document in enumerate(DOCUMENTS):
        if case.mirrors in document.tests:
            return str(place)
    return "other"


def search_words(case: Case) -> str:
    """The text that the filter box searches. Words with `=` or `:` must match whole."""
    words = [case.scenario, *case.words, case.status]
    if case.mirrors is not None:
        words.append(f"test:{case.mirrors}")
    if case.unexpected:
        words.append("is:unexpected")
    if case.timeline:
        words.append("has:timeline")
    if case.off_plan:
        words.append("is:off-plan")
    if case.plan_not_judged:
        words.append("is:not-planned")
    return f" {' '.join(words)} ".lower()


def cut(text: str | None, at_most: int) -> str:
    if text is None:
        return ""
    return text if len(text) <= at_most else f"{text[:at_most]} ... ({len(text) - at_most} more characters in the results file)"


def value_text(value: Any, at_most: int) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return cut(text, at_most)


def tolerance_text(evidence: Evidence | None) -> str:
    if evidence is None or evidence.comparisons == 0:
        return NONE
    return format_tolerance(evidence.rtol, evidence.atol, evidence.of_largest)


def relative_tolerance_text(evidence: Evidence | None) -> str:
    """The loosest tolerance over many comparisons. An absolute tolerance is omitted: it has no meaning across values of different size."""
    if evidence is None or evidence.comparisons == 0:
        return NONE
    return format_tolerance(evidence.rtol, None, evidence.of_largest)


def same_bits_text(evidence: Evidence | None) -> str:
    """The number of comparisons with equal bits, and the number of comparisons."""
    if evidence is None or evidence.comparisons == 0:
        return NONE
    if evidence.same_bits == evidence.comparisons:
        return "all"
    return format_count(evidence.same_bits)
