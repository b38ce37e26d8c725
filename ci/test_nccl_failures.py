"""Collectives on GPUs that a rank never comes to, over the stand-ins: the culprit is named, nothing hangs, and the next case runs.

LOCKSTEP_PROGRAM names the program (build/bin/lockstep of this repository when unset).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_command_line import lockstep, rows  # noqa: E402

LATE = """\
scenario: late
summary: The stream of one rank comes to a collective after the deadline, in the first case.
ranks: {{world_size: [3], launch: [{launch}]}}
device: [cuda]
matrix: {{turn: [1, 2]}}
steps:
  - let: {{x: "full([4], rank + 1)"}}
  - all_reduce: {{tensor: x, op: sum}}
  - expect_equal: [x, 6]
  - delay: 3000
    when: rank == {culprit} and turn == 1
  - all_gather: x
    as: all
  - expect_equal: [sum(all), 72]
"""


@pytest.mark.parametrize("launch,culprit", [("process", 0), ("process", 2), ("thread", 1)])
@pytest.mark.parametrize("gpus", ["stand-in:3", "stand-in"])
def test_the_deadline_names_the_rank_that_does_not_arrive(tmp_path, monkeypatch, launch, culprit, gpus):
    monkeypatch.setenv("LOCKSTEP_CUDA", gpus)
    file, results = tmp_path / "late.yaml", tmp_path / "results.jsonl"
    file.write_text(LATE.format(launch=launch, culprit=culprit), encoding="utf-8")
    begin = time.monotonic()
    ran = lockstep("run", file, "--device", "cuda", "--jobs", 1, "--deadline", 1.5, "--timeout", 40, "--results", results)
    assert ran.returncode == 1 and time.monotonic() - begin < 60, ran.stdout
    first, second = [row for row in rows(results) if row["kind"] == "case"]
    assert first["status"] == "FAIL" and second["status"] == "PASS", ran.stdout
    others = ", ".join(str(rank) for rank in range(3) if rank != culprit)
    expected = f"rank {culprit} did not arrive within 1.5 s. Waiting: ranks {others} in all_gather of 12 float32 for x at line 12"
    assert expected in first["failure"]["message"], ran.stdout
