"""The contract of the command line that a user's CI relies on: exit codes, remaining files, messages.

LOCKSTEP_PROGRAM names the program (build/bin/lockstep of this repository when unset).
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections import Counter
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("LOCKSTEP_PROGRAM", ROOT / "build" / "bin" / "lockstep"))

GOOD = """\
scenario: {name}
summary: A sum over the ranks.
ranks: {{world_size: [2]}}
device: [cpu]
steps:
  - let: {{x: "full([4], rank + 1)"}}
  - all_reduce: {{tensor: x, op: sum}}
  - expect_equal: [x, {expected}]
"""


def lockstep(*arguments: object, timeout: float = 120, cwd: Path | None = None) -> subprocess.CompletedProcess:
    words = [word if isinstance(word, bytes) else str(word) for word in arguments]
    return subprocess.run(
        [str(PROGRAM), *words], capture_output=True, text=True, errors="replace", check=False, timeout=timeout, cwd=cwd
    )


def scenario(folder: Path, name: str, expected: str = "3") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(GOOD.format(name=name, expected=expected), encoding="utf-8")
    return file


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_version_and_help():
    version = lockstep("--version")
    assert version.returncode == 0 and version.stdout.strip()
    for command in "run list explain plan validate schema report compare bench defects kill-matrix explain-hang doctor checkpoint".split():
        shown = lockstep(command, "--help")
        assert shown.returncode == 0, command
        assert f"lockstep {command}" in shown.stdout, command


def test_a_case_that_cannot_be_right_is_refused_before_it_runs(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "scenario: wrong\nsummary: A path of no module.\nranks: {world_size: [2]}\nsteps:\n"
        '  - {model: "Sequential(Linear(2, 2), ReLU())", as: m}\n'
        "  - fully_shard: [m.0, m.2]\n  - expect: m.0.wieght != none\n",
        encoding="utf-8",
    )
    for command in ("validate", "run"):
        refused = lockstep(command, file)
        said = refused.stdout + refused.stderr
        assert refused.returncode == 2, said
        assert "wrong.yaml:6:24: the path `m.2` matches no module" in said
        assert "wrong.yaml:7:17: a module Linear has no `wieght`; did you mean `weight`?" in said
        assert "PASS" not in said and "FAIL" not in said


def test_a_case_without_a_check_is_refused_before_it_runs(tmp_path):
    file = tmp_path / "silent.yaml"
    file.write_text(
        "scenario: silent\nsummary: Checks in one case alone.\nranks: {world_size: [1]}\nmatrix: {kind: [a, b]}\nsteps:\n"
        "  - {expect: rank < 2, when: kind == 'a'}\n",
        encoding="utf-8",
    )
    refused = lockstep("validate", file)
    assert refused.returncode == 2 and "no step checks anything in the case [kind=b" in refused.stdout
    assert lockstep("run", file, "--case", "kind=a").returncode == 0


def test_a_scenario_that_holds_exits_with_0_and_leaves_its_results(tmp_path):
    results, junit = tmp_path / "out" / "results.jsonl", tmp_path / "out" / "junit.xml"
    ran = lockstep("run", scenario(tmp_path, "sums"), "--results", results, "--junit", junit)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    kinds = [row["kind"] for row in rows(results)]
    assert kinds == ["run", "case", "summary"]
    run, case, summary = rows(results)
    assert run["schema"] == 1 and run["version"] and run["build"] and run["machine"]
    assert case["status"] == "PASS" and case["world_size"] == 2 and case["case"].startswith("world_size=2,")
    assert case["evidence"]["comparisons"] == 2 and case["evidence"]["same_bits"] == 2  # one per rank
    assert [(row["operation"], row["count"]) for row in case["collectives"] if row["family"] == "user"] == [("all_reduce", 1)]
    assert summary["exit_code"] == 0 and summary["counts"]["PASS"] == 1
    assert len(ElementTree.parse(junit).getroot().findall(".//testcase")) == 1


def test_a_scenario_that_does_not_hold_exits_with_1_and_says_where(tmp_path):
    results, junit = tmp_path / "results.jsonl", tmp_path / "junit.xml"
    ran = lockstep("run", scenario(tmp_path, "wrong", expected="4"), "--results", results, "--junit", junit)
    assert ran.returncode == 1
    case = next(row for row in rows(results) if row["kind"] == "case")
    assert case["status"] == "FAIL"
    assert case["failure"]["check"] == "expect_equal" and case["failure"]["line"] == 8
    assert case["failure"]["file"].endswith("wrong.yaml") and case["failure"]["message"]
    assert case["repro"].startswith("lockstep run ")
    assert len(ElementTree.parse(junit).getroot().findall(".//testcase/failure")) == 1


def test_a_scenario_error_exits_with_2_and_points_at_the_word(tmp_path):
    file = scenario(tmp_path, "typo")
    file.write_text(file.read_text(encoding="utf-8").replace("all_reduce", "all_redcue"), encoding="utf-8")
    for command in ("validate", "run"):
        refused = lockstep(command, file)
        said = refused.stdout + refused.stderr
        assert refused.returncode == 2, said
        assert "typo.yaml:7:" in said and "all_redcue" in said and "all_reduce" in said


def test_wrong_usage_exits_with_2():
    assert lockstep("run", "--no-such-option").returncode == 2
    assert lockstep("no-such-command").returncode == 2
    assert lockstep("run", "--shard", "3/2").returncode == 2
    assert lockstep("run", "--tag", "no_such_tag").returncode == 2


def test_nothing_executed_exits_with_4(tmp_path):
    file, results = scenario(tmp_path, "left_out"), tmp_path / "results.jsonl"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("steps:", "skip: [{when: world_size == 2, reason: needs three}]\nsteps:"), encoding="utf-8")
    assert lockstep("run", file, "--results", results).returncode == 4
    case = next(row for row in rows(results) if row["kind"] == "case")
    assert case["status"] == "SKIP" and case["reason"] == "needs three"


CHECKPOINTS = """scenario: saved
summary: A checkpoint is saved after each of two steps.
ranks: {world_size: [2]}
steps:
  - seed: 42
  - model: Linear(3, 2)
    as: model
  - copy: model
    as: before
  - fully_shard: model
  - optimizer: {type: SGD, model: model, lr: 0.1}
    as: optimizer
  - repeat: {times: 2, index: i}
    steps:
      - forward: {loss: "sum(model(ones(4, 3)))"}
      - backward: loss
      - step: optimizer
      - save_checkpoint: {folder: "step_${i}", state: {model: model, optimizer: optimizer, step: i}}
  - expect_different: [model.bias, before.bias]
"""


def test_files_of_a_case_are_kept_and_its_checkpoints_can_be_read(tmp_path):
    scenario, kept = tmp_path / "saved.yaml", tmp_path / "kept"
    scenario.write_text(CHECKPOINTS)
    assert lockstep("run", scenario, "--files", kept).returncode == 0
    first, second = kept / "case-1" / "step_0", kept / "case-1" / "step_1"
    shown = lockstep("checkpoint", "show", first)
    assert shown.returncode == 0 and "model.weight" in shown.stdout
    assert lockstep("checkpoint", "verify", second).returncode == 0
    assert lockstep("checkpoint", "diff", first, first).returncode == 0
    different = lockstep("checkpoint", "diff", first, second)
    assert different.returncode == 1 and "model.bias" in different.stdout
    assert lockstep("checkpoint", "export", second, "-o", tmp_path / "full.safetensors").returncode == 0
    assert (tmp_path / "full.safetensors").read_bytes().count(b"model.weight") >= 1
    for file in second.glob("*.safetensors"):
        with file.open("r+b") as opened:
            opened.seek(-1, 2)
            last = opened.read(1)
            opened.seek(-1, 2)
            opened.write(bytes([last[0] ^ 1]))
    damaged = lockstep("checkpoint", "verify", second)
    assert damaged.returncode == 1 and "model." in damaged.stdout + damaged.stderr
    again = lockstep("run", scenario, "--files", kept)
    assert again.returncode == 2 and "not an empty folder" in again.stderr


def test_list_and_schema_give_json():
    listed = lockstep("list", "--json")
    assert listed.returncode == 0 and "replicate/single_module" in listed.stdout
    for line in listed.stdout.splitlines() if not listed.stdout.lstrip().startswith("[") else [listed.stdout]:
        json.loads(line)
    schema = lockstep("schema")
    assert schema.returncode == 0
    assert "draft-07" in json.loads(schema.stdout)["$schema"]


def test_compare_exits_with_1_when_something_got_worse(tmp_path):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    lockstep("run", scenario(tmp_path, "same"), "--results", good)
    assert lockstep("compare", good, good).returncode == 0
    bad.write_text(good.read_text(encoding="utf-8").replace('"status":"PASS"', '"status":"FAIL"'), encoding="utf-8")
    assert bad.read_text(encoding="utf-8") != good.read_text(encoding="utf-8")
    worse = lockstep("compare", good, bad)
    assert worse.returncode == 1 and "same" in worse.stdout


def test_compare_refuses_an_old_file_of_a_run_that_was_cut_and_another_schema(tmp_path):
    whole, cut, other = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl", tmp_path / "other.jsonl"
    lockstep("run", scenario(tmp_path, "same"), "--results", whole)
    lines = whole.read_text(encoding="utf-8").splitlines(keepends=True)
    cut.write_text("".join(lines[:-1]), encoding="utf-8")
    refused = lockstep("compare", cut, whole)
    assert refused.returncode == 2 and "cut.jsonl has no summary" in refused.stderr
    assert lockstep("compare", cut, whole, "--allow-cut").returncode == 0
    other.write_text("".join(lines).replace('"schema":1', '"schema":2'), encoding="utf-8")
    for command in (("compare", other, whole), ("report", other, "-o", tmp_path / "page"), ("run", "--failed", other)):
        refused = lockstep(*command)
        assert refused.returncode == 2 and "schema 2" in refused.stderr, command


def test_a_scenario_of_ones_own_uses_routines_and_files_beside_it(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "twice.yaml").write_text(
        "routine: twice\nsummary: Doubles.\nparameters: {x: tensor}\ngives: [y]\nsteps:\n  - let: {y: x + x}\n", encoding="utf-8"
    )
    (tmp_path / "figures.json").write_text("[2, 2, 2]", encoding="utf-8")
    steps = """\
steps:
  - use: twice
    with: {x: ones(3)}
    as: {y: b}
  - read: /figures.json
    as: figures
  - expect_equal: [b, "tensor(figures, dtype=float32)"]
"""
    (tmp_path / "own.yaml").write_text("scenario: own\nsummary: s\nranks: {world_size: [2]}\n" + steps, encoding="utf-8")
    ran = lockstep("run", tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (tmp_path / "figures.json").unlink()
    lost = lockstep("run", tmp_path)
    assert lost.returncode == 1
    assert f"there is no {tmp_path}/figures.json and " in lost.stdout  # every searched place
    missing = lockstep("run", "owm.yaml")
    assert missing.returncode == 2 and f"no file {Path.cwd()}/owm.yaml" in missing.stderr


def test_what_failed_in_a_file_of_ones_own_runs_again_by_failed_alone(tmp_path):
    results = tmp_path / "r.jsonl"
    own = tmp_path / "own.yaml"
    own.write_text(
        "scenario: own\nsummary: Fails.\nranks: {world_size: [2]}\nsteps:\n  - expect_equal: [ones(2), ones(2) + rank]\n",
        encoding="utf-8",
    )
    first = lockstep("run", own, "--results", results, "--no-order-check", "--deadline", "7", "--timeout", "50")
    assert first.returncode == 1
    assert "--no-order-check --deadline 7 --timeout 50" in first.stdout  # the rerun command has every option
    again = lockstep("run", "--failed", results)
    assert again.returncode == 1 and "FAIL" in again.stdout and "own" in again.stdout


TRAINED = """\
scenario: trained
summary: Three steps on two ranks, and one value that a parameter of the scenario moves on rank 1 before the second.
ranks: {world_size: [2], launch: [process, thread]}
parameters: {bump: 0.0}
steps:
  - seed: 1
  - model: Sequential(Linear(4, 5), ReLU(), Linear(5, 3))
    as: net
  - replicate: net
  - optimizer: {type: SGD, model: net, lr: 0.1}
    as: optimizer
  - seed: 2 + rank
  - repeat: {times: 3, index: i}
    steps:
      - if: i == 1 and rank == 1
        steps:
          - assign: {to: net.2.bias, value: "net.2.bias + bump * tensor([0, 1, 0])"}
      - zero_grad: optimizer
      - forward: {loss: "mean(net(randn(6, 4)) * net(ones(6, 4)))"}
      - backward: loss
      - step: optimizer
  - expect: all([p.grad != none for p in parameters(net)])
"""


def test_compare_trace_names_the_first_value_that_differs(tmp_path):
    file = tmp_path / "trained.yaml"
    file.write_text(TRAINED, encoding="utf-8")

    def traced(name: str, *more: object) -> Path:
        ran = lockstep("run", file, "--trace-bits", tmp_path / name, *more)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return tmp_path / name

    plain = traced("plain")
    # The same bits again, as threads, and on the simulated device.
    for name, more in {"again": (), "threads": ("--launch", "thread"), "sim": ("--device", "sim")}.items():
        same = lockstep("compare", "--trace", plain, traced(name, *more))
        assert same.returncode == 0 and "0 cases differ" in same.stdout, name
    moved = lockstep("compare", "--trace", plain, traced("moved", "--set", "bump=0.25"))
    assert moved.returncode == 1
    assert "rank 1, record 23: iteration 1, forward of net.2, float32 (6, 3)" in moved.stdout
    assert moved.stdout.count("differs ") == 2  # each launch
    # A difference in a gradient alone: the hash of one record is another.
    victim = next(iter(sorted((tmp_path / "again").glob("case-1.*rank-0.jsonl"))))
    lines = victim.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if '"gradient"' in line and '"net.0.weight"' in line)
    lines[at] = lines[at][:-3] + ('0"}' if lines[at][-3] != "0" else '1"}')
    victim.write_text("\n".join(lines) + "\n", encoding="utf-8")
    told = json.loads(lockstep("compare", "--trace", plain, tmp_path / "again", "--json").stdout)
    (difference,) = told["differences"]
    assert (difference["rank"], difference["record"], difference["before"]["what"]) == (0, at - 1, "gradient")
    assert difference["before"]["path"] == "net.0.weight" and told["exit_code"] == 1
    assert lockstep("compare", "--trace", plain, tmp_path / "nothing").returncode == 2


@pytest.mark.parametrize("launch", ["process", "thread"])
def test_a_case_that_hangs_is_ended_by_its_timeout(tmp_path, launch):
    """One rank waits for a peer that never arrives: HANG, long before the limit of a CI."""
    file = tmp_path / "stuck.yaml"
    file.write_text(
        "scenario: stuck\nsummary: Rank 1 sleeps for longer than the case may take.\nranks: {world_size: [2]}\ndevice: [cpu]\n"
        "steps:\n  - delay: {ms: 60000, where: host}\n    when: rank == 1\n  - barrier: all_ranks\n  - expect: rank < 2\n",
        encoding="utf-8",
    )
    results = tmp_path / "results.jsonl"
    ran = lockstep("run", file, "--launch", launch, "--timeout", 2, "--results", results, timeout=60)
    assert ran.returncode == 1
    assert next(row for row in rows(results) if row["kind"] == "case")["status"] == "HANG"


def test_report_writes_one_page(tmp_path):
    results = tmp_path / "results.jsonl"
    lockstep("run", scenario(tmp_path, "paged"), "--results", results)
    made = lockstep("report", results, "-o", tmp_path / "page")
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "paged" in page and page.lstrip().lower().startswith("<!doctype html>")


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


def refused(result: subprocess.CompletedProcess, place: str) -> str:
    said = result.stdout + result.stderr
    assert result.returncode == 2, said
    assert place in said, said
    return said


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
