"""What is read from a results file, whole, cut or odd."""

from __future__ import annotations

import json
import math

import pytest
import sample
from lockstep_reports.model import worst
from lockstep_reports.reading import UnreadableResults, read_results
from lockstep_reports.rows import case_from
from lockstep_reports.values import same_bits


def test_every_row_of_a_whole_file_is_read(tmp_path):
    rows = sample.rows(40)
    results = read_results(sample.write(tmp_path / "results.jsonl", rows))
    assert len(results.cases) == 40
    assert results.counts == rows[-1]["counts"]
    assert results.run.build["kokkos"] == "3.4.1"
    assert results.summary.exit_code == rows[-1]["exit_code"]
    assert results.warnings() == []
    first = rows[1]
    assert results.cases[0].case == first["case"]
    assert results.cases[0].evidence.comparisons == first["evidence"]["comparisons"]
    assert results.cases[0].evidence.rtol == first["evidence"]["loosest"]["rtol"]


@pytest.mark.parametrize("cut_from_end", [1, 2, 30, 200, 700])
def test_a_file_cut_in_its_last_line_gives_all_lines_before_it(tmp_path, cut_from_end):
    rows = sample.rows(20)[:-1]  # ends with a case, as a killed run's does
    text = "".join(json.dumps(row) + "\n" for row in rows)
    file = tmp_path / "results.jsonl"
    file.write_text(text[:-cut_from_end], encoding="utf-8")
    results = read_results(file)
    whole = cut_from_end == 1  # only the newline is missing: the row itself is complete
    assert len(results.cases) == (20 if whole else 19)
    assert results.cut_line == (None if whole else 21)
    assert any("summary" in warning for warning in results.warnings())


def test_a_file_cut_inside_a_character_is_read(tmp_path):
    file = tmp_path / "results.jsonl"
    row = {"kind": "case", "scenario": "a/b", "case": "", "status": "PASS"}
    file.write_bytes(json.dumps(row).encode() + b'\n{"kind":"case","scenario":"\xc3')
    results = read_results(file)
    assert [case.scenario for case in results.cases] == ["a/b"]
    assert results.cut_line == 2


def test_lines_that_are_no_rows_are_counted_and_named(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text('not json\n[1]\n{"kind":"case","status":"PASS"}\n\n{"kind":"note"}\n' + "[" * 100000 + "\n", encoding="utf-8")
    results = read_results(file)
    assert results.unreadable_lines == [1, 2, 6]
    assert results.unknown_rows == [5]
    assert len(results.cases) == 1
    assert any("3 lines (1, 2, 6)" in warning for warning in results.warnings())


def test_an_empty_file_has_no_case_and_something_else_is_refused(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("", encoding="utf-8")
    assert read_results(empty).cases == []
    other = tmp_path / "page.html"
    other.write_text("<!doctype html>\n<p>no\n", encoding="utf-8")
    with pytest.raises(UnreadableResults, match="results file"):
        read_results(other)
    with pytest.raises(UnreadableResults, match="No such file"):
        read_results(tmp_path / "absent.jsonl")


def test_numbers_that_json_cannot_hold_come_as_text():
    case = case_from(
        {"evidence": {"comparisons": 1, "max_abs_difference": "nan"}, "records": {"losses": [[1.5, "nan", "inf", "-inf", None]]}}
    )
    assert math.isnan(case.evidence.max_abs_difference)
    losses = case.curves.losses[0]
    assert losses[0] == 1.5 and math.isnan(losses[1]) and losses[2:4] == [math.inf, -math.inf] and math.isnan(losses[4])


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [1, 2], {"a": {}}, True, float("nan"), 10**400])
def test_a_field_of_any_wrong_type_is_no_error(value):
    fields = (
        "scenario case mirrors params world_size launch device status reason seconds evidence collectives memory records "
        "failure repro"
    ).split()
    for field in fields:
        case_from({"kind": "case", field: value})
    case_from({field: value for field in fields})
    case_from({"evidence": {name: value for name in ("comparisons", "max_abs_difference", "loosest")}})
    case_from({"collectives": [value, {"count": value, "bytes": value, "rank": value}], "records": {"losses": [value, [value]]}})
    case_from({"failure": {"line": value, "rank": value, "also": value, "message": value}})


def test_conditions_are_evidence_of_their_own_and_an_older_file_has_none():
    old, new = case_from({"evidence": {"comparisons": 1}}), case_from({"evidence": {"comparisons": 0, "conditions": 2}})
    assert old.evidence.conditions == 0 and new.evidence.conditions == 2
    assert new.evidence.any and new.evidence.comparisons == 0


def test_bits():
    assert same_bits(0.1, 0.1)
    assert not same_bits(0.1, 0.1 + 2**-56)
    assert not same_bits(0.0, -0.0)
    assert not same_bits(math.nan, math.nan)
    assert same_bits(math.inf, math.inf)


def test_losses_are_compared_where_both_are_there():
    case = case_from({"records": {"losses": [[1.0, 2.0, 3.0], [4.0]], "reference_losses": [[1.0, 2.5], [4.0, 5.0]]}})
    assert case.curves.compared() == [(1.0, 1.0), (2.0, 2.5), (4.0, 4.0)]
    assert case.curves.num_same_bits == 2
    assert case.curves.points == 4


def test_the_worst_verdict_stands_for_all():
    assert worst(["PASS", "SKIP", "XFAIL"]) == "PASS"
    assert worst(["PASS", "FAIL", "CRASH"]) == "CRASH"
    assert worst(["SKIP", "UNSUPPORTED"]) == "UNSUPPORTED"
    assert worst(["PASS", "BETTER"]) == "BETTER"  # a verdict that is not known is not hidden
    assert worst([]) is None


def test_totals_count_each_collective_once(tmp_path):
    def row(count, rank=None, phase="forward"):
        made = {"family": "user", "operation": "send", "axis": "", "group_size": 2, "phase": phase, "count": count, "bytes": 8 * count}
        return made if rank is None else {**made, "rank": rank}

    cases = [
        {"kind": "case", "scenario": "a", "case": "", "status": "PASS", "collectives": [row(2), row(5, phase="backward")]},
        {"kind": "case", "scenario": "b", "case": "", "status": "PASS", "collectives": [row(3, rank=0), row(7, rank=1)]},
    ]
    totals = read_results(sample.write(tmp_path / "r.jsonl", cases)).collective_totals()
    assert [(total.phase, total.count, total.bytes) for total in totals] == [("forward", 5, 40), ("backward", 5, 40)]


def test_a_summary_that_disagrees_with_the_cases_is_named(tmp_path):
    rows = sample.rows(5, clean=True)
    rows[-1]["counts"] = {"PASS": 99}
    warnings = read_results(sample.write(tmp_path / "r.jsonl", rows)).warnings()
    assert any("99 PASS" in warning for warning in warnings)


def test_memory_of_stages_stands_apart():
    case = case_from({"memory": {"parameter": 8, "peak_total": 12, "stages": {"save": {"parameter": 4}, "load": {"parameter": 8}}}})
    assert case.memory == {"parameter": 8, "peak_total": 12}
    assert case.stage_memory == {"save": {"parameter": 4}, "load": {"parameter": 8}}


def test_what_failed_at_the_same_step_of_a_scenario_is_one_group():
    from lockstep_reports.model import Results

    def failed(scenario, line, status="FAIL"):
        failure = {"check": "expect_equal", "file": "a.yaml", "line": line, "message": "differs"}
        return case_from({"scenario": scenario, "status": status, "failure": failure})

    cases = [failed("a", 3), failed("b", 3), failed("a", 4), failed("a", 3), failed("a", 3, "HANG"), failed("a", 3, "PASS")]
    for index, case in enumerate(cases):
        case.index = index
    groups = Results("", cases=cases).unexpected_groups()
    assert [[case.index for case in group] for group in groups] == [[0, 3], [1], [2], [4]]
