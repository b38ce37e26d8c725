"""The timeline of a case: the trace of `lockstep run --timeline`, reduced to the boxes that the page draws.

The file is a trace in Chrome's JSON format (harness/report/timeline.hpp describes it). Entries of the wrong type are skipped. A
file that is not a trace gives a reason, which the page shows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable

from .formats import format_bytes
from .model import PURPOSES
from .values import count_of, number_of, text_of

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_BOXES = 12_000  # of a case in the page
MAX_TEXT = 200
TICKS = 10  # per microsecond: times in the page are integers in this unit

# Kinds of boxes, in the order of the numbers in the page's data.
KINDS = ("step", "module", "launch", "copy", "all_gather", "reduce_scatter", "all_reduce", "collective")


@dataclass
class Box:
    begin: float  # microseconds
    duration: float
    name: str
    kind: int
    info: str
    iteration: int | None = None
    depth: int = 0
    resumed: float | None = None  # of a deferred collective: the time at which its rank began to wait
    unfinished: bool = False


@dataclass
class Lane:
    name: str
    order: float
    boxes: list[Box] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return 1 + max((box.depth for box in self.boxes), default=0)


@dataclass
class Bound:
    rank: int | None
    of: str
    purposes: list[str]
    begin: float
    end: float
    bytes: int
    peak: int
    line: int | None
    text: str


@dataclass
class Timeline:
    file: str
    lanes: dict[int, list[Lane]]  # by rank, in the order they are drawn
    joins: list[list[tuple[int, Lane, Box]]]  # boxes of one collective on the ranks that took part
    memory: dict[int, list[tuple[float, list[int]]]]  # by rank: time and bytes as in PURPOSES
    bounds: list[Bound]
    num_dropped: int = 0
    ranks_missing: list[int] = field(default_factory=list)
    ranks_cut: list[int] = field(default_factory=list)

    @property
    def num_boxes(self) -> int:
        return sum(len(lane.boxes) for lanes in self.lanes.values() for lane in lanes)

    @property
    def end(self) -> float:
        ends = [box.begin + box.duration for lanes in self.lanes.values() for lane in lanes for box in lane.boxes]
        return max([*ends, *(samples[-1][0] for samples in self.memory.values() if samples)], default=0.0)

    @property
    def heaviest_rank(self) -> int | None:
        peaks = {rank: max(sum(sizes) for _, sizes in samples) for rank, samples in self.memory.items() if samples}
        return max(peaks, key=lambda rank: (peaks[rank], -rank), default=None)

    def shares(self) -> list["Share"]:
        """The use of time, per rank."""
        found = []
        for rank, lanes in self.lanes.items():
            boxes = [box for lane in lanes for box in lane.boxes]
            launches = _union(box for box in boxes if KINDS[box.kind] in ("launch", "copy"))
            collectives = [box for box in boxes if box.kind >= KINDS.index("all_gather")]
            flights = _union(collectives)
            found.append(
                Share(
                    rank,
                    num_launches=sum(KINDS[box.kind] in ("launch", "copy") for box in boxes),
                    launches=_length(launches),
                    num_collectives=len(collectives),
                    collectives=_length(flights),
                    beside=_length(_common(launches, flights)),
                )
            )
        return found

    def drawn_bounds(self, rank: int) -> list[Bound]:
        """The bounds on the purposes of the first bound: one plot can have these purposes at its bottom."""
        of_rank = [bound for bound in self.bounds if bound.rank in (None, rank)]
        return [bound for bound in of_rank if set(bound.purposes) == set(of_rank[0].purposes)]

    def iterations(self, rank: int) -> list[tuple[float, int]]:
        """Begin and number of each iteration of the outermost loops, as steps of the rank show them."""
        found: list[tuple[float, int]] = []
        steps = [box for lane in self.lanes.get(rank, []) for box in lane.boxes if KINDS[box.kind] == "step" and box.iteration is not None]
        outermost = min((box.depth for box in steps), default=0)
        for box in sorted((box for box in steps if box.depth == outermost), key=lambda box: box.begin):
            if not found or found[-1][1] != box.iteration:
                found.append((box.begin, box.iteration or 0))
        return found


@dataclass
class Share:
    """Times of a rank in microseconds; what overlaps counts once."""

    rank: int
    num_launches: int
    launches: float  # some launch ran
    num_collectives: int
    collectives: float  # some collective was in flight
    beside: float  # both at once: communication that cost no time of its own

    @property
    def hidden(self) -> float | None:
        return self.beside / self.collectives if self.collectives > 0 else None


def _union(boxes: Iterable[Box]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for begin, end in sorted((box.begin, box.begin + box.duration) for box in boxes):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def _common(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            found.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def _length(intervals: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in intervals)


class UnreadableTimeline(Exception):
    """There is no trace to draw."""


def read_timeline(path: Path) -> Timeline:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UnreadableTimeline(f"{path} is larger than {format_bytes(MAX_FILE_BYTES)}")
        trace = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UnreadableTimeline(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableTimeline(f"{path} is no trace: {error}") from error
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise UnreadableTimeline(f"{path} is no trace: it has no traceEvents")
    return _timeline_from(str(path), trace)


def _timeline_from(file: str, trace: dict) -> Timeline:
    lanes: dict[tuple[int, int], Lane] = {}
    groups: dict[tuple, list[tuple[int, Lane, Box]]] = {}
    memory: dict[int, list[tuple[float, list[int]]]] = {}
    names: dict[tuple[int, int], str] = {}
    events = [event for event in trace["traceEvents"] if isinstance(event, dict)]
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            key = (count_of(event.get("pid")) or 0, count_of(event.get("tid")) or 0)
            names[key] = text_of(_map(event.get("args")).get("name")) or ""
    for event in events:
        rank, thread, time = count_of(event.get("pid")), count_of(event.get("tid")) or 0, _time_of(event.get("ts"))
        if rank is None or time is None:
            continue
        args = _map(event.get("args"))
        if event.get("ph") == "C":
            memory.setdefault(rank, []).append((time, [max(count_of(args.get(of)) or 0, 0) for of in PURPOSES]))
        elif event.get("ph") == "X":
            lane = lanes.setdefault((rank, thread), Lane(names.get((rank, thread), f"thread {thread}")[:MAX_TEXT], thread))
            box = _box_from(event, args, time)
            lane.boxes.append(box)
            group, sequence = count_of(args.get("group")), count_of(args.get("sequence"))
            if event.get("cat") == "collective" and group is not None and sequence is not None:
                groups.setdefault((text_of(args.get("stage")), group, sequence), []).append((rank, lane, box))
    by_rank: dict[int, list[Lane]] = {}
    for (rank, _), lane in sorted(lanes.items(), key=lambda item: (item[0][0], item[1].order)):
        lane.boxes.sort(key=lambda box: (box.begin, -box.duration))
        _nest(lane)
        by_rank.setdefault(rank, []).append(lane)
    for samples in memory.values():
        samples.sort(key=lambda sample: sample[0])
    other = _map(trace.get("otherData"))
    return Timeline(
        file=file,
        lanes=by_rank,
        joins=[sorted(members, key=lambda member: member[0]) for members in groups.values() if len(members) > 1],
        memory=memory,
        bounds=[_bound_from(bound) for bound in _list(other.get("bounds")) if isinstance(bound, dict)],
        num_dropped=count_of(other.get("num_dropped")) or 0,
        ranks_missing=_counts(other.get("ranks_missing")),
        ranks_cut=_counts(other.get("ranks_cut")),
    )


def _box_from(event: dict, args: dict, time: float) -> Box:
    name = (text_of(event.get("name")) or "")[:MAX_TEXT]
    kind = text_of(event.get("cat")) or ""
    if kind == "collective" and name in KINDS:
        kind = name
    elif kind == "launch" and "copy" in name:
        kind = "copy"
    elif kind not in KINDS:
        kind = "launch"
    return Box(
        time,
        max(_time_of(event.get("dur")) or 0.0, 0.0),
        name,
        KINDS.index(kind),
        _info_of(args),
        iteration=count_of(args.get("iteration")),
        resumed=_time_of(args.get("resumed")),
        unfinished=args.get("unfinished") is True,
    )


def _info_of(args: dict) -> str:
    """What a reader wants of a box beside its name and times. The same for many boxes, so that it is kept once."""
    parts = [text for text in (text_of(args.get("family")), text_of(args.get("phase"))) if text]
    if count_of(args.get("group_size")) is not None:
        axis = text_of(args.get("axis"))
        parts.append(f"group of {count_of(args.get('group_size'))}" + (f" along {axis}" if axis else ""))
    if count_of(args.get("bytes")) is not None:
        parts.append(format_bytes(count_of(args.get("bytes"))))
    if args.get("owner"):
        parts.append(f"for {text_of(args.get('owner'))}")
    if count_of(args.get("line")):
        parts.append(f"line {count_of(args.get('line'))}")
    iteration = count_of(args.get("iteration"))
    if iteration is not None and iteration >= 0:
        parts.append(f"iteration {iteration}")
    if args.get("stage"):
        parts.append(f"stage {text_of(args.get('stage'))}")
    return ", ".join(parts)[: 2 * MAX_TEXT]


def _nest(lane: Lane) -> None:
    """Boxes that lie in others get a row of their own below them."""
    ends: list[float] = []
    for box in lane.boxes:
        while ends and ends[-1] <= box.begin + 1e-9:
            ends.pop()
        box.depth = min(len(ends), 7)
        ends.append(box.begin + box.duration)


def _bound_from(value: dict) -> Bound:
    return Bound(
        rank=count_of(value.get("rank")),
        of=text_of(value.get("of")) or "",
        purposes=[text_of(purpose) or "" for purpose in _list(value.get("purposes"))],
        begin=_time_of(value.get("begin")) or 0.0,
        end=_time_of(value.get("end")) or 0.0,
        bytes=count_of(value.get("bytes")) or 0,
        peak=count_of(value.get("peak")) or 0,
        line=count_of(value.get("line")),
        text=(text_of(value.get("text")) or "")[:MAX_TEXT],
    )


# -- for the page ------------------------------------------------------------------------------------------------------


def page_data(timeline: Timeline, max_boxes: int = MAX_BOXES) -> dict[str, Any]:
    """Small enough to lie in the page: whole numbers, texts once, and the first part alone where there are too many."""
    begins = sorted(box.begin for lanes in timeline.lanes.values() for lane in lanes for box in lane.boxes)
    cut = begins[max_boxes] if len(begins) > max_boxes else math.inf
    texts: dict[str, int] = {}
    place: dict[int, tuple[int, int]] = {}  # of a box, by identity: lane and number in it

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    lanes = []
    for rank, of_rank in timeline.lanes.items():
        for lane in of_rank:
            boxes: list[int] = []  # five numbers each, the begin from the one before
            waits: list[int] = []  # of deferred collectives: which box, and after how long its rank waited in it
            number = last = 0
            for box in lane.boxes:
                if box.begin >= cut:
                    break
                place[id(box)] = (len(lanes), number)
                if box.resumed is not None:
                    waits += [number, _ticks(box.resumed - box.begin)]
                number += 1
                begin = _ticks(box.begin)
                flags = box.kind + (16 if box.unfinished else 0) + 32 * box.depth
                boxes += [begin - last, _ticks(box.duration), text(box.name), text(box.info), flags]
                last = begin
            lanes.append({"rank": rank, "name": lane.name, "depth": lane.depth, "boxes": boxes, "waits": waits})
    joins = []
    for members in timeline.joins:
        places = [place[id(box)] for _, _, box in members if id(box) in place]
        if len(places) > 1:
            joins.append([number for pair in places for number in pair])
    return {
        "end": _ticks(timeline.end if cut == math.inf else cut),
        "lanes": lanes,
        "joins": joins,
        "texts": list(texts),
        "shown": len(place),
        "boxes": timeline.num_boxes,
    }


def _ticks(microseconds: float) -> int:
    return round(microseconds * TICKS)


def _time_of(value: Any) -> float | None:
    number = number_of(value)
    return number if number is not None and math.isfinite(number) and abs(number) < 1e12 else None


def _counts(value: Any) -> list[int]:
    return [number for item in _list(value) if (number := count_of(item)) is not None]


def _map(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []
