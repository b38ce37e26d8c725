"""Cases of ranks that are threads, in processes that run many of them, and in a process per case: the same results.

LOCKSTEP_PROGRAM names the program (build/bin/lockstep of this repository when unset).
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from program import PROGRAM, lockstep, rows

# One after the other in one process: sums of two world sizes, and cases that end badly between them.
CASES = """\
scenario: cases
summary: Some turns end their ranks badly. The next turn does not notice it.
ranks: {world_size: [2, 3], launch: [thread]}
matrix: {turn: [1, 2, 3, 4, 5, 6]}
steps:
  - seed: 7
  - delay: {ms: 50, where: host}
  - let: {x: "full([1000], rank + 1)", noise: "randn([4])"}
  - all_reduce: {tensor: x, op: sum}
  - expect_equal: [x, "full([1000], world_size * (world_size + 1) / 2)"]
  - record: {noise: noise}
  - if: turn == 2 and rank == 1
    steps:
      - expect_equal: [x, 0]
  - if: turn == 4 and rank == 0
    steps:
      - barrier: all_ranks
        raises: {message: "without this call"}
"""


def run_and_count(*arguments: object) -> tuple[int, int]:
    """The exit code of a run, and the number of processes that its launcher had."""
    program = subprocess.Popen([str(PROGRAM), *map(str, arguments)], stdout=subprocess.DEVNULL)
    seen: set[str] = set()
    while program.poll() is None:
        for task in Path(f"/proc/{program.pid}/task").glob("*/children"):
            try:
                seen.update(task.read_text(encoding="ascii").split())
            except OSError:
                continue
        time.sleep(0.001)
    return program.returncode, len(seen)


def comparable(file: Path) -> list[dict]:
    """The cases of a results file, without their times."""
    times = ("seconds", "planning")
    return [{key: row[key] for key in row if key not in times} for row in rows(file) if row["kind"] == "case"]


@pytest.mark.parametrize(
    ("device", "gpus"), [("cpu", "stand-in"), ("sim", "stand-in"), ("cuda", "stand-in"), ("cuda", "stand-in:8")]
)
def test_the_results_are_those_of_a_process_per_case(tmp_path, monkeypatch, device, gpus):
    monkeypatch.setenv("LOCKSTEP_CUDA", gpus)
    monkeypatch.chdir(tmp_path)
    Path("cases.yaml").write_text(CASES, encoding="utf-8")
    run = ("run", "cases.yaml", "--device", device, "--jobs", "1", "--results")
    code, num_processes = run_and_count(*run, "series.jsonl")
    code_apart, num_apart = run_and_count(*run, "apart.jsonl", "--process-per-case")
    assert code == code_apart == 1
    # Of 12 cases, four end their process, and so there are five. A process that lives less than 50 ms may not be seen.
    others = 2
    assert num_processes <= 5 + others and num_apart >= 11
    assert comparable(Path("series.jsonl")) == comparable(Path("apart.jsonl"))
    statuses = {row["params"]["turn"]: row["status"] for row in rows(Path("series.jsonl")) if row["kind"] == "case"}
    assert statuses == {1: "PASS", 2: "FAIL", 3: "PASS", 4: "PASS", 5: "PASS", 6: "PASS"}


@pytest.mark.parametrize("launch", ["process", "thread"])
def test_every_case_of_a_scenario_leaves_a_trace_and_a_timeline_of_its_own(tmp_path, launch):
    file = tmp_path / "sizes.yaml"
    file.write_text(
        f"scenario: sizes\nsummary: Sizes.\nranks: {{world_size: [1, 3, 2], launch: [{launch}]}}\ndevice: [cpu]\n"
        "matrix: {fill: [1.0, 4.0]}\nsteps:\n  - model: Linear(2, 2)\n    as: net\n"
        "  - assign: {to: net.weight, value: 'ones(2, 2)'}\n  - assign: {to: net.bias, value: zeros(2)}\n"
        "  - forward: {y: 'net(full([1, 2], fill * world_size))'}\n"
        "  - expect_equal: [y, 2 * fill * world_size]\n",
        encoding="utf-8",
    )
    bits, lines, results = tmp_path / "bits", tmp_path / "lines", tmp_path / "results.jsonl"
    ran = lockstep("run", file, "--trace-bits", bits, "--timeline", lines, "--results", results)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    sizes = [1, 3, 2, 1, 3, 2]
    traces = {f"case-{case}.stage-0.rank-{rank}.jsonl" for case, size in enumerate(sizes, 1) for rank in range(size)}
    assert {path.name for path in bits.iterdir()} == traces
    # The output of each case has other values.
    assert len({rows(bits / f"case-{case}.stage-0.rank-0.jsonl")[-2]["hash"] for case in range(1, 7)}) == 6
    assert sorted(path.name for path in lines.iterdir()) == [f"timeline-{case}.json" for case in range(1, 7)]
    named = {Path(row["timeline"]).name: row["world_size"] for row in rows(results) if row["kind"] == "case"}
    assert named == {f"timeline-{case}.json": size for case, size in enumerate(sizes, 1)}
