"""In which order the cases that reach a mutant run: likely to catch it and quick first, and few of one scenario.

    history.caught(file, function, "sharded/two_units world_size=2,...")
    for batch in batches(history.ranked(file, function, names, seconds), seconds, longest): ...
"""

from __future__ import annotations

import collections
import heapq
import threading

START_UP = 0.02  # seconds, so that the quickest are not preferred without bound


def scenario_of(name: str) -> str:
    return name.split(" ")[0]


class History:
    """The names that caught earlier mutants. Safe for several threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.of_place: dict[tuple[str, ...], collections.Counter] = collections.defaultdict(collections.Counter)

    def caught(self, file: str, function: str, name: str) -> None:
        with self.lock:
            for place in ((file, function), (file,), ()):
                self.of_place[place][name] += 1
                self.of_place[place][scenario_of(name)] += 1

    def likely(self, file: str, function: str, name: str) -> float:
        """More for a case and a scenario that caught mutants of the same function, of the same file, and anywhere."""
        worth = 1.0
        for place, weight in (((file, function), 20.0), ((file,), 5.0), ((), 0.2)):
            counts = self.of_place.get(place)
            if counts:
                worth += weight * min(3, counts[name] + 0.3 * counts[scenario_of(name)])
        return worth

    def ranked(self, file: str, function: str, names: list[str], seconds: dict[str, float]) -> list[str]:
        """Each further case of one scenario counts half as much as the one before."""
        with self.lock:
            value = {name: self.likely(file, function, name) / (START_UP + seconds[name]) for name in names}
        taken: collections.Counter = collections.Counter()
        heap = [(-value[name], name, 0) for name in names]
        heapq.heapify(heap)
        order = []
        while heap:
            worth, name, known = heapq.heappop(heap)
            count = taken[scenario_of(name)]
            if known < count:
                heapq.heappush(heap, (worth * 0.5 ** (count - known), name, count))
                continue
            taken[scenario_of(name)] += 1
            order.append(name)
        return order


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
