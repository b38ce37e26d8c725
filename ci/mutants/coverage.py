"""Which points each scenario and each suite of unit tests reaches, recorded once per build and kept in a file.

    coverage = Coverage(folder / "reached-scenarios.json", digest, size).record(scenarios)
    coverage.of(17)     # the names that reach the point of mutant 17, the quickest first
"""

from __future__ import annotations

import json
import time
from pathlib import Path

RECORD_LIMIT = 600  # seconds


class Coverage:
    def __init__(self, path: Path, digest: str, size: int):
        self.path, self.digest, self.size = path, digest, size
        self.seconds: dict[str, float] = {}
        self.reached: dict[str, int] = {}  # bit N: the point of mutant N
        self.asked: set[str] = set()  # the names that may judge
        self.failing: dict[str, str] = {}  # without a mutant: they judge none
        known = json.loads(path.read_text()) if path.is_file() else {}
        if known.get("digest") == digest:
            self.seconds, self.failing = known["seconds"], known["failing"]
            self.reached = {name: int(bits, 16) for name, bits in known["reached"].items()}

    def record(self, tests, say=print) -> "Coverage":
        self.asked = set(tests.names())
        names = sorted(self.asked - self.reached.keys())
        began = time.monotonic()
        for name in names:
            self._record_one(tests, name)
            if time.monotonic() - began > 30:
                say(f"recording what each {tests.what} reaches: {len(self.reached)} done")
                self.save()
                began = time.monotonic()
        if names:
            self.save()
        return self

    def _record_one(self, tests, name: str) -> None:
        map_file = tests.folder / "reached"
        map_file.write_bytes(bytes(self.size))
        began = time.monotonic()
        catch = tests.run([name], {"LOCKSTEP_MUTANTS_REACHED": str(map_file)}, RECORD_LIMIT)
        self.seconds[name] = time.monotonic() - began
        if catch is not None:
            self.failing[name] = catch.check
        digits = map_file.read_bytes().translate(bytes([48] + [49] * 255))
        self.reached[name] = int(digits[::-1], 2)

    def save(self) -> None:
        data = {"digest": self.digest, "seconds": self.seconds, "failing": self.failing,
                "reached": {name: f"{bits:x}" for name, bits in self.reached.items()}}  # fmt: skip
        self.path.write_text(json.dumps(data))

    def of(self, number: int) -> list[str]:
        bit = 1 << number
        names = [name for name in self.asked if self.reached[name] & bit and name not in self.failing]
        return sorted(names, key=lambda name: (self.seconds[name], name))

    def batches(self, number: int, first: float = 1.5, growth: float = 3) -> list[list[str]]:
        """The names that reach the point, in batches of growing time."""
        found: list[list[str]] = []
        room, taken = first, 0.0
        for name in self.of(number):
            if not found or taken + self.seconds[name] > room:
                room, taken = (room * growth if found else room), 0.0
                found.append([])
            found[-1].append(name)
            taken += self.seconds[name]
        return found
