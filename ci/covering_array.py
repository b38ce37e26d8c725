#!/usr/bin/env python3
"""Writes the rows of the scenarios in scenarios/pairs, in which every pair of values of two factors occurs together.

    covering_array.py            writes the rows between the two marks of each file
    covering_array.py --check    exit code 1 if a file has other rows, or if a pair is missing

A factor is an argument of a parallel API, or a feature that is used beside it. A pair that no case may have is excluded by a
rule below, with its reason. Rows are chosen greedily: each next row takes, of some candidates, the one that covers most
pairs that no row has yet. The candidates come from a generator of their own, so that rows are the same on every machine.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from typing import Callable

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scenarios", "pairs")
BEGIN, END = "    # begin: rows of ci/covering_array.py\n", "    # end: rows\n"
CANDIDATES = 60

Row = dict[str, object]

FEATURES = {
    "checkpoint": ["none", "composable", "wrapper"],
    "frozen": ["never", "at_first", "frozen_later", "thawed_later"],
    "shared": [False, True],
    "evaluated": ["never", "before_forward", "before_backward"],
    "passes": ["one", "each", "held"],
}

FACTORS: dict[str, dict[str, list]] = {
    "fully_shard": {
        "mesh": ["flat", "hybrid"],
        "groups": ["each", "together", "one"],
        "reshard": [True, False, 2],
        "offload": ["none", "cpu", "cpu_pinned"],
        "precision": ["none", "param", "reduce", "all"],
        "ignored": [False, True],
        "dim": [0, 1],
        "prefetch": [False, True],
        **FEATURES,
    },
    "flat_shard": {
        "strategy": ["full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_grad_op"],
        "units": ["each", "one"],
        "offload": ["none", "cpu"],
        "precision": ["none", "param", "reduce", "all"],
        "original": [True, False],
        "sync_states": [False, True],
        "ignored": [False, True],
        "backward_prefetch": ["before", "after", "none"],
        "forward_prefetch": [False, True],
        **FEATURES,
    },
    "replicate": {
        "mesh": ["flat", "two_axes"],
        "cap": [1, 60, 200, 26214400],
        "views": [False, True],
        "find_unused": [False, True],
        "broadcast_buffers": [False, True],
        "ignored": [False, True],
        **FEATURES,
    },
    "tensor_parallel": {
        "mesh": ["two_by_two", "one_by_four"],
        "data": ["alone", "replicate", "fully_shard", "kept"],
        "input": ["whole", "rows", "sharded"],
        "between": ["features", "whole", "rows", "kept"],
        "output": ["whole", "rows", "columns", "kept"],
        **{name: values for name, values in FEATURES.items() if name != "shared"},
    },
}

# The first rule that holds excludes a row. A rule reads at most two factors, so that it excludes pairs.
RULES: dict[str, list[tuple[str, Callable[[Row], bool]]]] = {
    "fully_shard": [
        ("the shard axis of two ranks has no smaller group", lambda r: r["mesh"] == "hybrid" and r["reshard"] == 2),
        ("hints name other groups", lambda r: r["prefetch"] and r["groups"] != "each"),
    ],
    "flat_shard": [
        ("one flat parameter is frozen as a whole", lambda r: not r["original"] and r["frozen"] != "never"),
    ],
    "replicate": [],
    "tensor_parallel": [],
}


class Numbers:
    """A linear congruential generator."""

    def __init__(self, seed: int):
        self.state = seed

    def below(self, limit: int) -> int:
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit


def allowed(row: Row, name: str) -> bool:
    for _, excludes in RULES[name]:
        try:
            if excludes(row):
                return False
        except KeyError:  # a factor has no value yet
            continue
    return True


def pairs_of(row: Row) -> set:
    return set(itertools.combinations(row.items(), 2))


def all_pairs(name: str) -> set:
    factors = FACTORS[name]
    found = set()
    for (a, values_a), (b, values_b) in itertools.combinations(factors.items(), 2):
        for x, y in itertools.product(values_a, values_b):
            if allowed({a: x, b: y}, name):
                found.add(((a, x), (b, y)))
    return found


def candidate(name: str, missing: list, numbers: Numbers) -> Row:
    """A row with one missing pair. The other factors, in a drawn order, take the value that covers most missing pairs."""
    factors = FACTORS[name]
    row: Row = dict(missing[numbers.below(len(missing))])
    wanted = set(missing)
    rest = [factor for factor in factors if factor not in row]
    while rest:
        factor = rest.pop(numbers.below(len(rest)))
        scores = []
        for value in factors[factor]:
            if not allowed(row | {factor: value}, name):
                continue
            new = {tuple(sorted([(factor, value), item], key=lambda pair: list(factors).index(pair[0]))) for item in row.items()}
            scores.append((len(new & wanted), numbers.below(1000), value))
        if not scores:
            return {}
        row[factor] = max(scores, key=lambda score: score[:2])[2]
    return {factor: row[factor] for factor in factors}


def covering_rows(name: str) -> list[Row]:
    numbers, missing, rows = Numbers(7), all_pairs(name), []
    while missing:
        ordered = sorted(missing, key=str)
        tried = [row for row in (candidate(name, ordered, numbers) for _ in range(CANDIDATES)) if row]
        rows.append(max(tried, key=lambda row: len(pairs_of(row) & missing)))
        missing -= pairs_of(rows[-1])
    return rows


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def lines_of(name: str) -> str:
    text = BEGIN
    for i, row in enumerate(covering_rows(name)):
        text += f"    r{i:02}: {{" + ", ".join(f"{factor}: {text_of(value)}" for factor, value in row.items()) + "}\n"
    return text + END


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    different = 0
    for name in FACTORS:
        path = os.path.join(FOLDER, name + ".yaml")
        with open(path, encoding="utf-8") as file:
            before = file.read()
        start, end = before.index(BEGIN), before.index(END) + len(END)
        after = before[:start] + lines_of(name) + before[end:]
        if options.check and after != before:
            print(f"covering_array: scenarios/pairs/{name}.yaml has other rows (run ci/covering_array.py)", file=sys.stderr)
            different += 1
        if not options.check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(after)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
