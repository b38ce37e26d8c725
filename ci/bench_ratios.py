#!/usr/bin/env python3
"""Compares two sets of measurements turn by turn.

    bench_ratios.py FOLDER ONE OTHER       FOLDER holds turn-N-ONE and turn-N-OTHER, each .jsonl or .json

A .jsonl file holds the lines of `lockstep bench --json`, a .json file the output of Google Benchmark. A ratio is ONE's median over
OTHER's in the same turn: below 1, ONE is faster. The table shows the median, the lowest and the highest ratio of the turns.
Measurements that only one side has are listed at the end.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

Key = tuple[str, str, str]


def key_of(row: dict) -> Key:
    # Lockstep's order check has no counterpart. The compared entries run without it; entries with it are listed separately.
    params = {name: value for name, value in row["params"].items() if not (name == "order_check" and value is False)}
    return row["group"], row["name"], " ".join(f"{name}={value}" for name, value in sorted(params.items()))


def medians(file: Path) -> dict[Key, tuple[float, str]]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return medians_of_benchmarks(json.loads(text)["benchmarks"])
    rows = (json.loads(line) for line in text.splitlines() if line.strip())
    return {key_of(row): (row["median"], row["unit"]) for row in rows if row.get("kind") == "bench"}


def medians_of_benchmarks(rows: list[dict]) -> dict[Key, tuple[float, str]]:
    """Entries of Google Benchmark: processor time, or wall time if the benchmark measures its time itself."""
    times: dict[Key, list[float]] = {}
    units: dict[Key, str] = {}
    for row in rows:
        if row.get("run_type") != "iteration" or row.get("error_occurred"):
            continue
        group, _, name = row["name"].partition("/")
        key = (group, name, "")
        by_clock = name.endswith(("/manual_time", "/real_time"))
        times.setdefault(key, []).append(row["real_time" if by_clock else "cpu_time"])
        units[key] = row["time_unit"]
    return {key: (statistics.median(values), units[key]) for key, values in times.items()}


def compare(folder: Path, one: str, other: str) -> tuple[list[tuple[Key, float, float, str, list[float]]], list[tuple[Key, str]]]:
    """(key, median of one, of the other, unit, ratio of each turn), and the entries of only one side."""
    ours: dict[Key, list[float]] = {}
    theirs: dict[Key, list[float]] = {}
    ratios: dict[Key, list[float]] = {}
    units: dict[Key, str] = {}
    for file in sorted(folder.glob(f"turn-*-{one}.json*")):
        mine, facing = medians(file), medians(file.with_name(file.name.replace(f"-{one}.", f"-{other}.")))
        for key, (value, unit) in mine.items():
            ours.setdefault(key, []).append(value)
            units[key] = unit
            if key in facing:
                if facing[key][1] != unit:
                    raise SystemExit(f"bench_ratios: {' '.join(key)} is in {unit} in {one} and {facing[key][1]} in {other}")
                ratios.setdefault(key, []).append(value / facing[key][0])
        for key, (value, _) in facing.items():
            theirs.setdefault(key, []).append(value)
    table = [
        (key, statistics.median(ours[key]), statistics.median(theirs[key]), units[key], ratios[key]) for key in ours if key in ratios
    ]
    alone = [(key, one) for key in ours if key not in ratios] + [(key, other) for key in theirs if key not in ratios]
    return table, alone


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder, one, other = arguments
    table, alone = compare(Path(folder), one, other)
    print(f"{'measurement':<62} {one:>11} {other:>11}      ratio (lowest to highest)")
    for key, mine, facing, unit, ratios in table:
        spread = f"{statistics.median(ratios):6.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"{' '.join(part for part in key if part):<62} {mine:>11.1f} {facing:>11.1f} {unit}  {spread}")
    for key, side in alone:
        print(f"{' '.join(part for part in key if part)}: measured by {side} only")
    if not table:
        print("bench_ratios: the two sides have no measurement in common", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
