"""In which order the cases that reach a mutant run: likely to catch it and quick first, and few that are alike.

    history.caught(file, function, "sharded/two_units world_size=2,...")
    order = history.ranked(file, function, names, seconds, coverage.shapes(names, around.of(mutant)))
    for batch in batches(order, seconds, longest): ...

Two cases are alike if they belong to one scenario or folder, or if the same mutants of the function or source make a difference in them.
Another way through the function is another chance that the mutant changes a result. A rare way therefore comes before more cases of the
common way.
"""

from __future__ import annotations

import collections
import json
import threading
from pathlib import Path

PER_CASE = 0.05  # seconds, so that the quickest are not preferred without bound
ENOUGH = 10  # catches by a scenario, beyond which more make it no likelier
# A case's value falls by 1 + this for each case of a higher value that is of the same scenario, of the same folder, ...
ALIKE_SCENARIO, ALIKE_FOLDER, ALIKE_IN_FUNCTION, ALIKE_IN_SOURCE = 1.0, 0.1, 0.5, 0.3


def scenario_of(name: str) -> str:
    return name.split(" ")[0]


def folder_of(name: str) -> str:
    return name.split("/")[0]


def scenarios_about(path: Path) -> dict[str, list[str]]:
    """The scenarios of each source in a file of lines `SOURCE: SCENARIO SCENARIO ...`."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {source: scenarios.split() for source, scenarios in pairs}


class History:
    """The names that caught earlier mutants, also those of earlier runs where it has a file. Safe for several threads."""

    def __init__(self, path: Path | None = None, about: dict[str, list[str]] | None = None):
        """`about`: the scenarios that are about a source. They count as if they had caught mutants of it."""
        self.lock = threading.Lock()
        self.of_place: dict[tuple[str, ...], collections.Counter] = collections.defaultdict(collections.Counter)
        self.path = path
        for line in path.read_text().splitlines() if path and path.is_file() else []:
            self._count(*json.loads(line))
        for source, scenarios in (about or {}).items():
            for scenario in scenarios:
                self.of_place[source,][scenario] += ENOUGH

    def caught(self, file: str, function: str, name: str, keep: bool = True) -> None:
        """`keep`: for later runs."""
        with self.lock:
            self._count(file, function, name)
            if self.path and keep:
                with self.path.open("a") as kept:
                    kept.write(json.dumps([file, function, name]) + "\n")

    def _count(self, file: str, function: str, name: str) -> None:
        for place in ((file, function), (file,), ()):
            self.of_place[place][name] += 1
            self.of_place[place][scenario_of(name)] += 1

    def likely(self, file: str, function: str, name: str) -> float:
        """More for a case and a scenario that caught mutants of the same function, of the same file, and anywhere."""
        worth = 1.0
        for place, weight in (((file, function), 20.0), ((file,), 5.0), ((), 0.2)):
            counts = self.of_place.get(place)
            if counts:
                worth += weight * min(3, counts[name] + 3 / ENOUGH * counts[scenario_of(name)])
        return worth

    def ranked(self, file: str, function: str, names: list[str], seconds: dict[str, float],
               shapes: dict[str, tuple[int, int]] | None = None) -> list[str]:  # fmt: skip
        """`shapes`: the mutants of the function and of the source that make a difference in each case."""
        with self.lock:
            value = {name: self.likely(file, function, name) / (PER_CASE + seconds[name]) for name in names}
        by_value = sorted(names, key=lambda name: (-value[name], name))
        before: collections.Counter = collections.Counter()  # of each group, the cases of a higher value
        for name in by_value:
            groups = (("scenario", scenario_of(name)), ("folder", folder_of(name)), *enumerate(shapes[name] if shapes else ()))
            for group, loss in zip(groups, (ALIKE_SCENARIO, ALIKE_FOLDER, ALIKE_IN_FUNCTION, ALIKE_IN_SOURCE)):
                value[name] /= 1 + loss * before[group]
                before[group] += 1
        return sorted(by_value, key=lambda name: -value[name])


def batches(names: list[str], seconds: dict[str, float], longest: float, first: float = 0.5, growth: float = 2.5) -> list[list[str]]:
    """The names in their order, in batches of growing time. Names behind `longest` seconds are left out, but for the first."""
    found: list[list[str]] = []
    room, taken, total = first, 0.0, 0.0
    for name in names:
        if found and total + seconds[name] > longest:
            break
        if not found or taken + seconds[name] > room:
            room, taken = (room * growth if found else room), 0.0
            found.append([])
        found[-1].append(name)
        taken += seconds[name]
        total += seconds[name]
    return found
