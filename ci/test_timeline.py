"""The timeline of a run has every step, module and collective once, in order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from program import lockstep, rows

TIMED = """\
scenario: timed
summary: Two layers that are sharded train for two steps.
ranks: {world_size: [2], launch: [process, thread]}
device: [cpu, sim]
steps:
  - seed: 1
  - model: Sequential(Linear(4, 6), Linear(6, 2))
    as: net
  - fully_shard: [net.0, net.1, net]
  - optimizer: {type: SGD, model: net, lr: 0.1}
    as: sgd
  - repeat: 2
    steps:
      - forward: {loss: "sum(net(full([3, 4], rank + 1)))"}
      - backward: loss
      - step: sgd
  - expect: net.0.weight.sharded
"""
TIMED_LINES = {"seed": 6, "model net": 7, "fully_shard": 9, "optimizer sgd": 10, "repeat": 12, "forward": 14, "backward": 15, "step": 16, "expect": 17}


def check_nested(boxes: list[dict]) -> None:
    """Boxes of one row, in order of begin, lie within each other or apart."""
    around: list[float] = []
    for box in sorted(boxes, key=lambda box: (box["ts"], -box["dur"])):
        while around and box["ts"] >= around[-1]:
            around.pop()
        end = box["ts"] + box["dur"]
        assert not around or end <= around[-1] + 0.01, (box, around)
        around.append(end)


def check_timeline(trace: dict, case: dict) -> None:
    """Every step, module and collective of TIMED is there once, in its row, at its line and in order."""
    assert trace["otherData"]["num_dropped"] == 0 and trace["otherData"]["ranks_missing"] == []
    events = trace["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    boxes = [e for e in events if e["ph"] == "X"]
    assert [e["pid"] for e in boxes] == sorted(e["pid"] for e in boxes)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in boxes)
    sequences = []
    for rank in (0, 1):
        mine = [e for e in boxes if e["pid"] == rank]
        host = [e for e in mine if e["tid"] == 0]
        check_nested(host)
        steps = [e for e in host if e["cat"] == "step"]
        loop = ["forward", "backward", "step"] * 2
        assert [e["name"] for e in steps] == ["seed", "model net", "fully_shard", "optimizer sgd", "repeat", *loop, "expect"]
        assert all(e["args"]["line"] == TIMED_LINES[e["name"]] for e in steps)
        modules = [e for e in host if e["cat"] == "module"]
        assert [e["name"] for e in modules] == ["net", "net.0", "net.1"] * 2
        assert all(e["args"]["line"] == TIMED_LINES["forward"] for e in modules)
        on_streams = [e for e in mine if e["tid"] != 0]
        assert {e["args"]["line"] for e in on_streams} <= set(TIMED_LINES.values())
        for tid in {e["tid"] for e in on_streams}:
            assert names[rank, tid].startswith(case["device"])
            row = [e for e in on_streams if e["tid"] == tid]
            # One stream runs one launch after another, in the order in which they were issued.
            for before, after in zip(row, row[1:]):
                assert before["ts"] + before["dur"] <= after["ts"] + 0.01, (names[rank, tid], before, after)
        collectives = [e for e in on_streams if e["cat"] == "collective"]
        counted = Counter((e["args"]["family"], e["name"], e["args"]["phase"]) for e in collectives)
        size = Counter()
        for e in collectives:
            size[e["args"]["family"], e["name"], e["args"]["phase"]] += e["args"]["bytes"]
        of_case = [row for row in case["collectives"] if row.get("rank", rank) == rank and row["operation"] != "barrier"]
        assert counted == {(row["family"], row["operation"], row["phase"]): row["count"] for row in of_case}
        assert size == {(row["family"], row["operation"], row["phase"]): row["bytes"] for row in of_case}
        for e in collectives:
            if e["args"]["family"] == "data_parallel":
                assert names[rank, e["tid"]].endswith("/" + e["name"])
        launches = Counter(e["args"]["line"] for e in on_streams if e["cat"] == "launch")
        assert launches[TIMED_LINES["forward"]] and launches[TIMED_LINES["backward"]] and launches[TIMED_LINES["step"]]
        sequences.append([(e["name"], e["args"]["group"], e["args"]["sequence"]) for e in collectives])
        assert len(set(sequences[-1])) == len(sequences[-1])
    assert sorted(sequences[0]) == sorted(sequences[1])


def timed(folder: Path, device: str) -> list[tuple[dict, dict]]:
    file, results = folder / "timed.yaml", folder / "results.jsonl"
    file.write_text(TIMED, encoding="utf-8")
    ran = lockstep("run", file, "--device", device, "--timeline", folder / "when", "--results", results)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cases = [row for row in rows(results) if row["kind"] == "case"]
    assert len(cases) == 2
    return [(json.loads((folder / case["timeline"]).read_text(encoding="utf-8")), case) for case in cases]


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_timeline_shows_every_step_module_and_collective_once_in_order(tmp_path, device):
    for trace, case in timed(tmp_path, device):
        check_timeline(trace, case)


def test_a_timeline_shows_the_collectives_of_one_rank_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_CUDA", "stand-in")
    file, results = tmp_path / "alone.yaml", tmp_path / "results.jsonl"
    file.write_text(TIMED.replace("[2]", "[1]").replace("[cpu, sim]", "[cuda]"), encoding="utf-8")
    ran = lockstep("run", file, "--timeline", tmp_path / "lines", "--results", results)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    cases = [row for row in rows(results) if row["kind"] == "case"]
    assert len(cases) == 2
    for case in cases:
        trace = json.loads((tmp_path / case["timeline"]).read_text(encoding="utf-8"))
        boxes = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "collective"]
        counted = Counter((e["args"]["family"], e["name"], e["args"]["phase"]) for e in boxes)
        assert counted == {(row["family"], row["operation"], row["phase"]): row["count"] for row in case["collectives"]}
        assert counted["data_parallel", "reduce_scatter", "backward"] == 4  # two layers, two steps


def test_each_wrong_timeline_is_noticed(tmp_path):
    trace, case = timed(tmp_path, "sim")[0]
    events = trace["traceEvents"]
    boxes = [at for at, event in enumerate(events) if event["ph"] == "X"]
    one = {kind: [at for at in boxes if events[at]["cat"] == kind][3] for kind in ("step", "module", "collective")}
    launch = [at for at in boxes if events[at]["cat"] == "launch" and events[at]["dur"] > 0][3]
    last = max(boxes)

    def wrong(change) -> None:
        copy = json.loads(json.dumps(trace))
        change(copy["traceEvents"])
        with pytest.raises(AssertionError):
            check_timeline(copy, case)

    for at in one.values():
        wrong(lambda list: list.pop(at))
        wrong(lambda list: list.insert(at, json.loads(json.dumps(list[at]))))
        wrong(lambda list: list[at].update(name="another"))
        wrong(lambda list: list[at]["args"].update(line=1))
    wrong(lambda list: list.insert(launch, json.loads(json.dumps(list[launch]))))
    wrong(lambda list: list[launch].update(dur=-1.0))
    wrong(lambda list: list[launch].update(dur=1e9))
    wrong(lambda list: list[launch]["args"].update(line=1))
    wrong(lambda list: list[launch].update(ts=1e9))
    wrong(lambda list: list.insert(0, list.pop(last)))
    wrong(lambda list: list[one["collective"]].update(tid=list[launch]["tid"] + 1))
    wrong(lambda list: list[one["module"]].update(dur=1e9))
