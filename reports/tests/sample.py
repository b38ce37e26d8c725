#!/usr/bin/env python3
"""Results files made up for the tests of the page; no run produced them.

    sample.py FILE [--cases N] [--hostile]
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import re
import struct
import sys
import zlib
from pathlib import Path

SCENARIOS = [
    ("compose/wrap_same_submodule", 1), ("compose/replicate_with_fully_shard", 8), ("state_dict/save_load_1d", 10),
    ("state_dict/full_on_rank_zero", 13), ("replicate/single_module", 16), ("replicate/multi_module", 19),
    ("flat_tensor_parallel/parity", 23), ("flat_tensor_parallel/collectives", 24), ("training/parity_single_group", 30),
    ("training/parity_multi_group", 31), ("training/shared_parameters", 38), ("training/gradient_accumulation", 39),
    ("training/mlp_stack_2d", 41), ("training/hybrid_sharding", 45), ("beyond/communication_count", None),
    ("negative/wrong_divisor", None), ("golden/hsdp_w4", None),
]  # fmt: skip

HOSTILE = "</script><script>alert('1')</script><img src=x onerror=alert(2)> & \"quoted\" $x^{$ \u202e \x1b[31m ]]>"


def float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def losses(chance: random.Random, ranks: int, iterations: int, same: bool) -> tuple[list, list]:
    ours = [[float32(40 * 0.8**i + chance.random() + rank) for i in range(iterations)] for rank in range(ranks)]
    theirs = [[value if same or chance.random() < 0.6 else float32(value * (1 + 1e-6)) for value in rank] for rank in ours]
    return ours, theirs


def case_row(chance: random.Random, number: int, status: str) -> dict:
    scenario, mirrors = SCENARIOS[number % len(SCENARIOS)]
    world_size = chance.choice([2, 4, 8])
    params = {"reshard_after_forward": chance.choice([True, False, 2]), "seed": number}
    device = chance.choice(["cpu", "sim"])
    words = [f"{name}={str(value).lower()}" for name, value in params.items()]
    words += [f"world_size={world_size}", "launch=process", f"device={device}"]
    ran = status not in ("SKIP", "UNSUPPORTED", "MISSING")
    comparisons = chance.randrange(4, 400) if ran and status != "INVALID" else 0
    same = chance.random() < 0.7
    row = {
        "kind": "case", "scenario": scenario, "case": ",".join(words), "mirrors": mirrors, "params": params,
        "world_size": world_size, "launch": "process", "device": device, "status": status,
        "seconds": round(chance.expovariate(8), 4) if ran else 0.0,
        "evidence": {
            "comparisons": comparisons, "conditions": 3 if ran else 0, "trivial": chance.randrange(0, 6) if ran else 0, "elements": comparisons * 340,
            "same_bits": comparisons if same else comparisons - comparisons // 5,
            "bits_required": comparisons if same else 0, "max_abs_difference": 0.0 if same else 3.0e-7,
            "loosest": {"rtol": 1.3e-6, "atol": 1e-5} if comparisons else {"rtol": 0.0, "atol": 0.0},
            "collectives_checked": 4 if ran else 0, "orders_checked": 0, "errors_expected": 0,
        },
        "collectives": [], "memory": {}, "records": {},
        "repro": f"lockstep run {scenario} --case '{','.join(words[:2])}' --world-size {world_size} --device {device}",
    }  # fmt: skip
    if ran and scenario.startswith("training/"):
        row["plan"] = [
            plan_row("all_gather", "forward", world_size, 6, 4096), plan_row("reduce_scatter", "backward", world_size, 3, 2048),
        ]  # fmt: skip
        if status == "FAIL":
            row["plan"][1].update(observed=4, observed_bytes=4096)
    if ran:
        row["collectives"] = [
            {"family": family, "operation": operation, "axis": axis, "group_size": world_size, "phase": phase,
             "count": chance.randrange(1, 60), "bytes": chance.randrange(1000, 900000)}
            for family, operation, axis, phase in [
                ("start_up", "broadcast", "dp", "other"), ("data_parallel", "all_gather", "dp", "forward"),
                ("data_parallel", "all_gather", "dp", "backward"), ("data_parallel", "reduce_scatter", "dp", "backward"),
                ("tensor_parallel", "all_reduce", "tp", "forward"), ("user", "all_reduce", "", "other"),
            ]
        ]  # fmt: skip
        purposes = "parameter gradient gathered activation optimizer communication other".split()
        row["memory"] = {purpose: chance.randrange(0, 4_000_000) for purpose in purposes}
        row["memory"]["peak_total"] = int(sum(row["memory"].values()) * 0.8)
        if scenario.startswith(("training/", "golden/")):
            ours, theirs = losses(chance, world_size, 10, same)
            row["records"]["losses"] = ours
            if scenario.startswith("training/"):
                row["records"]["reference_losses"] = theirs
    if status in ("FAIL", "HANG", "CRASH", "INVALID"):
        row["failure"] = {
            "check": "expect_equal", "file": f"scenarios/{scenario}.yaml", "line": 23, "column": 9, "rank": 1, "iteration": 3,
            "message": "test.layers.0.attention.wq.weight: 12 of 256 elements (4.69 %) differ\n"
            "  first at [0, 3]: 0.12345679 and 0.12345901, difference 2.22e-06 (18 units in the last place)\n"
            "  tolerance: rtol 1.3e-06, atol 1e-05",
            "also": ["rank 0: test.layers.0.attention.wq.weight: 3 of 256 elements differ"],
        }  # fmt: skip
    if status in ("SKIP", "UNSUPPORTED", "XFAIL"):
        row["reason"] = {"SKIP": "settings with exactly 2 delays are covered by the others",
                         "UNSUPPORTED": "no cuda backend in this build",
                         "XFAIL": "the divisor is wrong on purpose"}[status]  # fmt: skip
    return row


def rows(num_cases: int = 60, seed: int = 1, clean: bool = False) -> list[dict]:
    chance = random.Random(seed)
    statuses = ["PASS"] * 40 + ["SKIP"] * 3 + ["UNSUPPORTED"] * 2 + ["XFAIL"] * 3
    if not clean:
        statuses += ["FAIL", "HANG", "CRASH", "INVALID", "XPASS", "MISSING"]
    cases = [case_row(chance, number, chance.choice(statuses)) for number in range(num_cases)]
    counts: dict[str, int] = {}
    for case in cases:
        counts[case["status"]] = counts.get(case["status"], 0) + 1
    bad = any(case["status"] in ("FAIL", "XPASS", "HANG", "CRASH", "INVALID", "MISSING") for case in cases)
    return [
        {"kind": "run", "schema": 1, "version": "0.1.0", "started": "2024-05-06T07:08:09Z",
         "command": ["lockstep", "run", "--device", "cpu"],
         "build": {"compiler": "GNU 12.2.0", "kokkos": "3.4.1", "kokkos_backends": "Serial", "blas": "OpenBLAS 0.3.21 (pthread)"},
         "machine": {"cores": 2, "memory": 8 << 30, "cpu": "A Processor At 2.10GHz"}},
        *cases,
        {"kind": "summary", "counts": counts, "seconds": round(sum(case["seconds"] for case in cases), 3), "exit_code": int(bad)},
    ]  # fmt: skip


def plan_row(operation: str, phase: str, world_size: int, count: int, size: int) -> dict:
    return {"family": "data_parallel", "operation": operation, "axis": "dp", "group_size": world_size, "phase": phase,
            "planned": count, "planned_bytes": size, "observed": count, "observed_bytes": size}  # fmt: skip


BOXES_A_RANK_AND_ITERATION = 8


def trace(ranks: int = 2, iterations: int = 3, name: str = "") -> dict:
    """A trace as `lockstep run --timeline` leaves it. An iteration takes 1 ms; rank r lags behind by r * 20 us."""
    purposes = "parameter gradient gathered activation optimizer communication other".split()
    events: list[dict] = []
    threads = ["steps and modules", "cpu/compute", "cpu/all_gather", "cpu/reduce_scatter"]

    def box(rank, thread, kind, called, begin, duration, **args):
        events.append({"ph": "X", "pid": rank, "tid": thread, "cat": kind, "name": called + name, "ts": begin, "dur": duration,
                       "args": args})  # fmt: skip

    for rank in range(ranks):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        events += [{"ph": "M", "pid": rank, "tid": at, "name": "thread_name", "args": {"name": thread}} for at, thread in enumerate(threads)]
        box(rank, 0, "step", "repeat", 0.0, 1000.0 * iterations, line=9)
        for turn in range(iterations):
            at, where = 1000.0 * turn + 20.0 * rank, {"line": 12, "iteration": turn}
            made = {"family": "data_parallel", "axis": "dp", "group_size": ranks, "group": 7, "bytes": 4096, "owner": "net.fc1", **where}
            box(rank, 0, "step", "forward loss", at + 10, 400.0, **where)
            box(rank, 0, "module", "net", at + 20, 300.0, **where)
            box(rank, 0, "module", "net.fc1", at + 30, 200.0, **where)
            box(rank, 2, "collective", "all_gather", at + 30, 90.0, phase="forward", sequence=2 * turn, resumed=at + 100, **made)
            box(rank, 1, "launch", "matmul", at + 130, 80.0, **where)
            box(rank, 0, "step", "backward", at + 420, 500.0, **where)
            box(rank, 1, "launch", "copy", at + 430, 200.0, **where)
            box(rank, 3, "collective", "reduce_scatter", at + 640, 200.0, phase="backward", sequence=2 * turn + 1, **made)
            for after, gathered in ((0, 0), (60, 4096), (600, 4096), (850, 0)):
                sizes = {"parameter": 8192, "gradient": 2048 if after > 500 else 0, "gathered": gathered, "activation": 1024 * rank}
                events.append({"ph": "C", "pid": rank, "name": "memory", "ts": at + after, "args": {of: sizes.get(of, 0) for of in purposes}})
    bound = {"rank": ranks - 1, "of": "seen", "purposes": ["gathered"], "begin": 0.0, "end": 1000.0 * iterations, "bytes": 12000,
             "peak": 4096, "line": 31, "text": "seen.peak_bytes <= 12000" + name}  # fmt: skip
    other = {"scenario": "training/x", "case": "world_size=2", "world_size": ranks, "num_dropped": 0, "ranks_missing": [],
             "ranks_cut": [], "purposes": purposes, "bounds": [bound]}  # fmt: skip
    return {"displayTimeUnit": "ns", "otherData": other, "traceEvents": events}


def hostile(row: dict) -> dict:
    """The same row with every text replaced by one that would break out of the page."""

    def broken(value):
        if isinstance(value, str):
            return HOSTILE
        if isinstance(value, dict):
            return {key if key in ("losses", "reference_losses") else f"{key}": broken(item) for key, item in value.items()}
        return [broken(item) for item in value] if isinstance(value, list) else value

    return {key: value if key in ("kind", "status") else broken(value) for key, value in row.items()}


def unpacked(page: str) -> str:
    """The page as its script makes it at the start: the list of the cases in its place, and their data as JSON."""
    packed = re.search(r'<script id="packed" type="text/plain">(.*?)</script>', page, flags=re.DOTALL)
    assert packed
    data = json.loads(zlib.decompress(base64.b64decode(packed.group(1))))
    groups = data.pop("groups")
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = page.replace(packed.group(), f'<script id="data" type="application/json">{text}</script>')
    return page.replace('<div id="groups"></div>', f'<div id="groups">{groups}</div>')


def write(path: Path, lines: list[dict]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--hostile", action="store_true")
    options = parser.parse_args()
    made = rows(options.cases, clean=options.clean)
    write(options.file, [hostile(row) for row in made] if options.hostile else made)
    sys.exit(0)
