"""The way from a run to the page: the program leaves timelines and plans, the page shows them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from lockstep_reports.page import render
from lockstep_reports.reading import read_results
from lockstep_reports.timeline import read_timeline
from test_page import Page

PROGRAM = Path(os.environ.get("LOCKSTEP_PROGRAM", Path(__file__).resolve().parents[2] / "build" / "bin" / "lockstep"))


def knows_timelines() -> bool:
    if not PROGRAM.exists():
        return False
    shown = subprocess.run([PROGRAM, "run", "--help"], capture_output=True, text=True, check=False, timeout=60)
    return "--timeline" in shown.stdout


pytestmark = pytest.mark.skipif(not knows_timelines(), reason=f"{PROGRAM} is not built, or is older than these tests")

SCENARIO = """\
scenario: averaged
summary: Replicated gradients are the mean of the ranks' own.
ranks: {world_size: [2], launch: [process, thread]}
device: [cpu, sim]
steps:
  - seed: 1
  - {model: "Linear(3, 2)", as: model}
  - replicate: model
  - observe: {}
    steps:
      - repeat: 3
        steps:
          - forward: {loss: "sum(model(full([5, 3], rank + 1)))"}
          - backward: loss
          - zero_grad: model
    as: seen
  - expect: seen.peak_bytes < 100000
"""


@pytest.fixture(scope="module", params=["cpu", "sim"])
def ran(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "averaged.yaml").write_text(SCENARIO, encoding="utf-8")
    out = folder / "out"
    command = [PROGRAM, "run", folder / "averaged.yaml", "--device", request.param, "--results", out / "results.jsonl", "--timeline", out / "when"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def cases(folder: Path) -> list[dict]:
    rows = map(json.loads, (folder / "results.jsonl").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["kind"] == "case"]


def test_every_case_names_its_timeline_beside_the_results(ran):
    rows = cases(ran)
    assert len(rows) == 2
    assert sorted(row["timeline"] for row in rows) == [f"when/timeline-{number}.json" for number in (1, 2)]
    assert sorted(file.name for file in (ran / "when").iterdir()) == [f"timeline-{number}.json" for number in (1, 2)]


def test_boxes_lie_in_time_and_collectives_join_both_ranks(ran):
    for row in cases(ran):
        trace = json.loads((ran / row["timeline"]).read_text(encoding="utf-8"))
        boxes = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert {event["pid"] for event in boxes} == {0, 1}
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in boxes)
        reduces = [event for event in boxes if event["cat"] == "collective" and event["name"] == "all_reduce"]
        assert len(reduces) == 2 * 3
        starts = {event["id"]: event for event in trace["traceEvents"] if event["ph"] == "s"}
        ends = {event["id"]: event for event in trace["traceEvents"] if event["ph"] == "f"}
        assert starts.keys() == ends.keys() and len(starts) >= 3
        for key, start in starts.items():
            assert start["name"] == ends[key]["name"] and {start["pid"], ends[key]["pid"]} == {0, 1}
            assert start["ts"] <= ends[key]["ts"]


def test_collectives_of_a_stream_do_not_overlap(ran):
    for row in cases(ran):
        timeline = read_timeline(ran / row["timeline"])
        for lanes in timeline.lanes.values():
            for lane in lanes[1:]:
                assert all(box.depth == 0 for box in lane.boxes), (row["case"], lane.name)


def test_memory_peaks_are_those_of_the_results_and_the_bound_is_known(ran):
    for row in cases(ran):
        timeline = read_timeline(ran / row["timeline"])
        seen = max(sum(sizes) for samples in timeline.memory.values() for _, sizes in samples)
        assert seen == row["memory"]["peak_total"]
        assert {(bound.rank, bound.bytes) for bound in timeline.bounds} == {(0, 100000), (1, 100000)}


def test_the_page_shows_both(ran):
    page = Page(render(read_results(ran / "results.jsonl")))
    assert {"timeline-0", "timeline-1", "plan"} <= set(page.ids)
    assert "All agreed with the plan" in page.text
    assert "of which" in page.text and "seen.peak_bytes < 100000" in page.text
