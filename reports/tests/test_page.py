"""The page shows what the results file holds, safely, and no more."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sample
from lockstep_reports.documents import DOCUMENTS, NUM_TESTS
from lockstep_reports.page import choose_for_plots, headline, render
from lockstep_reports.reading import read_results

PROGRAM = Path(__file__).resolve().parent.parent / "lockstep_report.py"

VOID = {"meta", "br", "wbr", "input", "img", "link", "hr", "path", "use", "rect"}


class Page(HTMLParser):
    """Elements, texts and ids of a page; notes when tags are not closed in order."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open[-1] != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}, open are {self.open[-3:]}")
        else:
            self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def scripts(page: Page) -> list:
    return sorted((attributes.get("type") for tag, attributes in page.tags if tag == "script"), key=str)


def packed_page(tmp_path: Path, rows: list[dict], **options) -> str:
    return render(read_results(sample.write(tmp_path / "results.jsonl", rows)), **options)


def page_of(tmp_path: Path, rows: list[dict], **options) -> tuple[str, Page]:
    text = sample.unpacked(packed_page(tmp_path, rows, **options))
    page = Page(text)
    assert page.problems == [] and page.open == []
    assert len(page.ids) == len(set(page.ids)), "two elements share an id"
    return text, page


def case_data_of(text: str) -> list[dict]:
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, flags=re.DOTALL).group(1))["cases"]


def test_the_page_is_one_well_formed_file_without_links_to_others(tmp_path):
    text, page = page_of(tmp_path, sample.rows(60))
    assert text.startswith("<!DOCTYPE html>")
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        for name in ("src", "href", "xlink:href", "action", "data"):
            assert attributes.get(name, "#").startswith("#"), (tag, name, attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "@import" not in text and not re.search(r"url\((?!#p\d+-)", text)
    targets = {attributes["href"][1:] for tag, attributes in page.tags if tag == "a" and attributes.get("href", "#") != "#"}
    assert targets <= set(page.ids)


def test_what_was_unexpected_comes_first_with_all_that_is_needed_to_rerun_it(tmp_path):
    rows = sample.rows(60, seed=3)
    _, page = page_of(tmp_path, rows)
    bad = [row for row in rows if row.get("status") in ("FAIL", "XPASS", "HANG", "CRASH", "INVALID", "MISSING")]
    assert len(bad) > 3
    left_out = sum(row["status"] in ("SKIP", "UNSUPPORTED") for row in rows[1:-1])
    assert f"{len(bad)} of {60 - left_out} cases came out unexpectedly, {left_out} left out" in page.text
    before = page.text[: page.text.index("tests of the five documents")]
    for row in bad:
        assert row["repro"] in before
    failure = next(row["failure"] for row in bad if "failure" in row)
    assert f"{failure['file']}:23:9 , rank 1, iteration 3" in before
    assert "12 of 256 elements (4.69 %) differ" in before


def test_a_clean_run_says_so_and_has_no_section_of_failures(tmp_path):
    rows = sample.rows(30, clean=True)
    left_out = sum(row["status"] in ("SKIP", "UNSUPPORTED") for row in rows[1:-1])
    assert left_out > 0
    _, page = page_of(tmp_path, rows)
    assert f"All {30 - left_out} cases as expected, {left_out} left out" in page.text
    assert "unexpected" not in page.ids


def test_the_order_of_sums_and_relaxed_bits_are_shown_where_a_library_added(tmp_path):
    rows = sample.rows(12, clean=True)
    assert "tolerance in place of required bits" not in page_of(tmp_path, rows)[1].text
    ran = [row for row in rows[1:-1] if row["status"] == "PASS"]
    left_out = next(row for row in rows[1:-1] if row["status"] in ("SKIP", "UNSUPPORTED"))
    for row in (ran[0], ran[1], left_out):
        row["sum_order"] = "library"
    ran[0]["evidence"].update(bits_required=0, bits_relaxed=120)
    ran[1]["evidence"].update(bits_required=0, bits_relaxed=1)
    text, page = page_of(tmp_path, rows)
    assert "cases with sums in the order of the library 2 " in page.text
    assert "tolerance in place of required bits 121 " in page.text
    sums = [case.get("sums") for case in case_data_of(text)]
    assert sums[rows.index(ran[0]) - 1] == (
        "Sums over ranks have the order library. A tolerance took the place of required bits in 120 comparisons."
    )
    assert sums[rows.index(ran[1]) - 1].endswith("in 1 comparison.")
    assert sums.count(None) == 12 - 3


def test_all_tests_of_the_documents_are_there_and_those_without_a_case_are_not_yet_run(tmp_path):
    assert NUM_TESTS == 46
    rows = sample.rows(17, clean=True)
    _, page = page_of(tmp_path, rows)
    for document in DOCUMENTS:
        assert document.title in page.text
        for name in document.tests.values():
            assert name in page.text.replace("_ ", "_")
    mirrored = {row["mirrors"] for row in rows[1:-1]} - {None}
    assert page.text.count("not yet run: no case in this file mirrors it") == 46 - len(mirrored)
    ran = {row["mirrors"] for row in rows[1:-1] if row["status"] not in ("SKIP", "UNSUPPORTED")} - {None}
    assert f"{len(ran)} of the 46 tests of the five documents" in page.text
    tiles = [attributes["data-filter"] for _, attributes in page.tags if attributes.get("class", "").startswith("tile ")]
    assert sorted(tiles) == sorted(f"test:{number}" for number in ran), "only a test of which a case ran has a tile"


def test_hostile_text_stays_text(tmp_path):
    rows = [sample.hostile(row) for row in sample.rows(40)]
    for row in rows:  # numbers of curves stay, so that plots are drawn beside the hostile names
        row.get("records", {}).update({"losses": [[1.0, 2.0]], "reference_losses": [[1.0, 2.5]], sample.HOSTILE: sample.HOSTILE})
    text, page = page_of(tmp_path, rows)
    plain = Page(sample.unpacked(packed_page(tmp_path, sample.rows(40))))
    assert scripts(page) == scripts(plain) == [None, "application/json"]
    assert "img" not in [tag for tag, _ in page.tags]
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "<script>alert" not in text and "<img src=x" not in text
    assert "alert('1')" in page.text  # it is shown, as text


def test_a_status_that_is_not_known_is_shown_and_not_taken_for_good(tmp_path):
    rows = [{"kind": "case", "scenario": "a/b", "case": "", "status": "</style><b>GREAT"}]
    text, page = page_of(tmp_path, rows)
    assert "1 of 1 case came out unexpectedly" in page.text
    assert "</style><b>" not in text


def test_a_file_without_cases_claims_nothing(tmp_path):
    _, page = page_of(tmp_path, [])
    assert "No case in this file" in page.text and "as expected" not in page.text
    assert "0 of the 46 tests" in page.text
    assert "no summary" in page.text


def test_a_row_with_nothing_but_its_kind_is_shown(tmp_path):
    _, page = page_of(tmp_path, [{"kind": "run"}, {"kind": "case"}, {"kind": "summary"}])
    assert "(no name)" in page.text and "(no verdict)" in page.text


def test_a_cut_run_is_not_called_clean(tmp_path):
    rows = sample.rows(20, clean=True)
    rows[1]["status"] = "PASS"
    file = sample.write(tmp_path / "results.jsonl", rows[:-1])
    file.write_text(file.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    results = read_results(file)
    tone, said = headline(results)
    assert tone == "none" and "before the file ends" in said
    assert "is truncated" in Page(render(results)).text


def test_a_run_that_only_skipped_is_not_called_clean(tmp_path):
    row = {"kind": "case", "scenario": "a/b", "case": "", "status": "SKIP", "reason": "too slow here"}
    _, page = page_of(tmp_path, [row, {"kind": "summary", "counts": {"SKIP": 1}, "exit_code": 77}])
    assert "Nothing was executed" in page.text
    assert "too slow here" in page.text


def test_numbers_that_are_none_are_shown_and_not_drawn(tmp_path):
    case = sample.case_row(random.Random(1), 8, "FAIL")
    case["evidence"]["max_abs_difference"] = "nan"
    case["records"] = {"losses": [["nan", 1.0, "inf"], [1e308, -1e308, 2.0]], "reference_losses": [["nan", 1.0, "inf"], [0.0, 1e308, 2.0]]}
    _, page = page_of(tmp_path, [case])
    assert "4 values not finite, not drawn" in page.text
    assert "same bits at 3 of 6 points" in page.text  # an infinity has the bits of itself, not-a-number equals nothing


def test_losses_without_a_reference_are_drawn_by_rank_and_say_so(tmp_path):
    case = {"kind": "case", "scenario": "golden/x", "case": "world_size=2", "status": "PASS", "records": {"losses": [[3.0, 2.0], [3.5, 2.5]]}}
    text, page = page_of(tmp_path, [case])
    assert "no reference recorded" in page.text
    assert "rank 1" in page.text and text.count("<svg role") == 1


def test_plots_are_bounded_and_the_page_says_how_many_are_shown(tmp_path):
    text, page = page_of(tmp_path, sample.rows(120), max_plots=3)
    assert text.count("<figure>") == 3
    with_losses = sum("losses" in row.get("records", {}) for row in sample.rows(120))
    assert f"3 of the {with_losses} cases that recorded losses" in page.text


def test_failed_cases_are_drawn_first_then_one_of_each_scenario(tmp_path):
    results = read_results(sample.write(tmp_path / "r.jsonl", sample.rows(300)))
    candidates = [case for case in results.cases if case.curves]
    bad = [case for case in candidates if case.unexpected]
    chosen = choose_for_plots(candidates, len(bad) + 3)
    assert set(case.index for case in bad) <= set(case.index for case in chosen)
    assert len(chosen) == len(bad) + 3
    first_good = choose_for_plots([case for case in candidates if not case.unexpected], 5)
    assert len({case.scenario for case in first_good}) == 5


def test_five_thousand_cases_make_a_page_of_three_megabytes(tmp_path):
    assert len(packed_page(tmp_path, sample.rows(5000))) < 3_000_000


def test_the_head_has_no_absolute_tolerance(tmp_path):
    row = {"kind": "case", "scenario": "a/b", "case": "", "status": "PASS"}
    row["evidence"] = {"comparisons": 2, "loosest": {"rtol": 3e-6, "atol": 250.0, "of_largest": 2e-6}}
    _, page = page_of(tmp_path, [row])
    head = page.text[: page.text.index("Documents")]
    assert "loosest relative tolerance rtol 3e-06, of_largest 2e-06" in head and "250" not in head
    assert "atol 250" in page.text  # beside the scenario whose values it goes with


def test_a_failure_shows_the_lines_of_its_step(tmp_path):
    case = sample.case_row(random.Random(1), 8, "FAIL")
    case["failure"].update(line=9, scenario_line=31, source=["  - expect_equal:", "      actual: <b>loss</b>"])
    text, page = page_of(tmp_path, [case])
    assert "used in line 31" in page.text
    assert " 9 |   - expect_equal:" in "".join(page.texts) and "10 |       actual: <b>loss</b>" in "".join(page.texts)
    assert "<b>loss" not in text


def test_a_thousand_cases_make_a_page_of_bounded_size(tmp_path):
    text, page = page_of(tmp_path, sample.rows(1000))
    assert text.count('class="case"') == 1000
    assert text.count("<svg role") <= 26
    opened = [attributes["class"] for tag, attributes in page.tags if tag == "details" and "open" in attributes]
    assert sorted(set(name.split()[0] for name in opened)) == ["card", "document"]
    assert sum(name.startswith("card") for name in opened) <= 5


def test_many_long_texts_do_not_blow_the_page_up(tmp_path):
    case = sample.case_row(random.Random(1), 8, "FAIL")
    case["failure"]["message"] = "x" * 1_000_000
    case["failure"]["also"] = ["y" * 100_000] * 500
    case["records"]["everything"] = [[0.5] * 10_000] * 8
    case["collectives"] *= 500
    text, page = page_of(tmp_path, [case])
    assert len(text) < 300_000 and len(packed_page(tmp_path, [case])) < 200_000
    assert "more characters in the results file" in page.text and "more rows in the results file" in page.text


def test_the_same_file_gives_the_same_page(tmp_path):
    rows = sample.rows(40)
    pages = [
        subprocess.run(
            [sys.executable, str(PROGRAM), str(sample.write(tmp_path / "r.jsonl", rows)), "-o", str(tmp_path / name)], check=True
        )
        and (tmp_path / name / "index.html").read_bytes()
        for name in ("one", "two")
    ]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("arguments, code, said", [(["absent.jsonl", "-o", "x"], 2, "No such file"), ([], 2, "usage")])
def test_the_command_refuses_what_it_cannot_do(tmp_path, arguments, code, said):
    ran = subprocess.run([sys.executable, str(PROGRAM), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == code
    assert said in ran.stderr
    assert not (tmp_path / "x").exists()


def test_results_of_another_schema_are_refused(tmp_path):
    results = tmp_path / "r.jsonl"
    results.write_text('{"kind": "run", "schema": 2}\n', encoding="utf-8")
    ran = subprocess.run([sys.executable, str(PROGRAM), str(results), "-o", str(tmp_path / "x")], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "the file has schema 2, but this program reads schema 1" in ran.stderr
    assert not (tmp_path / "x").exists()


def test_the_command_replaces_an_old_page_and_leaves_nothing_else(tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "index.html").write_text("old", encoding="utf-8")
    results = sample.write(tmp_path / "r.jsonl", sample.rows(3))
    subprocess.run([sys.executable, str(PROGRAM), str(results), "-o", str(folder)], check=True)
    assert [file.name for file in folder.iterdir()] == ["index.html"]
    assert (folder / "index.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
