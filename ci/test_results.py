"""What the rows of a results file say of a case."""

from __future__ import annotations

from program import lockstep, rows, scenario


def test_results_count_collectives_by_axis_phase_and_size_of_the_group(tmp_path):
    results = tmp_path / "results.jsonl"
    steps = """\
steps:
  - mesh: {shape: [2, 2], names: [outer, inner]}
    as: world
  - model: Linear(2, 2)
    as: model
  - let: {x: ones(4), few: ones(1)}
  - all_reduce: {tensor: x, op: sum, mesh: world.outer}
  - repeat: 2
    steps:
      - all_reduce: {tensor: x, op: sum, mesh: world.inner}
  - all_reduce: {tensor: few, op: sum, mesh: all_ranks}
  - hook: {modules: model, at: before_forward}
    steps:
      - all_reduce: {tensor: few, op: sum, mesh: world.inner}
  - forward: {y: "model(ones(3, 2))"}
  - expect_equal: [x, 8]
"""
    (tmp_path / "own.yaml").write_text("scenario: own\nsummary: s\nranks: {world_size: [4]}\n" + steps, encoding="utf-8")
    ran = lockstep("run", tmp_path, "--results", results)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    case = next(row for row in rows(results) if row["kind"] == "case")
    keys = ("operation", "axis", "group_size", "phase", "count", "bytes")
    assert sorted(tuple(row[key] for key in keys) for row in case["collectives"]) == [
        ("all_reduce", "dp", 4, "other", 1, 4),
        ("all_reduce", "inner", 2, "forward", 1, 4),
        ("all_reduce", "inner", 2, "other", 2, 32),
        ("all_reduce", "outer", 2, "other", 1, 16),
    ]


def test_results_have_the_largest_peak_of_memory_of_any_rank(tmp_path):
    results = tmp_path / "results.jsonl"
    (tmp_path / "own.yaml").write_text(
        "scenario: own\nsummary: s\nranks: {world_size: [3]}\nsteps:\n"
        "  - let: {x: 'ones(1000) if rank == 1 else ones(10)'}\n"
        "  - model: 'Linear(30, 10, bias=false)'\n    as: model\n    when: rank == 2\n"
        "  - expect: item(sum(x)) > rank\n",
        encoding="utf-8",
    )
    ran = lockstep("run", tmp_path, "--results", results)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    case = next(row for row in rows(results) if row["kind"] == "case")
    # 1000 numbers and their sum on rank 1, and 300 parameters on rank 2
    assert [case["memory"][purpose] for purpose in ("activation", "parameter", "peak_total")] == [4004, 1200, 4004]


LOOPS = """\
scenario: loops
summary: One of several checks within and outside of loops does not hold.
ranks: {world_size: [1]}
device: [cpu]
matrix: {where: [before, outer, inner, after_inner, after]}
steps:
  - let: {x: ones(2)}
  - expect_equal: [x, "2 if where == 'before' else 1"]
  - repeat: {times: 3, index: i}
    steps:
      - expect_equal: [x, "2 if where == 'outer' and i == 1 else 1"]
      - for_each: {name: j, in: "[0, 1, 2, 3]"}
        steps:
          - expect_equal: [x, "2 if where == 'inner' and i == 1 and j == 3 else 1"]
      - expect_equal: [x, "2 if where == 'after_inner' and i == 1 else 1"]
  - expect_equal: [x, "2 if where == 'after' else 1"]
"""


def test_a_failure_names_the_iteration_of_the_loop_that_it_is_in(tmp_path):
    results, own = tmp_path / "results.jsonl", tmp_path / "loops.yaml"
    own.write_text(LOOPS, encoding="utf-8")
    ran = lockstep("run", own, "--results", results)
    assert ran.returncode == 1
    failures = [row["failure"] for row in rows(results) if row["kind"] == "case"]
    seen = sorted((failure["line"], failure["iteration"]) for failure in failures)
    assert seen == [(8, None), (11, 1), (14, 3), (15, 1), (16, None)]
    places = [line.partition(": expect_equal, ")[2] for line in ran.stdout.splitlines() if ": expect_equal, " in line]
    assert sorted(places) == ["rank 0", "rank 0", "rank 0, iteration 1", "rank 0, iteration 1", "rank 0, iteration 3"]


def test_a_case_with_other_evidence_than_stated_exits_with_1(tmp_path):
    file, results = tmp_path / "stated.yaml", tmp_path / "results.jsonl"
    file.write_text(
        "scenario: stated\nsummary: Two zeros, and two comparisons of one.\nranks: {world_size: [1]}\ndevice: [cpu]\n"
        "matrix: {trivial: [0, 1, 2], bits_relaxed: [0, 1]}\n"
        "evidence: {trivial: trivial, comparisons: 2, bits_relaxed: bits_relaxed}\nsteps:\n"
        "  - let: {x: zeros(3)}\n  - expect_equal: [x, 0]\n  - expect_equal: [x + 1, 1]\n  - expect_equal: [x + 2, 2]\n",
        encoding="utf-8",
    )
    assert lockstep("run", file, "--results", results).returncode == 1
    found = {tuple(row["params"].values()): row.get("failure", {}).get("message") for row in rows(results) if row["kind"] == "case"}
    assert found[(1, 0)] is None
    start = "the case gathered other evidence than the scenario states: "
    assert found[(0, 0)] == start + "trivial is 1, expected 0"
    assert found[(2, 0)] == start + "trivial is 1, expected 2"
    assert found[(0, 1)] == start + "trivial is 1, expected 0, bits_relaxed is 0, expected 1"
    assert lockstep("run", file, "--case", "trivial=1,bits_relaxed=0").returncode == 0


def test_a_record_is_that_of_the_last_stage_that_made_it(tmp_path):
    file, results = tmp_path / "staged.yaml", tmp_path / "results.jsonl"
    file.write_text(
        "scenario: staged\nsummary: Records of two stages.\nranks: {world_size: [2]}\ndevice: [cpu]\nstages:\n"
        "  - name: first\n    steps:\n      - record: {loss: rank + 1, early: rank + 3}\n      - expect: rank < 2\n"
        "  - name: second\n    world_size: 3\n    steps:\n      - record: {loss: rank + 5}\n        when: rank == 1\n"
        "      - expect: rank < 3\n",
        encoding="utf-8",
    )
    assert lockstep("run", file, "--results", results).returncode == 0
    (case,) = [row for row in rows(results) if row["kind"] == "case"]
    assert case["records"] == {"loss": [None, 6, None], "early": [3, 4]}


def test_a_case_that_passes_under_schedules_has_the_results_of_one_run(tmp_path):
    file, results = scenario(tmp_path, "sums"), tmp_path / "results.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("[cpu]", "[sim]") + "evidence: {comparisons: 2}\n", encoding="utf-8")
    ran = lockstep("run", file, "--schedule", "random:1", "--schedules", 3, "--results", results, "--schedule-files", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (case,) = [row for row in rows(results) if row["kind"] == "case"]
    assert case["reason"].startswith("3 schedules passed") and case["evidence"]["comparisons"] == 2
    assert [row["count"] for row in case["collectives"]] == [1]
