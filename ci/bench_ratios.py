#!/usr/bin/env python3
"""Prints how two sets of `lockstep bench --json` lines compare, turn by turn.

    bench_ratios.py FOLDER       FOLDER holds turn-N-lockstep.jsonl and turn-N-torch.jsonl

A ratio is Lockstep's median over PyTorch's, of the same turn: below 1 Lockstep is faster. Shown are the median of the turns'
ratios and its lowest and highest. What only one of the two measured is listed at the end.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

Key = tuple[str, str, str]


def key_of(row: dict) -> Key:
    # Lockstep's order check has no counterpart: what is compared is measured without it, and what has it stands apart.
    params = {name: value for name, value in row["params"].items() if not (name == "order_check" and value is False)}
    return row["group"], row["name"], " ".join(f"{name}={value}" for name, value in sorted(params.items()))


def medians(file: Path) -> dict[Key, tuple[float, str]]:
    rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip())
    return {key_of(row): (row["median"], row["unit"]) for row in rows if row.get("kind") == "bench"}


def compare(folder: Path) -> tuple[list[tuple[Key, float, float, str, list[float]]], list[tuple[Key, str]]]:
    """(key, Lockstep's median, PyTorch's, unit, ratio of each turn), and what only one side has."""
    ours: dict[Key, list[float]] = {}
    theirs: dict[Key, list[float]] = {}
    ratios: dict[Key, list[float]] = {}
    units: dict[Key, str] = {}
    for file in sorted(folder.glob("turn-*-lockstep.jsonl")):
        mine, other = medians(file), medians(Path(str(file).replace("-lockstep", "-torch")))
        for key, (value, unit) in mine.items():
            ours.setdefault(key, []).append(value)
            units[key] = unit
            if key in other:
                if other[key][1] != unit:
                    raise SystemExit(f"bench_ratios: {' '.join(key)} is in {unit} here and {other[key][1]} there")
                ratios.setdefault(key, []).append(value / other[key][0])
        for key, (value, _) in other.items():
            theirs.setdefault(key, []).append(value)
    table = [
        (key, statistics.median(ours[key]), statistics.median(theirs[key]), units[key], ratios[key]) for key in ours if key in ratios
    ]
    alone = [(key, "Lockstep") for key in ours if key not in ratios] + [(key, "PyTorch") for key in theirs if key not in ratios]
    return table, alone


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    table, alone = compare(Path(arguments[0]))
    print(f"{'what':<62} {'Lockstep':>11} {'PyTorch':>11}      ratio (lowest to highest)")
    for (group, name, params), mine, other, unit, ratios in table:
        spread = f"{statistics.median(ratios):6.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"{f'{group} {name} {params}':<62} {mine:>11.1f} {other:>11.1f} {unit}  {spread}")
    for key, side in alone:
        print(f"{' '.join(key)}: measured by {side} only")
    if not table:
        print("bench_ratios: the two sides have no measurement in common", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
