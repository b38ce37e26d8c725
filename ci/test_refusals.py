"""What a careless or hostile user gives the program is refused, with its name and a remedy, and nothing is lost."""

from __future__ import annotations

import json
import os
import stat

import pytest
from program import lockstep, refused, rows, scenario

COSTLY = """\
scenario: {name}
summary: Ten thousand cases, each with a rule that costs much.
ranks: {{world_size: [1]}}
device: [cpu]
matrix: {{a: {digits}, b: {digits}, c: {digits}, d: {digits}}}
skip:
  - {{when: "sum([i * a + b + c + d for i in range(10000)]) < 0", reason: never}}
steps:
  - expect: rank + 1 == 1
"""

PLANNED = """\
scenario: {name}
summary: {summary}
ranks: {{world_size: [2]}}
device: [cpu]
steps:
  - seed: 1
  - {{model: "Linear(2, 2)", as: model}}
  - replicate: model
{steps}
  - forward: {{loss: "sum(model(ones(1, 2)))"}}
  - backward: loss
  - expect: rank < 2
"""


@pytest.mark.parametrize("command", ["validate", "list", "explain", "run"])
def test_what_is_no_regular_file_is_refused_at_once_by_name(tmp_path, command):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"a" * 2_000_000)
    folder = tmp_path / "folder.yaml"
    (folder / "none").mkdir(parents=True)
    assert "is a pipe, not a regular file" in refused(lockstep(command, pipe, timeout=20), "pipe.yaml")
    assert "is a device, not a regular file" in refused(lockstep(command, "/dev/zero", timeout=20), "/dev/zero")
    assert "at most 1048576 are allowed" in refused(lockstep(command, huge, timeout=20), "huge.yaml")
    refused(lockstep(command, folder, timeout=20), "folder.yaml")


@pytest.mark.parametrize("command", ["validate", "list", "run"])
def test_files_of_a_folder_that_cannot_be_read_are_refused_by_name(tmp_path, command):
    folder = tmp_path / "folder"
    folder.mkdir()
    scenario(folder, "good")
    (folder / ".#good.yaml").symlink_to("me@here.1")  # the mark of Emacs
    assert lockstep(command, folder).returncode == 0
    (folder / "gone.yaml").symlink_to(tmp_path / "missing.yaml")
    said = refused(lockstep(command, folder), "gone.yaml")
    assert "PASS" not in said
    (folder / "gone.yaml").unlink()
    os.mkfifo(folder / "pipe.yaml")
    assert "is a pipe, not a regular file" in refused(lockstep(command, folder, timeout=20), "pipe.yaml")


def test_an_unknown_protection_of_sim_is_refused_before_a_case_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_PROTECT_SIM", "abc")
    assert "PASS" not in refused(lockstep("run", scenario(tmp_path, "good")), "LOCKSTEP_PROTECT_SIM=abc")


def test_results_that_are_no_regular_file_are_refused_by_name(tmp_path):
    good, results, pipe = scenario(tmp_path, "good"), tmp_path / "results.jsonl", tmp_path / "pipe"
    os.mkfifo(pipe)
    assert lockstep("run", good, "--results", results).returncode == 0
    for arguments in (
        ("report", pipe, "-o", tmp_path / "page"),
        ("compare", results, pipe),
        ("compare", "/dev/zero", results),
        ("run", good, "--failed", pipe),
    ):
        said = refused(lockstep(*arguments, timeout=20), "not a regular file")
        assert "give a results file" in said


@pytest.mark.parametrize("command", ["validate", "list", "explain", "run"])
def test_rules_that_cost_too_much_end_at_their_line(tmp_path, command):
    file = tmp_path / "costly.yaml"
    file.write_text(COSTLY.format(name="costly", digits=list(range(10))), encoding="utf-8")
    said = refused(lockstep(command, file, timeout=60), "costly.yaml:7:")
    assert "may take 5 s" in said


@pytest.mark.parametrize("command", ["list", "explain", "run"])
def test_lists_that_grow_before_launch_end_at_their_line(tmp_path, command):
    file = tmp_path / "lists.yaml"
    file.write_text(
        scenario(tmp_path, "lists").read_text(encoding="utf-8")
        + 'skip:\n  - {when: "len([range(10000) for i in range(10000)]) == 1", reason: never}\n',
        encoding="utf-8",
    )
    said = refused(lockstep(command, file, timeout=60), "lists.yaml:10:")
    assert "of the 256 MiB" in said


@pytest.mark.parametrize(
    "steps",
    [
        '  - repeat: 100000000\n    steps:\n      - forward: {loss: "sum(model(ones(1, 2)))"}\n      - backward: loss',
        '  - let: {x: "sum([sum([sum(range(10000)) for j in range(10000)]) for i in range(10000)])"}',
    ],
    ids=["many_steps", "one_step"],
)
def test_explain_ends_a_plan_that_takes_too_long_at_its_line(tmp_path, steps):
    file = tmp_path / "planned.yaml"
    file.write_text(PLANNED.format(name="planned", summary="A long plan.", steps=steps), encoding="utf-8")
    said = refused(lockstep("explain", file, timeout=60), "planned.yaml:")
    assert "the plan of a case may take 5 s" in said


def test_ten_thousand_errors_in_one_line_are_told_in_little_memory(tmp_path):
    file = tmp_path / "errors.yaml"
    file.write_text("{" + ",".join(f"unknown_key_number_{i}: 1" for i in range(9900)) + "}\n", encoding="utf-8")
    said = lockstep("validate", file, timeout=60)
    assert said.returncode == 2
    assert len(said.stdout) < 5_000_000


def test_memory_and_output_are_set_by_the_command(tmp_path):
    file = tmp_path / "large.yaml"
    file.write_text(
        "scenario: large\nsummary: s\nranks: {world_size: [1]}\ndevice: [cpu]\nsteps:\n  - let: {x: zeros(2097152)}\n"
        "  - write: {file: x.safetensors, value: \"{'x': x}\"}\n  - expect: rank + 1 == 1\n",
        encoding="utf-8",
    )
    assert lockstep("run", file).returncode == 0
    for option, line, message in (("--memory-mb", 6, "raise it with `limits: {memory_mb"), ("--output-mb", 7, "--output-mb")):
        ran = lockstep("run", file, option, 4)
        assert ran.returncode == 1, ran.stdout
        assert f"large.yaml:{line}:" in ran.stdout and message in ran.stdout and f"{option} 4" in ran.stdout
    assert lockstep("run", file, "--memory-mb", 0).returncode == 2


OUTPUTS = ["--results", "--junit", "--report", "--timeline", "--trace-bits", "--files", "--schedule-files"]


@pytest.mark.parametrize("word", ["none", "No", "off", "-", ""])
def test_words_for_no_output_are_no_names_of_files(tmp_path, word):
    file = scenario(tmp_path, "good")
    for option in OUTPUTS:
        said = refused(lockstep("run", file, option, word, cwd=tmp_path), option)
        assert "leave the option out" in said
    assert [entry.name for entry in tmp_path.iterdir()] == ["good.yaml"]
    if word == "none":
        assert lockstep("run", file, "--results", "./none", cwd=tmp_path).returncode == 0
        assert rows(tmp_path / "none")[-1]["kind"] == "summary"


CARELESS = {
    "an empty name": (["", "FILE"], "it names nothing"),
    "an empty case": (["FILE", "--case", ""], "it names nothing"),
    "a case of commas": (["FILE", "--case", ",,"], "it names nothing"),
    "an empty defect": (["FILE", "--defect", ""], "it names nothing"),
    "an empty schedule": (["FILE", "--schedule", ""], "it names nothing"),
    "an empty tag": (["FILE", "--tag", ""], "it names nothing"),
    "no number of seconds": (["FILE", "--timeout", "nan"], "no time from 0.001 to 1e9 seconds"),
    "too many seconds": (["FILE", "--deadline", "1e400"], "no time from 0.001 to 1e9 seconds"),
    "too few seconds": (["FILE", "--run-timeout", "1e-9"], "no time from 0.001 to 1e9 seconds"),
    "a large shard": (["FILE", "--shard", "1/99999999999"], "names no shard"),
    "a shard after a space": (["FILE", "--shard", " 1/2"], "names no shard"),
    "no ranks": (["FILE", "--world-size", "0"], "not in range 1 to 1024"),
    "many ranks": (["FILE", "--world-size", "1000000000"], "not in range 1 to 1024"),
    "two devices": (["FILE", "--device", "cpu", "--device", "sim"], "--device"),
    "a parameter twice": (["FILE", "--set", "a=1", "--set", "a=2"], "--set gives `a` twice"),
    "a predefined name": (["FILE", "--set", "rank=1"], "no chosen scenario has the parameter `rank`"),
    "a schedule that is a folder": (["FILE", "--schedule", "replay:FOLDER"], "is a folder, not a regular file"),
}


@pytest.mark.parametrize("arguments, message", CARELESS.values(), ids=CARELESS)
def test_careless_arguments_are_refused_before_a_case_runs(tmp_path, arguments, message):
    names = {"FILE": str(scenario(tmp_path, "good")), "replay:FOLDER": f"replay:{tmp_path}"}
    said = refused(lockstep("run", *[names.get(word, word) for word in arguments]), message)
    assert "PASS" not in said and len(said) < 3000


@pytest.mark.parametrize("option", ["--results", "--junit"])
def test_outputs_are_written_to_files_and_leave_all_else_in_place(tmp_path, option):
    file, pipe, folder = scenario(tmp_path, "good"), tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    assert "PASS" not in refused(lockstep("run", file, option, pipe, timeout=20), "pipe")
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert "PASS" not in refused(lockstep("run", file, option, folder), "folder")
    assert folder.is_dir() and not list(folder.iterdir())
    for path in (tmp_path / ("a" * 300), tmp_path / "/".join(["a" * 200] * 30), file / "x", "/proc/x"):
        ran = lockstep("run", file, option, path)
        assert ran.returncode in (2, 3) and "(give a path" in ran.stderr, ran.stderr
    # The target of a link is replaced, not the link.
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("", encoding="utf-8")
    link.symlink_to(target)
    assert lockstep("run", file, option, link).returncode == 0
    assert link.is_symlink() and target.stat().st_size > 0
    device = tmp_path / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
    except PermissionError:
        return
    assert lockstep("run", file, option, device).returncode == 0
    assert stat.S_ISCHR(device.lstat().st_mode)


def test_names_that_are_not_utf_8_leave_results_that_are(tmp_path):
    file = scenario(tmp_path, "good")
    results = os.fsencode(tmp_path) + b"/bad\xff\nname.jsonl"
    assert lockstep("run", file, "--results", results).returncode == 0
    with open(results, encoding="utf-8") as opened:
        assert [json.loads(line)["kind"] for line in opened] == ["run", "case", "summary"]
    assert lockstep("compare", results, results).returncode == 0


def test_a_folder_for_files_is_made_before_a_case_runs(tmp_path):
    file = scenario(tmp_path, "good")
    assert "PASS" not in refused(lockstep("run", file, "--files", file / "x"), "cannot make the folder")
    assert lockstep("run", file, "--files", tmp_path / "kept").returncode == 0
    assert (tmp_path / "kept").is_dir()
