"""Which points each case of a scenario and each suite of unit tests reaches, recorded once per build and kept in a file.

    coverage = Coverage(folder / "reached-cpu.json", digest, size).record(tests, jobs)
    coverage.of(17)     # the names in which mutant 17 would make a difference where it stands, the quickest first
    coverage.num_reaching(17)   # how many reach it
    coverage.shapes(names, Around(mutants).of(mutant))      # around it, where mutants make a difference in each of the names
"""

from __future__ import annotations

import collections
import json
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

RECORD_LIMIT = 600  # seconds
FORM = 3  # of the file
MOST_FAILING = 0.25  # of the names


class Around:
    """The numbers of the mutants of one's function and of its source, as bits."""

    def __init__(self, mutants: list):
        self.bits: dict[tuple[str, ...], int] = collections.defaultdict(int)
        for one in mutants:
            self.bits[one.file, one.function] |= 1 << one.number
            self.bits[one.file,] |= 1 << one.number

    def of(self, mutant) -> tuple[int, int]:
        return self.bits[mutant.file, mutant.function], self.bits[mutant.file,]


class Coverage:
    def __init__(self, path: Path, digest: str, size: int):
        self.path, self.digest, self.size = path, digest, size
        self.seconds: dict[str, float] = {}  # without the start of the program, where the program says them
        self.reached: dict[str, int] = {}  # bit N: the point of mutant N
        self.differing: dict[str, int] = {}  # bit N: mutant N would make a difference at its point
        self.asked: set[str] = set()  # the names that may judge
        self.failing: dict[str, str] = {}  # without a mutant: they judge none
        self.facts: dict[str, str] = {}  # what a run without a mutant gave
        known = json.loads(path.read_text()) if path.is_file() else {}
        if known.get("digest") == digest and known.get("form") == FORM:
            self.seconds, self.failing, self.facts = known["seconds"], known["failing"], known["facts"]
            self.reached, self.differing = ({name: int(bits, 16) for name, bits in known[key].items()} for key in ("reached", "differing"))

    def record(self, tests, jobs: int = 1, say=print) -> "Coverage":
        """Runs each name that is not recorded yet without a mutant, in `jobs` folders at once."""
        self.asked = set(tests.names())
        names = sorted(self.asked - self.reached.keys())
        began = time.monotonic()
        with ThreadPoolExecutor(jobs) as pool:
            rooms = [tests.in_folder(tests.folder / f"record-{i}") for i in range(jobs)]
            waiting = [pool.submit(self._record_all, rooms[i], names[i::jobs]) for i in range(jobs)]
            while not all(one.done() for one in waiting):
                time.sleep(0.2)
                if time.monotonic() - began > 30:
                    say(f"recording what each {tests.what} reaches: {len(self.reached)} of {len(self.asked)}")
                    self.save()
                    began = time.monotonic()
            for one in as_completed(waiting):
                one.result()
        if names:
            self.save()
        return self

    def _record_all(self, tests, names: list[str]) -> None:
        for name in names:
            self._record_one(tests, name)

    def _record_one(self, tests, name: str) -> None:
        map_file = tests.folder / "reached"
        map_file.write_bytes(bytes(self.size))
        began = time.monotonic()
        how, facts, seconds = tests.run_alone(name, {"LOCKSTEP_MUTANTS_REACHED": str(map_file)}, RECORD_LIMIT)
        self.seconds[name] = time.monotonic() - began if seconds is None else seconds
        if how is not None:
            self.failing[name] = how
        if facts:
            self.facts[name] = facts
        seen = map_file.read_bytes()
        self.differing[name] = _bits(seen, 2)
        self.reached[name] = _bits(seen, 1)

    def save(self) -> None:
        reached = dict(self.reached)  # a copy: others may be added meanwhile
        data = {"form": FORM, "digest": self.digest, "seconds": {name: self.seconds[name] for name in reached},
                "failing": dict(self.failing), "facts": dict(self.facts), "reached": {name: f"{bits:x}" for name, bits in reached.items()},
                "differing": {name: f"{self.differing[name]:x}" for name in reached}}  # fmt: skip
        self.path.write_text(json.dumps(data))

    def of(self, number: int) -> list[str]:
        bit = 1 << number
        names = [name for name in self.asked if self.differing[name] & bit and name not in self.failing]
        return sorted(names, key=lambda name: (self.seconds[name], name))

    def lacks_judges(self) -> bool:
        """So many names fail without a mutant that most mutants would seem not to be covered."""
        return len(self.failing) > MOST_FAILING * len(self.asked)

    def num_reaching(self, number: int) -> int:
        return sum(self.reached[name] >> number & 1 for name in self.asked if name not in self.failing)

    def shapes(self, names: list[str], around: tuple[int, int]) -> dict[str, tuple[int, int]]:
        function, source = around
        return {name: (self.differing[name] & function, self.differing[name] & source) for name in names}


def _bits(seen: bytes, bit: int) -> int:
    """Bit N is set where byte N has the bit."""
    digits = seen.translate(bytes(49 if value & bit else 48 for value in range(256)))
    return int(digits[::-1], 2)
