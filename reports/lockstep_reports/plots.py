"""Plots as inline SVG.

Figures are drawn in placeholder colours that become the page's CSS variables, so that they follow its light and dark
scheme. Every id gets a prefix, so that many figures fit into one page. Texts stay selectable text.
"""

from __future__ import annotations

import html
import io
import math
import re
from itertools import count, groupby
from typing import Callable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from markupsafe import Markup

from .formats import format_bytes, format_count
from .model import PHASES, PURPOSES, Case, Collective, Curves
from .timeline import Bound, Timeline
from .values import same_bits

NUM_SERIES = 8
MAX_LABEL_CHARACTERS = 56
_INK, _GRID, _MUTED, _SURFACE = "#b20001", "#b20002", "#b20003", "#b20004"
_SERIES = [f"#a1000{number}" for number in range(1, NUM_SERIES + 1)]
_VARIABLES = {_INK: "--ink", _GRID: "--line", _MUTED: "--muted", _SURFACE: "--surface"} | {
    color: f"--s{number}" for number, color in enumerate(_SERIES, start=1)
}

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lockstep",
    "font.size": 9,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlecolor": _INK,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-3, 5),
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _GRID,
    "ytick.color": _GRID,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "text.color": _INK,
}

_prefixes = count(1)
_LOSS_WIDTH = 3.9
# Beyond this a plot's own arithmetic (margins, ticks) would overflow.
_LARGEST_PLOTTED = 1e300


def _svg(figure: Figure, label: str) -> Markup:
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    # A size in points would fix the size of the figure; the view box lets the page scale it.
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg", f'<svg role="img" aria-label="{html.escape(label, quote=True)}"', 1)
    prefix = f"p{next(_prefixes)}-"
    text = re.sub(r' id="(?=[^"])', f' id="{prefix}', text)
    text = re.sub(r"url\(#", f"url(#{prefix}", text)
    text = re.sub(r'xlink:href="#', f'xlink:href="#{prefix}', text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    # A hundredth of a point is finer than any screen; six digits of it make half the page.
    text = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match.group()), text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    return Markup(text)


def _drawn(label: str, width: float, height: float, draw: Callable[[Figure], None], layout: str | None = "constrained") -> Markup:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout=layout)
        figure.patch.set_alpha(0)
        draw(figure)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        return _svg(figure, label)


def _plain(text: str) -> str:
    """A label without formulas and unprintable characters, no wider than the figure."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:MAX_LABEL_CHARACTERS])
    return shown.replace("$", r"\$")


def _plottable(values: Sequence[float]) -> list[float]:
    return [value if math.isfinite(value) and abs(value) < _LARGEST_PLOTTED else math.nan for value in values]


def num_not_finite(curves: Curves) -> int:
    lists = curves.losses + (curves.reference or [])
    return sum(not math.isfinite(value) for values in lists for value in values)


# -- losses ------------------------------------------------------------------------------------------------------------


def loss_plot(curves: Curves, label: str) -> Markup:
    """Losses by rank. With a reference, also the difference at each iteration, with equal bits marked."""
    compared = curves.compared()

    def draw(figure: Figure) -> None:
        # Fixed margins: measuring every text of so many plots would take as long as drawing them.
        figure.subplots_adjust(left=0.17, right=0.985, top=0.975, bottom=0.17 if compared else 0.23, hspace=0.14)
        if not compared:
            _draw_losses(figure.subplots(), curves, last=True)
            return
        # Without any difference, a strip of marks suffices.
        all_same = curves.num_same_bits == len(compared)
        ratios = [5, 1] if all_same else [2.3, 1]
        above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": ratios})
        _draw_losses(above, curves, last=False)
        _draw_differences(below, curves)
        if all_same:
            below.set_ylabel("")

    return _drawn(label, _LOSS_WIDTH, 2.7 if compared else 2.0, draw, layout=None)


def _draw_losses(axes: Axes, curves: Curves, last: bool) -> None:
    _name_values(axes, "loss")
    axes.grid(axis="y")
    markers = max(map(len, curves.losses)) <= 40
    for rank, values in enumerate(curves.reference or []):
        axes.plot(_plottable(values), color=_SERIES[rank % NUM_SERIES], linewidth=4.5, alpha=0.28, solid_capstyle="round")
    for rank, values in enumerate(curves.losses):
        axes.plot(
            _plottable(values),
            color=_SERIES[rank % NUM_SERIES],
            linewidth=1.3,
            marker="o" if markers else None,
            markersize=2.6,
        )
    _iterations(axes, named=last)


def _draw_differences(axes: Axes, curves: Curves) -> None:
    _name_values(axes, "difference")
    axes.grid(axis="y")
    largest = 0.0
    for rank, (ours, theirs) in enumerate(zip(curves.losses, curves.reference or [])):
        color = _SERIES[rank % NUM_SERIES]
        pairs = list(enumerate(zip(ours, theirs)))
        same = [place for place, (a, b) in pairs if same_bits(a, b)]
        other = [(place, abs(a - b)) for place, (a, b) in pairs if not same_bits(a, b)]
        other = [(place, value) for place, value in other if math.isfinite(value) and value < _LARGEST_PLOTTED]
        # Ranks are drawn side by side, because equal curves would hide each other.
        shift = (rank - (len(curves.losses) - 1) / 2) * min(0.12, 0.6 / len(curves.losses))
        axes.plot(
            [place + shift for place in same], [0.0] * len(same), linestyle="none", marker="s", markersize=3.4,
            markerfacecolor="none", markeredgecolor=color, markeredgewidth=0.9, clip_on=False, zorder=3,
        )  # fmt: skip
        axes.plot(
            [place + shift for place, _ in other], [value for _, value in other], linestyle="none", marker="o",
            markersize=3.4, color=color, clip_on=False, zorder=3,
        )  # fmt: skip
        largest = max([largest, *(value for _, value in other)])
    axes.set_ylim(0, largest * 1.15 if largest > 0 else 1)
    if largest == 0:
        axes.set_yticks([0])
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=3))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
    _iterations(axes, named=True)


def _name_values(axes: Axes, name: str) -> None:
    """Places the label at a fixed distance from the axis, for numbers of any width."""
    axes.set_ylabel(name)
    axes.yaxis.set_label_coords(-0.155, 0.5)


def _iterations(axes: Axes, named: bool) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axes.margins(x=0.03)
    if named:
        axes.set_xlabel("iteration")


# -- bars --------------------------------------------------------------------------------------------------------------


def _stacked(axes: Axes, rows: list[list[float]], colors: list[str]) -> None:
    """Horizontal bars, the first row on top; rows[i][j] is the j-th part of the i-th bar."""
    for part, color in enumerate(colors):
        widths = [row[part] for row in rows]
        lefts = [sum(row[:part]) for row in rows]
        if any(widths):
            # A thin edge in the page's colour separates neighbouring parts.
            axes.barh(range(len(rows)), widths, left=lefts, height=0.62, color=color, edgecolor=_SURFACE, linewidth=0.6)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))


def _byte_ticks(axes: Axes) -> None:
    """Round numbers of KiB, MiB or GiB, where decimal ticks would give 38.1 MiB."""
    _byte_ticks_of(axes.xaxis, axes.get_xlim()[1])


def phase_color(phase: str) -> int:
    """The number of the CSS variable --sN."""
    return PHASES.index(phase) + 1 if phase in PHASES else NUM_SERIES


def purpose_color(purpose: str) -> int:
    return PURPOSES.index(purpose) + 1 if purpose in PURPOSES else NUM_SERIES


def collectives_plot(totals: list[Collective]) -> Markup:
    """Calls and bytes of each collective, by phase."""
    bars = list(dict.fromkeys((row.family, row.operation) for row in totals))
    phases = list(dict.fromkeys([*PHASES, *(row.phase for row in totals)]))

    def parts(value: Callable[[Collective], int]) -> list[list[float]]:
        return [
            [sum(value(row) for row in totals if (row.family, row.operation, row.phase) == (*bar, phase)) for phase in phases]
            for bar in bars
        ]

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        colors = [_SERIES[phase_color(phase) - 1] for phase in phases]
        _stacked(left, parts(lambda row: row.count), colors)
        _stacked(right, parts(lambda row: row.bytes), colors)
        left.set_yticks(range(len(bars)), [_plain(f"{family}  {operation}") for family, operation in bars])
        left.set_title("calls", loc="left")
        right.set_title("bytes", loc="left")
        left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
        _byte_ticks(right)

    return _drawn("Collectives by operation and phase: calls and bytes", 9.6, 0.9 + 0.26 * len(bars), draw)


def memory_plot(cases: list[tuple[str, Case]]) -> Markup:
    """Peaks by purpose of labelled cases. The mark is the peak of the total."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        rows = [[case.memory.get(purpose, 0) for purpose in PURPOSES] for _, case in cases]
        _stacked(axes, rows, [_SERIES[purpose_color(purpose) - 1] for purpose in PURPOSES])
        for place, (_, case) in enumerate(cases):
            peak = case.memory.get("peak_total")
            if peak is not None:
                axes.plot([peak, peak], [place - 0.42, place + 0.42], color=_INK, linewidth=1.6)
        axes.set_yticks(range(len(cases)), [_plain(label) for label, _ in cases])
        _byte_ticks(axes)

    return _drawn("Peak memory by purpose", 9.6, 0.6 + 0.28 * len(cases), draw)


# -- memory over time --------------------------------------------------------------------------------------------------

_MAX_STEPS = 900


def memory_over_time_plot(timeline: Timeline, label: str) -> Markup | None:
    """Bytes in use by purpose over time, on the rank that used most, with the scenario's bounds."""
    rank = timeline.heaviest_rank
    if rank is None:
        return None
    samples = _thinned(timeline.memory[rank])
    bounds = timeline.drawn_bounds(rank)
    # The purposes of a bound are at the bottom, so that the bound can be compared with them.
    bounded = bounds[0].purposes if bounds else []
    order = sorted(range(len(PURPOSES)), key=lambda place: PURPOSES[place] not in bounded)
    used = [place for place in order if any(sizes[place] for _, sizes in samples)]
    end = max(timeline.end, samples[-1][0])
    times = [time / 1e3 for time, _ in samples] + [end / 1e3]

    def draw(figure: Figure) -> None:
        # The margins of the timeline above it at the page's full width: simultaneous events are aligned.
        figure.subplots_adjust(left=0.1345, right=0.9925, top=0.93, bottom=0.14)
        axes = figure.subplots()
        axes.grid(axis="y")
        below = [0] * len(times)
        for place in used:
            sizes = [size[place] for _, size in samples]
            above = [low + size for low, size in zip(below, sizes + sizes[-1:])]
            axes.fill_between(times, below, above, step="post", color=_SERIES[place], linewidth=0)
            below = above
        axes.set_xlim(0, times[-1] * 1.002 or 1)
        top = max([*below, *(bound.bytes for bound in bounds if bound.bytes < 4 * max([*below, 1]))])
        axes.set_ylim(0, top * 1.12 or 1)
        _mark_iterations(axes, timeline.iterations(rank), end)
        for bound in bounds:
            _mark_bound(axes, bound)
        axes.set_xlabel("ms")
        _byte_ticks_of(axes.yaxis, axes.get_ylim()[1])

    return _drawn(label, 13.0, 3.0, draw, layout=None)


def _thinned(samples: list[tuple[float, list[int]]]) -> list[tuple[float, list[int]]]:
    """The peak and the final value of each interval, about one interval per column of pixels."""
    if len(samples) <= _MAX_STEPS:
        return samples
    width = (samples[-1][0] - samples[0][0]) / (_MAX_STEPS / 2) or 1.0
    kept = []
    for _, stretch in groupby(samples, key=lambda sample: int((sample[0] - samples[0][0]) / width)):
        of_stretch = list(stretch)
        peak = max(range(len(of_stretch)), key=lambda place: sum(of_stretch[place][1]))
        kept.append(of_stretch[peak])
        if peak + 1 < len(of_stretch):
            kept.append(of_stretch[-1])
    return kept


def _mark_iterations(axes: Axes, iterations: list[tuple[float, int]], end: float) -> None:
    if len(iterations) < 2:
        return
    last = -end
    for begin, number in iterations:
        # Labels that would overlap are omitted; the first label is long.
        if begin - last < (0.025 if last > iterations[0][0] else 0.07) * end:
            continue
        axes.axvline(begin / 1e3, color=_MUTED, linewidth=0.6, alpha=0.5)
        axes.annotate(
            f"iteration {number}" if last < 0 else str(number), (begin / 1e3, 1.0), xycoords=("data", "axes fraction"),
            xytext=(2, 1), textcoords="offset points", fontsize=7.5, color=_MUTED,
        )  # fmt: skip
        last = begin


def _mark_bound(axes: Axes, bound: Bound) -> None:
    # One far above everything would flatten the plot.
    if bound.bytes > axes.get_ylim()[1]:
        return
    axes.plot([bound.begin / 1e3, bound.end / 1e3], [bound.bytes, bound.bytes], color=_INK, linewidth=1.3, linestyle=(0, (4, 2)))


def _byte_ticks_of(axis, largest: float) -> None:
    step = 2.0 ** max(0, math.floor(math.log2(max(largest, 1.0) / 3)))
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))
