"""Sums in the order of the library, on the stand-ins of CUDA and NCCL: where they are refused, and what results and page show.

LOCKSTEP_PROGRAM names the program (build/bin/lockstep of this repository when unset).
"""

from __future__ import annotations

import re

import pytest
from program import lockstep, rows
from test_hosts import Run

SUM = """\
scenario: sum
summary: A sum over the ranks. The first rank has 1, the others half a unit in its last place.
ranks: {world_size: [3], launch: [process]}
bits: required
sum_order: library
steps:
  - let: {x: "full([4], 1.0 if rank == 0 else 2.0 ** -24)", n: "full([4], rank, dtype=int64)"}
  - all_reduce: {tensor: x, op: sum}
  - all_reduce: {tensor: n, op: sum}
  - expect_equal: [x, 1]
  - expect_equal: {actual: n, expected: "full([4], 3, dtype=int64)", bits: true}
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CUDA", "stand-in:8")
    file = tmp_path / "sum.yaml"
    file.write_text(SUM, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "device,gpus,reason",
    [
        ("cpu", 8, "on cpu the engine adds (use a GPU per rank"),
        ("sim", 8, "on sim the engine adds (use a GPU per rank"),
        ("cuda", 2, "ranks 0 and 1 share the device stand-in 0 (use no more ranks than devices"),
    ],
)
def test_it_is_refused_where_no_library_adds(scenario, monkeypatch, device, gpus, reason):
    monkeypatch.setenv("LOCKSTEP_CUDA", f"stand-in:{gpus}")
    ran = lockstep("run", scenario, "--device", device)
    assert ran.returncode == 77 and f"sums in the order of a library: {reason}" in ran.stdout, ran.stdout
    assert lockstep("run", scenario, "--device", device, "--sum-order", "fixed").returncode == 0


def test_it_is_refused_between_hosts(scenario):
    codes, said = Run(3, "run", scenario, "--device", "cuda").end()
    assert codes == [77] * 3 and "between hosts the engine adds (use one host" in said[0], said[0]


def test_results_console_and_page_show_the_order_and_the_relaxed_bits(scenario, tmp_path):
    results, page = tmp_path / "results.jsonl", tmp_path / "page"
    ran = lockstep("run", scenario, "--device", "cuda", "--results", results, "--report", page)
    assert ran.returncode == 0, ran.stdout
    assert "sums in the order of the library in 1 case; tolerances took the place of required bits in 3 comparisons" in ran.stdout
    row = next(row for row in rows(results) if row["kind"] == "case")
    evidence = row["evidence"]
    assert row["sum_order"] == "library"
    assert evidence["bits_relaxed"] == 3 and evidence["bits_required"] == 3  # x, and n, on three ranks
    assert evidence["same_bits"] == 3 and 0 < evidence["max_abs_difference"] <= 2**-22  # the stand-in adds the small ones first
    assert evidence["loosest"]["rtol"] == 1e-3
    text = re.sub(r"<[^>]*>|\s+", " ", (page / "index.html").read_text(encoding="utf-8"))
    assert re.search(r"cases with sums in the order of the library +1 ", text)
    assert re.search(r"tolerance in place of required bits +3 ", text)


def test_a_step_left_out_is_noticed_there(scenario):
    ran = lockstep("mutate", scenario, "--device", "cuda")
    assert "2 steps left out: 2 noticed" in ran.stdout, ran.stdout
