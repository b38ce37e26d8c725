"""The page of a run: index.html as one text that needs no other file."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from . import case_data, plots
from .case_data import cut, document_of, relative_tolerance_text, same_bits_text, tolerance_text
from .documents import DOCUMENTS, NUM_TESTS
from .formats import NONE, format_bytes, format_count, format_difference, format_seconds
from .model import LEFT_OUT, MEANING, PHASES, PURPOSES, STATUSES, Case, Group, Results, is_unexpected
from .timeline import Timeline, UnreadableTimeline, page_data, read_timeline

TEMPLATES = Path(__file__).resolve().parent / "templates"

MAX_PLOTS = 24
MAX_FAILURES = 60
MAX_OPEN_FAILURES = 5
MAX_MEMORY_BARS = 16
NUM_SLOWEST = 10
MAX_TIMELINES = 8
MAX_TIMELINE_CHARACTERS = 2_000_000  # of all timelines together
MAX_PLANS = 40


@dataclass
class TestRow:
    number: int
    group: Group


@dataclass
class DocumentSection:
    title: str
    about: str
    rows: list[TestRow]

    @property
    def num_run(self) -> int:
        return sum(row.group.ran for row in self.rows)


@dataclass
class LossFigure:
    case: Case
    svg: Markup
    caption: str
    num_ranks: int
    has_reference: bool


@dataclass
class TimelineFigure:
    """A case with its timeline, or with the reason why it has none."""

    id: str
    case: Case
    file: str
    timeline: Timeline | None = None
    data: Markup = Markup()
    shown: int = 0
    memory_svg: Markup | None = None
    problem: str = ""


def render(results: Results, max_plots: int = MAX_PLOTS, max_timelines: int = MAX_TIMELINES) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        bytes=format_bytes,
        count=format_count,
        seconds=format_seconds,
        difference=format_difference,
        cut=cut,
        kind=_kind,
        breaks=_breaks,
    )
    environment.globals.update(
        NONE=NONE,
        MEANING=MEANING,
        max_listing=case_data.MAX_LISTING,
        limits=case_data.Limits(len(results.cases), len(results.unexpected)),
        tolerance=tolerance_text,
        relative_tolerance=relative_tolerance_text,
        same_bits_of=same_bits_text,
        is_unexpected=is_unexpected,
        plan_cells=case_data.plan_cells,
        phase_color=plots.phase_color,
        purpose_color=plots.purpose_color,
    )
    cases_with_losses = [case for case in results.cases if case.curves]
    timelines = _timelines(results, max_timelines)
    with_timeline = [case for case in results.cases if case.timeline]
    planned = [case for case in results.cases if case.plan]
    totals = results.collective_totals()
    heaviest = _heaviest(results)
    groups = results.by_scenario()
    documents = [
        DocumentSection(
            document.title,
            document.about,
            [TestRow(number, results.mirroring(number, name)) for number, name in document.tests.items()],
        )
        for document in DOCUMENTS
    ]
    return environment.get_template("index.html.j2").render(
        results=results,
        headline=headline(results),
        total=Group("", results.cases),
        statuses=STATUSES,
        documents=documents,
        num_tests=NUM_TESTS,
        num_tests_run=sum(document.num_run for document in documents),
        others=[group for group in groups if not any(_mirrors_a_test(case) for case in group.cases)],
        failures=results.unexpected_groups(),
        max_failures=MAX_FAILURES,
        max_open_failures=MAX_OPEN_FAILURES,
        figures=[_loss_figure(case) for case in choose_for_plots(cases_with_losses, max_plots)],
        num_with_losses=len(cases_with_losses),
        timelines=timelines,
        timeline_of={figure.case.index: figure.id for figure in timelines},
        num_with_timeline=len(with_timeline),
        planned=planned,
        num_plan_rows=sum(len(case.plan) for case in planned),
        off_plan=[case for case in planned if case.off_plan],
        not_judged=[case for case in results.cases if case.plan_not_judged],
        max_plans=MAX_PLANS,
        choices=_choices(results),
        packed=_packed(
            case_data.page_data(results, _timeline_places(with_timeline, timelines)),
            environment.get_template("groups.html.j2").render(groups=groups),
        ),
        totals=totals,
        phases=[phase for phase in PHASES if any(row.phase == phase for row in totals)],
        collectives_svg=plots.collectives_plot(totals) if totals else None,
        purposes=PURPOSES,
        heaviest=heaviest,
        num_with_memory=sum(bool(case.memory) for case in results.cases),
        memory_svg=plots.memory_plot([(_short_name(case), case) for case in heaviest]) if heaviest else None,
        slowest=_slowest(results),
        reasons=results.reasons(),
        groups=groups,
    )


def headline(results: Results) -> tuple[str, str]:
    """(tone, sentence): the results in one line. Cases that did not run are counted separately."""
    number, bad = len(results.cases), len(results.unexpected)
    left_out = sum(case.status in LEFT_OUT for case in results.cases)
    ran = number - left_out
    apart = f", {left_out} left out" if left_out else ""
    if number == 0:
        return "none", "No case in this file"
    if bad:
        return "bad", f"{bad} of {_cases(ran)} came out unexpectedly{apart}"
    if ran == 0:
        return "none", "Nothing was executed: every case was skipped"
    if results.summary is None:
        return "none", f"No unexpected result among the {_cases(ran)} before the file ends{apart}"
    if results.summary.exit_code not in (0, None):
        return "bad", f"No unexpected result in {_cases(ran)}, but the run ended with exit code {results.summary.exit_code}"
    return "good", (f"All {_cases(ran)} as expected" if ran != 1 else "The one case as expected") + apart


def _cases(number: int) -> str:
    return f"{number} case{'s' * (number != 1)}"


def choose_for_plots(cases: list[Case], at_most: int) -> list[Case]:
    """As many cases as fit, in the order of the file: unexpected ones first, then one per scenario, then the rest."""
    chosen: dict[int, Case] = {}
    seen: set[str] = set()
    for case in cases:
        if case.unexpected:
            chosen[case.index] = case
            seen.add(case.scenario)
    for case in cases:
        if case.scenario not in seen:
            chosen.setdefault(case.index, case)
            seen.add(case.scenario)
    for case in cases:
        chosen.setdefault(case.index, case)
    return sorted(list(chosen.values())[: max(at_most, 0)], key=lambda case: case.index)


def choose_for_timelines(cases: list[Case], at_most: int) -> list[Case]:
    """One unexpected case per scenario, then one case of each other scenario, then the other unexpected ones, then the rest."""
    first: dict[tuple[str, bool], int] = {}
    for case in cases:
        first.setdefault((case.scenario, case.unexpected), case.index)

    def urgency(case: Case) -> tuple[int, int]:
        alone = first[case.scenario, case.unexpected] == case.index
        if alone and (case.unexpected or (case.scenario, True) not in first):
            return (0 if case.unexpected else 1), case.index
        return (2 if case.unexpected else 3), case.index

    return sorted(sorted(cases, key=urgency)[: max(at_most, 0)], key=lambda case: (not case.unexpected, case.index))


def _loss_figure(case: Case) -> LossFigure:
    curves = case.curves
    assert curves is not None
    parts = []
    compared = curves.compared()
    if compared:
        same = curves.num_same_bits
        differences = [abs(ours - theirs) for ours, theirs in compared]
        if same == len(compared):
            parts.append(f"same bits at all {same} points")
        else:
            finite = [value for value in differences if math.isfinite(value)]
            parts.append(f"same bits at {same} of {len(compared)} points")
            if finite:
                parts.append(f"largest difference {format_difference(max(finite))}")
        if len(compared) != curves.points:
            parts.append(f"{curves.points - len(compared)} points have no reference")
    elif curves.reference is None:
        parts.append("no reference recorded")
    not_finite = plots.num_not_finite(curves)
    if not_finite:
        parts.append(f"{not_finite} value{'s' * (not_finite != 1)} not finite, not drawn")
    label = f"Losses of {case.scenario}, {case.case}"
    return LossFigure(case, plots.loss_plot(curves, label), "; ".join(parts), len(curves.losses), bool(compared))


def _heaviest(results: Results) -> list[Case]:
    """The case with the highest peak per scenario, the highest first."""
    best: dict[str, Case] = {}
    for case in results.cases:
        peak = case.memory.get("peak_total")
        if peak and peak > best.get(case.scenario, case).memory.get("peak_total", 0) - (case.scenario not in best):
            best[case.scenario] = case
    ordered = sorted(best.values(), key=lambda case: -case.memory["peak_total"])
    return ordered[:MAX_MEMORY_BARS]


def _slowest(results: Results) -> list[Case]:
    timed = [case for case in results.cases if case.seconds is not None and math.isfinite(case.seconds) and case.seconds > 0]
    return sorted(timed, key=lambda case: -(case.seconds or 0))[:NUM_SLOWEST]


def _mirrors_a_test(case: Case) -> bool:
    return case.mirrors is not None and 1 <= case.mirrors <= NUM_TESTS


def _short_name(case: Case) -> str:
    name = case.scenario if len(case.scenario) <= 44 else case.scenario[:43] + "\N{HORIZONTAL ELLIPSIS}"
    return f"{name}  W={case.world_size}" if case.world_size else name


# -- timelines ---------------------------------------------------------------------------------------------------------


def _timelines(results: Results, at_most: int) -> list[TimelineFigure]:
    figures: list[TimelineFigure] = []
    room = MAX_TIMELINE_CHARACTERS
    for case in choose_for_timelines([case for case in results.cases if case.timeline], at_most):
        file = os.path.normpath(Path(results.source).parent / (case.timeline or ""))
        figure = TimelineFigure(f"timeline-{len(figures)}", case, file)
        try:
            figure.timeline = read_timeline(Path(file))
            figure.data, figure.shown = _timeline_data(figure.timeline, room // (at_most - len(figures)))
            figure.memory_svg = plots.memory_over_time_plot(figure.timeline, f"Memory of {case.scenario}, {case.case}")
        except UnreadableTimeline as error:
            figure.problem = str(error)
        room = max(room - len(figure.data), 0)
        figures.append(figure)
    return figures


def _timeline_data(timeline: Timeline, at_most: int) -> tuple[Markup, int]:
    """As many boxes as fit into the given number of characters. A few attempts suffice, because boxes differ little in length."""
    data = page_data(timeline)
    text = _json(data)
    while len(text) > at_most and data["shown"] > 100:
        data = page_data(timeline, int(data["shown"] * max(0.9 * at_most / len(text), 0.1)))
        text = _json(data)
    return text, data["shown"]


def _timeline_places(cases: list[Case], figures: list[TimelineFigure]) -> dict[int, tuple[str, str]]:
    drawn = {figure.case.index: figure.id for figure in figures}
    places = {}
    for case in cases:
        where = f"is in {case.timeline}, a trace for Perfetto"
        places[case.index] = (drawn.get(case.index, ""), where)
    return places


def _choices(results: Results) -> list[tuple[str, list[tuple[str, str]]]]:
    """The selects beside the filter box: name, then value and text of each choice that occurs."""
    documents = {document_of(case) for case in results.cases}
    titles = [(str(place), document.title) for place, document in enumerate(DOCUMENTS) if str(place) in documents]
    titles += [("other", "no document")] if "other" in documents else []
    launches = sorted({case.launch for case in results.cases if case.launch})
    devices = sorted({case.device for case in results.cases if case.device})
    return [
        ("document", titles),
        ("launch", [(launch, launch) for launch in launches]),
        ("device", [(device, device) for device in devices]),
    ]


# -- filters of the templates ------------------------------------------------------------------------------------------


def _breaks(name: str) -> Markup:
    """Lets a long name break after its underscores and slashes, rather than anywhere."""
    return Markup(re.sub(r"(?<=[_/])(?=\w)", "<wbr>", str(escape(name))))


def _kind(status: str) -> str:
    """The CSS class of a verdict; one class for all unknown ones."""
    return status.lower() if status in STATUSES else "unknown"


def _packed(data: dict[str, Any], groups: str) -> Markup:
    """The data of the cases and their list as HTML, compressed (the text repeats itself twentyfold) and encoded as base64."""
    text = json.dumps({**data, "groups": groups}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 9)).decode("ascii"))


def _json(value: Any) -> Markup:
    """Data for the script, escaped so that nothing can end its script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
