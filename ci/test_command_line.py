"""The contract of the command line that a user's CI relies on: exit codes, remaining files, messages."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from program import PROGRAM, ROOT, lockstep, rows, scenario


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


def test_every_case_is_in_one_shard(tmp_path):
    files = []
    for name, turns in (("few", [1, 2]), ("more", [1, 2, 3, 4, 5])):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(
            f"scenario: {name}\nsummary: Cases.\nranks: {{world_size: [1]}}\nmatrix: {{turn: {turns}}}\nsteps:\n  - expect: rank < turn\n",
            encoding="utf-8",
        )

    def cases(*options: object) -> list[tuple[str, str]]:
        listed = json.loads(lockstep("list", *files, "--json", *options).stdout)
        return [(one["scenario"], case["case"]) for one in listed for case in one["cases"]]

    every = sorted(cases("--shard", "1/1"))
    assert len(every) == 7
    for num in (2, 3, 4, 7, 9):
        shards = [cases("--shard", f"{shard + 1}/{num}") for shard in range(num)]
        assert sorted(sum(shards, [])) == every, num
        assert max(map(len, shards)) - min(map(len, shards)) <= 1, num


def test_cases_that_run_when_another_fails_are_judged(tmp_path):
    """With --fail-fast, the first result that is unexpected starts no other case, and those that run keep their results."""
    file, results = tmp_path / "beside.yaml", tmp_path / "results.jsonl"
    file.write_text(
        "scenario: beside\nsummary: The first case fails at once, and the next ones end later.\n"
        "ranks: {world_size: [1], launch: [process]}\ndevice: [cpu]\nmatrix: {turn: [0, 1, 2, 3]}\nsteps:\n"
        "  - delay: {ms: 3000, where: host}\n    when: turn > 0\n  - expect: rank == 0 and turn % 2 == 1\n",
        encoding="utf-8",
    )
    ran = lockstep("run", file, "--fail-fast", "--jobs", 3, "--results", results)
    assert ran.returncode == 1, ran.stdout
    found = {row["params"]["turn"]: row for row in rows(results) if row["kind"] == "case"}
    assert [found[turn]["status"] for turn in range(4)] == ["FAIL", "PASS", "FAIL", "MISSING"]
    assert found[1]["evidence"]["conditions"] == 1 and found[2]["failure"]["check"] == "expect"
    assert found[3]["reason"] == "the run was stopped by an earlier case"


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


def test_a_temporary_folder_may_have_any_name(tmp_path, monkeypatch):
    folder, kept, file = tmp_path / " two\nlines", tmp_path / "kept", tmp_path / "files.yaml"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    file.write_text(
        "scenario: files\nsummary: A rank writes a file.\nranks: {world_size: [1], launch: [process, thread]}\ndevice: [cpu]\n"
        "steps:\n  - write: {file: x.safetensors, value: \"{'x': ones(4)}\"}\n  - expect: rank + 1 == 1\n",
        encoding="utf-8",
    )
    ran = lockstep("run", file, "--files", kept)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    written = sorted(str(each.relative_to(kept)) for each in kept.rglob("*.safetensors"))
    assert written == ["case-1/x.safetensors", "case-2/x.safetensors"]
    assert not list(folder.iterdir())


def test_the_command_that_reruns_a_failure_takes_files_of_any_name(tmp_path):
    results, file = tmp_path / "results.jsonl", "-it's\nodd.yaml"
    scenario(tmp_path, "wrong", expected="4").rename(tmp_path / file)
    ran = lockstep("run", "--results", results, "--", file, cwd=tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    again = next(row for row in rows(results) if row["kind"] == "case")["repro"]
    assert again in ran.stdout
    program = 'lockstep() { "$0" "$@"; }; '
    reran = subprocess.run(
        ["bash", "-c", program + again, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert reran.returncode == 1 and "FAIL             1" in reran.stdout, reran.stdout + reran.stderr


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


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_scenarios_of_two_folders_use_their_own_routines_in_one_command(tmp_path, order):
    for name, value in (("one", 1), ("two", 2)):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "lib" / "inner.yaml").write_text(
            f"routine: inner\nsummary: s\ngives: [y]\nsteps:\n  - let: {{y: 'full([2], {value}.0)'}}\n", encoding="utf-8"
        )
        outer = "routine: outer\nsummary: s\ngives: [y]\nsteps:\n  - use: inner\n    as: {y: y}\n"
        (tmp_path / name / "lib" / "outer.yaml").write_text(outer, encoding="utf-8")
        steps = f"steps:\n  - use: outer\n    as: {{y: y}}\n  - expect_equal: [y, {value}]\n"
        (tmp_path / name / f"of_{name}.yaml").write_text(
            f"scenario: of_{name}\nsummary: s\nranks: {{world_size: [2]}}\n" + steps, encoding="utf-8"
        )
    ran = lockstep("run", *(tmp_path / name for name in order))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "of_one" in ran.stdout and "of_two" in ran.stdout


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
    refused = lockstep("run", "--failed", results)
    assert refused.returncode == 2 and "failed with --deadline in " in refused.stderr  # without it, the case could pass
    again = lockstep("run", "--failed", results, "--deadline", "7", "--timeout", "50")
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


def test_compare_trace_sees_every_stage(tmp_path):
    file = tmp_path / "staged.yaml"
    file.write_text(
        "scenario: staged\nsummary: Two stages, and one value that a parameter of the scenario moves in the second.\n"
        "ranks: {world_size: [1]}\nparameters: {bump: 0.0}\nstages:\n"
        + "".join(
            f"  - name: {name}\n    steps:\n      - seed: 1\n      - model: Linear(2, 2)\n        as: net\n"
            f"      - forward: {{y: 'net(full([1, 2], 1 + {moved}))'}}\n      - expect: y.numel == 2\n"
            for name, moved in (("first", 0), ("second", "bump"))
        ),
        encoding="utf-8",
    )
    for name, bump in (("plain", 0.0), ("again", 0.0), ("moved", 0.5)):
        ran = lockstep("run", file, "--trace-bits", tmp_path / name, "--set", f"bump={bump}")
        assert ran.returncode == 0, ran.stdout + ran.stderr
    same = lockstep("compare", "--trace", tmp_path / "plain", tmp_path / "again")
    assert same.returncode == 0 and "1 case compared, 2 records; 0 cases differ" in same.stdout, same.stdout
    told = json.loads(lockstep("compare", "--trace", tmp_path / "plain", tmp_path / "moved", "--json").stdout)
    assert told["exit_code"] == 1 and [one["stage"] for one in told["differences"]] == ["second"], told


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


LATE = """\
scenario: {name}
summary: A rank comes too late to a barrier.
ranks: {{world_size: [2]}}
device: [cpu]
{line}steps:
  - delay: {{ms: 1500, where: host}}
    when: rank == 1
  - barrier: all_ranks
    when: rank == 0
    raises: "did not arrive within {seconds} s"
  - expect: rank < 2
"""


def test_the_deadline_of_a_scenario_comes_before_that_of_the_command(tmp_path):
    files = []
    for name, line, seconds in ("sooner", "deadline: 0.3\n", 0.3), ("later", "deadline: 0.7\n", 0.7), ("other", "", 0.5):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(LATE.format(name=name, line=line, seconds=seconds), encoding="utf-8")
    ran = lockstep("run", *files, "--deadline", 0.5)
    assert ran.returncode == 0, ran.stdout + ran.stderr


RACE = """\
scenario: race
summary: Nothing orders the product after the sum. Without a switch, the product comes first.
ranks: {world_size: [2], launch: [thread]}
device: [sim]
steps:
  - let: {x: "full([4], rank + 1)"}
  - all_reduce: {tensor: x, op: sum, async: true}
    as: work
  - let: {y: "mul_(x, 10)"}
    when: rank == 0
  - wait: work
  - expect_equal: [x, 12]
"""


@pytest.mark.parametrize("policy", ["random", "pct:2"])
def test_a_schedule_that_fails_is_found_again_by_its_seed_and_by_its_file(tmp_path, policy):
    file, files = tmp_path / "race.yaml", tmp_path / "files"
    file.write_text(RACE, encoding="utf-8")
    separator = "," if ":" in policy else ":"

    def found(*arguments: object) -> tuple[str, ...]:
        ran = lockstep("run", *arguments, "--schedule-files", files)
        assert ran.returncode == 1, ran.stdout + ran.stderr
        said = re.search(r"also schedule (.*) \(number \d+, (\d+ switch\w*)\) fails; after \d+ runs? it fails with (\d+: .*)", ran.stdout)
        assert said, ran.stdout  # no schedule without a switch fails
        return said.groups()

    name, num_switches, fewest = found(file, "--no-order-check", "--schedule", f"{policy}{separator}1", "--schedules", 50)
    assert found(file, "--no-order-check", "--schedule", name) == (name, num_switches, fewest)
    assert found("--schedule", f"replay:{files / 'schedule-1'}")[2] == fewest


@pytest.mark.parametrize("condition, refused", [("launch == 'process'", 0), ("device == 'sim'", 0), ("rank >= 0", 1)])
def test_a_program_that_some_placements_refuse_disagrees(tmp_path, monkeypatch, condition, refused):
    """Each program of fuzz calls this routine. A mesh of too many ranks is refused like any step that builds the program."""
    name = "scenarios/lib/alone_on_one_rank.yaml"
    (tmp_path / name).parent.mkdir(parents=True)
    text = (ROOT / name).read_text(encoding="utf-8")
    mesh = f'steps:\n  - mesh: {{shape: "[world_size + 1]", names: [all]}}\n    as: too_large\n    when: {condition}\n'
    (tmp_path / name).write_text(text.replace("steps:\n", mesh, 1), encoding="utf-8")
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    ran = lockstep("fuzz", "--program", 0, "--shrink", 0, "--output", tmp_path / "fuzz")
    assert ran.returncode == 1 and f", {refused} refused " in ran.stdout and f" {1 - refused} disagree" in ran.stdout, ran.stdout
    assert len(list(tmp_path.glob("fuzz/*"))) == 1 - refused


def test_fuzz_starts_no_program_after_its_time_and_fails_without_one():
    ran = lockstep("fuzz", "--seconds", 0.001, "--jobs", 1)
    assert ran.returncode == 1 and ran.stdout.startswith("seed 1: 0 programs in "), ran.stdout


def test_report_writes_one_page(tmp_path):
    results = tmp_path / "results.jsonl"
    lockstep("run", scenario(tmp_path, "paged"), "--results", results)
    made = lockstep("report", results, "-o", tmp_path / "page")
    assert made.returncode == 0, made.stderr
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "paged" in page and page.lstrip().lower().startswith("<!doctype html>")


def test_variables_of_kokkos_break_no_run(tmp_path, monkeypatch):
    # Kokkos 3 refuses arguments that differ from its variables.
    monkeypatch.setenv("KOKKOS_NUM_THREADS", "2")
    monkeypatch.setenv("KOKKOS_DISABLE_WARNINGS", "0")
    ran = lockstep("run", scenario(tmp_path, "sums"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
