"""What the page makes of plans and of the traces that `lockstep run --timeline` leaves."""

from __future__ import annotations

import json
import random

import pytest
import sample
from lockstep_reports.page import render
from lockstep_reports.reading import read_results
from lockstep_reports.timeline import KINDS, TICKS, UnreadableTimeline, page_data, read_timeline
from test_page import Page, page_of, scripts


def written(tmp_path, trace: dict, name: str = "timeline-1.json"):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(trace), encoding="utf-8")
    return file


def case_with(tmp_path, trace: dict | None, number: int = 8, name: str = "tl/timeline-1.json") -> dict:
    row = sample.case_row(random.Random(number), number, "PASS")
    row["timeline"] = name
    if trace is not None:
        written(tmp_path, trace, name)
    return row


def data_of(page: Page, text: str, which: str) -> dict:
    """The JSON that lies in the page for its script."""
    start = text.index(which)
    start = text.index('type="application/json"', start)
    start = text.index(">", start) + 1
    return json.loads(text[start : text.index("</script>", start)])


def test_boxes_lie_on_their_ranks_and_streams(tmp_path):
    timeline = read_timeline(written(tmp_path, sample.trace(ranks=2, iterations=3)))
    assert list(timeline.lanes) == [0, 1]
    assert [lane.name for lane in timeline.lanes[1]] == ["steps and modules", "cpu/compute", "cpu/all_gather", "cpu/reduce_scatter"]
    assert timeline.num_boxes == 2 * (1 + 3 * sample.BOXES_A_RANK_AND_ITERATION)
    steps = timeline.lanes[0][0]
    assert [(box.name, box.depth) for box in steps.boxes[:5]] == [
        ("repeat", 0), ("forward loss", 1), ("net", 2), ("net.fc1", 3), ("backward", 1),
    ]  # fmt: skip
    gather = timeline.lanes[1][2].boxes[0]
    assert (gather.begin, gather.duration, gather.resumed, KINDS[gather.kind]) == (50.0, 90.0, 120.0, "all_gather")
    assert gather.info == "data_parallel, forward, group of 2 along dp, 4 KiB, for net.fc1, line 12, iteration 0"
    assert timeline.end == 3000.0


def test_collectives_are_joined_by_group_and_sequence(tmp_path):
    timeline = read_timeline(written(tmp_path, sample.trace(ranks=3, iterations=2)))
    assert len(timeline.joins) == 4
    for join in timeline.joins:
        assert [rank for rank, _, _ in join] == [0, 1, 2]
        assert len({box.name for _, _, box in join}) == 1


def test_memory_is_that_of_the_rank_that_used_most(tmp_path):
    timeline = read_timeline(written(tmp_path, sample.trace(ranks=2, iterations=1)))
    assert timeline.heaviest_rank == 1
    assert max(sum(sizes) for _, sizes in timeline.memory[1]) == 8192 + 2048 + 4096 + 1024
    assert timeline.iterations(1) == [(30.0, 0)]
    assert [number for _, number in read_timeline(written(tmp_path, sample.trace(iterations=4))).iterations(0)] == [0, 1, 2, 3]
    assert [(bound.rank, bound.bytes, bound.line) for bound in timeline.bounds] == [(1, 12000, 31)]


def test_the_page_has_the_first_part_of_what_is_too_long(tmp_path):
    timeline = read_timeline(written(tmp_path, sample.trace(ranks=2, iterations=50)))
    data = page_data(timeline, max_boxes=100)
    assert data["boxes"] == 2 * (1 + 50 * sample.BOXES_A_RANK_AND_ITERATION)
    assert 90 <= data["shown"] <= 100
    assert data["end"] < 50_000 * TICKS
    places = {(lane, box) for lane, of in enumerate(data["lanes"]) for box in range(len(of["boxes"]) // 5)}
    for join in data["joins"]:
        assert set(zip(join[::2], join[1::2])) <= places


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": 3}', "[" * 100_000])
def test_what_is_no_trace_is_refused(tmp_path, text):
    file = tmp_path / "t.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableTimeline, match="t.json"):
        read_timeline(file)


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [{}], True, float("nan"), 1e400, -1])
def test_a_field_of_any_wrong_type_is_left_out(tmp_path, value):
    fields = "ph pid tid cat name ts dur args".split()
    events = []
    for phase in "XCM":
        whole = {"ph": phase, "pid": 0, "tid": 1, "cat": "collective", "name": "thread_name", "ts": 1.0, "dur": 2.0, "args": {}}
        events += [{**whole, field: value} for field in fields]
        events.append({**whole, "args": {name: value for name in ("name", "group", "sequence", "bytes", "line", "parameter", "resumed")}})
    trace = {"traceEvents": [value, *events], "otherData": {"bounds": [value, {"bytes": value, "begin": value, "purposes": value}]}}
    timeline = read_timeline(written(tmp_path, trace))
    page_data(timeline)
    render(read_results(sample.write(tmp_path / "r.jsonl", [case_with(tmp_path, trace)])))


def test_the_page_draws_the_timeline_of_a_case_beside_the_results(tmp_path):
    text, page = page_of(tmp_path, [case_with(tmp_path, sample.trace())])
    assert "timelines" in page.ids and "timeline-0" in page.ids
    assert scripts(page) == [None, "application/json", "application/json"]
    data = data_of(page, text, 'id="timeline-0"')
    assert data["shown"] == data["boxes"] == 2 * (1 + 3 * sample.BOXES_A_RANK_AND_ITERATION)
    assert len(data["joins"]) == 6
    assert "Memory of rank 1, which used most" in page.text
    assert "Bound of line 31 (dashed): 11.7 KiB for gathered, of which 4 KiB were used" in page.text
    assert data_of(page, text, 'id="data"')["cases"][0]["timeline"][0] == "timeline-0"


def test_a_timeline_that_is_gone_is_said_to_be(tmp_path):
    _, page = page_of(tmp_path, [case_with(tmp_path, None)])
    assert "It cannot be drawn" in page.text and "No such file" in page.text


def test_hostile_names_in_a_timeline_stay_text(tmp_path):
    trace = sample.trace(name=sample.HOSTILE)
    trace["traceEvents"].append({"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": sample.HOSTILE}})
    text, page = page_of(tmp_path, [case_with(tmp_path, trace)])
    assert scripts(page) == [None, "application/json", "application/json"]
    assert "<script>alert" not in text and "img" not in [tag for tag, _ in page.tags]


def test_timelines_are_bounded_in_number_and_size(tmp_path):
    trace = sample.trace(ranks=4, iterations=300)
    rows = [case_with(tmp_path, trace, number, f"tl/timeline-{number}.json") for number in range(12)]
    text, page = page_of(tmp_path, rows)
    assert sum(identity.startswith("timeline-") for identity in page.ids) == 8
    assert "8 of the 12 cases with a timeline" in page.text
    assert "boxes; all are in the file" in page.text
    assert len(text) < 4_000_000


def test_a_plan_that_was_kept_is_said_to_be(tmp_path):
    row = sample.case_row(random.Random(1), 8, "PASS")
    assert row["plan"]
    text, page = page_of(tmp_path, [row])
    assert "All agreed with the plan in number, bytes and order" in page.text
    tables = data_of(page, text, 'id="data"')["cases"][0]["tables"]
    assert tables[0]["title"] == "Collectives planned and observed: all agree"
    assert len(tables[0]["rows"]) == len(row["plan"]) and not any(isinstance(cell, list) for cells in tables[0]["rows"] for cell in cells)


def test_a_plan_that_was_not_judged_says_why(tmp_path):
    row = sample.case_row(random.Random(1), 8, "PASS")
    left = {**row, "case": row["case"] + ",again=1", "plan": {"judged": False, "reason": "ended early: rank 1"}}
    partly = {**left, "case": row["case"] + ",again=2", "plan": {**left["plan"], "collectives": row["plan"]}}
    text, page = page_of(tmp_path, [row, left, partly])
    assert "The plans of 2 cases were not judged" in page.text
    judged, *others = data_of(page, text, 'id="data"')["cases"]
    assert "plan" not in judged and "is:not-planned" not in judged["words"]
    assert [case["plan"] for case in others] == ["The plan was not judged: ended early: rank 1"] * 2
    assert all("is:not-planned" in case["words"] for case in others)
    assert [[table["kind"] for table in case["tables"]].count("plan") for case in others] == [0, 1]


def test_what_differs_from_the_plan_is_marked_and_comes_first(tmp_path):
    row = sample.case_row(random.Random(1), 8, "FAIL")
    text, page = page_of(tmp_path, [row])
    assert "1 case differed from the plan" in page.text
    table = data_of(page, text, 'id="data"')["cases"][0]["tables"][0]
    assert table["title"] == "Collectives planned and observed: 1 of 2 rows differ"
    size = row["plan"][1]["group_size"]
    assert table["rows"][0] == ["data_parallel", "reduce_scatter", "dp", str(size), "backward", "3", ["4"], "2\u202f048", ["4\u202f096"]]
    assert [attributes for tag, attributes in page.tags if tag == "tr" and attributes.get("class") == "differs"] != []


def test_an_order_that_parts_from_the_plan_is_told(tmp_path):
    row = sample.case_row(random.Random(1), 8, "PASS")
    row["evidence"]["planned_in_order"] = 18
    text, page = page_of(tmp_path, [row])
    facts = data_of(page, text, 'id="data"')["cases"][0]["evidence"]
    assert facts[-1] == "18"
    row["status"] = "FAIL"
    row["failure"] = {
        "check": "plan_order", "file": "a.yaml", "line": 9, "column": None, "rank": 0, "iteration": None, "also": [],
        "message": "backward, 2nd (line 9): planned all_gather of net.2, observed reduce_scatter of net.3",
    }  # fmt: skip
    _, page = page_of(tmp_path, [row])
    assert "1 case differed from the plan" in page.text
    assert "Order: backward, 2nd (line 9): planned all_gather of net.2" in page.text


def test_more_bytes_than_a_plan_asks_for_are_fine_where_it_says_at_least(tmp_path):
    row = sample.case_row(random.Random(1), 8, "PASS")
    row["plan"][0].update(bytes_are_least=True, observed_bytes=row["plan"][0]["planned_bytes"] + 8)
    _, page = page_of(tmp_path, [row])
    assert "All agreed with the plan" in page.text
    row["plan"][0]["observed_bytes"] = row["plan"][0]["planned_bytes"] - 8
    _, page = page_of(tmp_path, [row])
    assert "1 case differed from the plan" in page.text


def test_a_thousand_failures_with_long_messages_are_bounded(tmp_path):
    rows = sample.rows(1000)
    for row in rows[1:-1]:
        row.update(status="FAIL", failure={"check": "expect", "file": "a.yaml", "line": row["params"]["seed"] % 97, "message": "x" * 20_000, "also": ["y" * 5_000] * 40})
        row["records"]["more"] = [[0.125] * 4000]
    text, _ = page_of(tmp_path, rows)
    assert len(text) < 6_000_000


def test_one_case_of_each_scenario_is_drawn_before_a_second_of_any(tmp_path):
    from lockstep_reports.rows import case_from
    from lockstep_reports.page import choose_for_timelines

    cases = [case_from({"scenario": name, "status": status}) for name, status in [
        ("a", "PASS"), ("a", "PASS"), ("b", "PASS"), ("b", "FAIL"), ("b", "FAIL"), ("c", "PASS"), ("d", "HANG"),
    ]]  # fmt: skip
    for index, case in enumerate(cases):
        case.index = index
    assert [case.index for case in choose_for_timelines(cases, 1)] == [3]
    assert [case.index for case in choose_for_timelines(cases, 4)] == [3, 6, 0, 5]
    assert [case.index for case in choose_for_timelines(cases, 5)] == [3, 4, 6, 0, 5]
    assert choose_for_timelines(cases, 0) == []


def test_shares_count_what_overlaps_once(tmp_path):
    def box(thread, kind, begin, duration, name="matmul"):
        return {"ph": "X", "pid": 3, "tid": thread, "cat": kind, "name": name, "ts": begin, "dur": duration, "args": {}}

    events = [
        box(0, "step", 0.0, 1000.0, "forward"),
        box(1, "launch", 0.0, 100.0), box(1, "launch", 100.0, 50.0), box(2, "launch", 120.0, 60.0), box(1, "launch", 300.0, 100.0),
        box(3, "collective", 50.0, 100.0, "all_gather"), box(4, "collective", 140.0, 210.0, "barrier"),
    ]  # fmt: skip
    (share,) = read_timeline(written(tmp_path, {"traceEvents": events})).shares()
    assert (share.rank, share.num_launches, share.num_collectives) == (3, 4, 2)
    assert share.launches == 180.0 + 100.0
    assert share.collectives == 300.0  # from 50 to 350
    assert share.beside == 130.0 + 50.0  # 50 to 180, and 300 to 350
    assert share.hidden == pytest.approx(0.6)


def test_a_rank_without_collectives_hides_none(tmp_path):
    event = {"ph": "X", "pid": 0, "tid": 1, "cat": "launch", "name": "x", "ts": 1.0, "dur": 2.0}
    (share,) = read_timeline(written(tmp_path, {"traceEvents": [event]})).shares()
    assert share.hidden is None
    render(read_results(sample.write(tmp_path / "r.jsonl", [case_with(tmp_path, {"traceEvents": [event]})])))
