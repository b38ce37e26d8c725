"""The judge of ci/faults: it notices each kind of wrong that a run under a fault can show."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "faults"))
from judge import is_named, judge, problems_of_files  # noqa: E402
from points import REASONS, SOURCE, Point, points_of  # noqa: E402
from sandbox import Ran, Sandbox, adopt_orphans  # noqa: E402
from scenes import Scene, all_scenes  # noqa: E402

WRITE = Point("p0|write|1000|1", "/out/results.jsonl")
SCENE = Scene("fake", (("run",),), lambda folder, run: None)
NAMED = "lockstep: writing out: No space left on device (free space there, or name another place)"


def ran(folder: Path, code: int | None, errors: str = "", status: str = "") -> Ran:
    for name in ("tmp", "out"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if status:
        row = {"kind": "case", "case": "one", "status": status, "failure": {"message": errors}}
        (folder / "out" / "results.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    return Ran([code], [""], [errors], ["p0|write|1000|1|x"], [], folder)


@pytest.fixture(name="clean")
def clean_run(tmp_path):
    return ran(tmp_path / "clean", 0, "", "PASS")


def test_a_named_refusal_is_right(tmp_path, clean):
    assert judge(SCENE, WRITE, ran(tmp_path / "a", 3, NAMED, "MISSING"), clean) == ("refused", [])


def test_a_run_that_nothing_disturbs_is_right(tmp_path, clean):
    assert judge(SCENE, WRITE, ran(tmp_path / "a", 0, "", "PASS"), clean) == ("tolerated", [])


@pytest.mark.parametrize(
    ("code", "errors", "status", "expected"),
    [
        (None, NAMED, "", "no end within"),
        (-6, NAMED, "", "exit code -6"),
        (2, NAMED, "", "exit code 2"),
        (3, "lockstep: std::bad_alloc", "", "no message names"),
        (3, "lockstep: writing out: No space left on device", "", "no message names"),
        (1, NAMED, "PASS", "exit code 1 without an unexpected result"),
        (1, "wrong value", "FAIL", "no failure names"),
        (0, "", "", "exit code 0"),
    ],
)
def test_a_wrong_end_is_noticed(tmp_path, clean, code, errors, status, expected):
    _kind, problems = judge(SCENE, WRITE, ran(tmp_path / "a", code, errors, status), clean)
    assert any(expected in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("out/results.jsonl", '{"kind":"run"}\n{"kind":'),
        ("out/junit.xml", "<testsuites><testsuite>"),
        ("out/page/index.html", "<html><body>"),
        ("out/all.safetensors", "\x02\0\0\0\0\0\0\0{"),
        ("out/results.jsonl.12.part", ""),
        ("out/files/case-1/.saved.saving/index.json", "{}"),
        ("tmp/lockstep-run-abc/x", ""),
    ],
)
def test_files_that_are_not_whole_are_noticed(tmp_path, name, content):
    (tmp_path / "tmp").mkdir()
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert problems_of_files(tmp_path)


def test_a_process_that_remains_is_noticed(tmp_path):
    adopt_orphans()
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nsleep 60 &\n", encoding="utf-8")
    program.chmod(0o755)
    box = Sandbox(SCENE, program, Path("/nonexistent"))
    left = box.run(tmp_path / "run").left
    box.close()
    assert left == ["process sleep"]


def test_memory_is_named_by_its_own_words():
    point = Point("p0|new|1000|1", "")
    assert is_named("lockstep: out of memory: no allocation (end other programs)", point)
    assert not is_named("lockstep: std::bad_alloc (end other programs)", point)


def test_points_are_calls_without_duplicates():
    lines = ["p0|write|1|1|/x/out", "p0|write|1|1|/x/out", "p0.1|fork|2|1|"]
    found = points_of(lines, Path("/x"), True)
    assert [(point.call, point.short, point.target) for point in found] == [
        ("write", False, "/out"), ("write", True, "/out"), ("fork", False, ""),
    ]  # fmt: skip


def test_every_call_that_the_library_interposes_has_an_errno():
    text = SOURCE.read_text(encoding="utf-8")
    for call, reason in REASONS.items():
        assert reason in errno.errorcode
        assert f'"{call}"' in text or f", {call}, " in text or f" {call}(" in text, call


def test_scenes_have_names_of_their_own():
    names = [scene.name for scene in all_scenes()]
    assert len(names) == len(set(names)) and {"run", "list", "report", "compare"} <= set(names)
