"""From the rows of a results file to the values of model.py. A field of the wrong type becomes absent."""

from __future__ import annotations

from typing import Any

from .model import EVIDENCE_COUNTS, Case, Collective, Evidence, Failure, PlanRow, Run, Summary
from .values import count_of, list_of, map_of, name_of, number_of, shown_in, text_of


def run_from(row: dict) -> Run:
    named = lambda value: {str(key): text_of(item) or "" for key, item in map_of(value).items()}  # noqa: E731
    return Run(
        version=text_of(row.get("version")),
        started=text_of(row.get("started")),
        command=[name_of(word) or "" for word in list_of(row.get("command"))],
        build=named(row.get("build")),
        machine=named(row.get("machine")),
    )


def summary_from(row: dict) -> Summary:
    counts = {str(status): count_of(number) or 0 for status, number in map_of(row.get("counts")).items()}
    return Summary(
        {status: number for status, number in counts.items() if number},
        number_of(row.get("seconds")),
        count_of(row.get("exit_code")),
    )


def _evidence_from(value: Any) -> Evidence | None:
    if not isinstance(value, dict):
        return None
    loosest = map_of(value.get("loosest"))
    return Evidence(
        **{name: count_of(value.get(name)) or 0 for name in EVIDENCE_COUNTS},
        max_abs_difference=number_of(value.get("max_abs_difference")),
        rtol=number_of(loosest.get("rtol")),
        atol=number_of(loosest.get("atol")),
        of_largest=number_of(loosest.get("of_largest")),
    )


def _kind_of_collective(value: dict) -> dict[str, Any]:
    words = {name: text_of(value.get(name)) or "" for name in ("family", "operation", "axis", "phase")}
    return {**words, "group_size": count_of(value.get("group_size")), "stage": text_of(value.get("stage"))}


def _collective_from(value: dict) -> Collective:
    return Collective(
        **_kind_of_collective(value),
        count=count_of(value.get("count")) or 0,
        bytes=count_of(value.get("bytes")) or 0,
        rank=count_of(value.get("rank")),
    )


def _plan_row_from(value: dict) -> PlanRow:
    return PlanRow(
        **_kind_of_collective(value),
        planned=count_of(value.get("planned")) or 0,
        planned_bytes=count_of(value.get("planned_bytes")) or 0,
        bytes_are_least=value.get("bytes_are_least") is True,
        observed=count_of(value.get("observed")) or 0,
        observed_bytes=count_of(value.get("observed_bytes")) or 0,
    )


def _failure_from(value: Any) -> Failure | None:
    if not isinstance(value, dict):
        return None
    rank, iteration = count_of(value.get("rank")), count_of(value.get("iteration"))
    return Failure(
        check=text_of(value.get("check")),
        file=name_of(value.get("file")),
        line=count_of(value.get("line")),
        column=count_of(value.get("column")),
        rank=rank if rank is not None and rank >= 0 else None,
        iteration=iteration if iteration is not None and iteration >= 0 else None,
        message=text_of(value.get("message")),
        also=[text_of(line) or "" for line in list_of(value.get("also"))],
        source=[text_of(line) or "" for line in list_of(value.get("source"))],
        scenario_line=count_of(value.get("scenario_line")),
    )


def _peaks_from(value: Any) -> dict[str, int]:
    peaks = {str(purpose): count_of(size) for purpose, size in map_of(value).items()}
    return {purpose: size for purpose, size in peaks.items() if size is not None}


def _plan_rows(plan: Any) -> list:
    """The field itself if the plan was judged, else the collectives of rank 0."""
    return list_of(plan.get("collectives")) if isinstance(plan, dict) else list_of(plan)


def _why_not_judged(plan: Any) -> str | None:
    if not isinstance(plan, dict) or plan.get("judged") is not False:
        return None
    return text_of(plan.get("reason")) or "no reason is given"


def case_from(row: dict) -> Case:
    memory = map_of(row.get("memory"))
    return Case(
        scenario=name_of(row.get("scenario")) or "(no name)",
        case=name_of(row.get("case")) or "",
        status=text_of(row.get("status")) or "(no verdict)",
        mirrors=count_of(row.get("mirrors")),
        params=shown_in(map_of(row.get("params"))),
        world_size=count_of(row.get("world_size")),
        launch=text_of(row.get("launch")),
        device=text_of(row.get("device")),
        sum_order=text_of(row.get("sum_order")) or None,
        reason=text_of(row.get("reason")),
        seconds=number_of(row.get("seconds")),
        evidence=_evidence_from(row.get("evidence")),
        collectives=[_collective_from(item) for item in list_of(row.get("collectives")) if isinstance(item, dict)],
        plan=[_plan_row_from(item) for item in _plan_rows(row.get("plan")) if isinstance(item, dict)],
        plan_not_judged=_why_not_judged(row.get("plan")),
        memory=_peaks_from(memory),
        stage_memory={str(stage): _peaks_from(peaks) for stage, peaks in map_of(memory.get("stages")).items()},
        records=shown_in(map_of(row.get("records"))),
        failure=_failure_from(row.get("failure")),
        timeline=row.get("timeline") if isinstance(row.get("timeline"), str) and row["timeline"] else None,
        repro=name_of(row.get("repro")),
    )
