"""Runs that are interrupted, starved or started badly: their remains, messages and exit codes.

LOCKSTEP_PROGRAM names the program (build/bin/lockstep of this repository when unset).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from program import PROGRAM, lockstep, rows, scenario

SLOW = """\
scenario: slow
summary: Every rank sleeps for a minute.
ranks: {world_size: [4]}
device: [cpu]
steps:
  - delay: {ms: 60000, where: host}
  - expect: rank >= 0
"""


@pytest.fixture(name="temporary")
def temporary_folder(tmp_path, monkeypatch):
    """TMPDIR of the program, one folder per test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def start(*arguments: object, **options: object) -> subprocess.Popen:
    return subprocess.Popen(
        [str(PROGRAM), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


def start_slow(folder: Path, results: Path, *options: object) -> subprocess.Popen:
    """A run with four sleeping ranks."""
    file = folder / "slow.yaml"
    file.write_text(SLOW, encoding="utf-8")
    ran = start("run", file, "--results", results, *options)
    deadline = time.monotonic() + 30
    while len(ranks_of(ran.pid)) < 4:
        assert time.monotonic() < deadline and ran.poll() is None, ran.communicate()[0]
        time.sleep(0.02)
    return ran


def ranks_of(launcher: int) -> list[int]:
    """The children of the process, except the guardian."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    if not children.exists():
        return []
    pids = [int(pid) for pid in children.read_text(encoding="ascii").split()]
    return [pid for pid in pids if "guard" not in name_of(pid)]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
    except OSError:
        return ""


def limited(**limits: int):
    """A function that sets RLIMIT_<name> of the child before the program starts."""

    def set_limits() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))

    return set_limits


# Standard streams


@pytest.mark.parametrize("how", ["closed", "full"])
def test_a_standard_output_that_cannot_be_written_is_an_error(tmp_path, how):
    file, results = scenario(tmp_path, "sums"), tmp_path / "results.jsonl"
    redirected = {"closed": ">&-", "full": ">/dev/full"}[how]
    ran = subprocess.run(
        ["bash", "-c", f'"$0" run "$1" --results "$2" {redirected}', PROGRAM, file, results],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 3 and "standard output could not be written" in ran.stderr
    assert [row["kind"] for row in rows(results)] == ["run", "case", "summary"]  # without lines of the console
    assert rows(results)[-1]["exit_code"] == 3


def test_all_streams_closed_leaves_whole_results(tmp_path):
    file, results = scenario(tmp_path, "sums"), tmp_path / "results.jsonl"
    subprocess.run(["bash", "-c", '"$0" run "$1" --results "$2" <&- >&- 2>&-', PROGRAM, file, results], check=False, timeout=60)
    assert [row["kind"] for row in rows(results)] == ["run", "case", "summary"]


def test_a_message_that_cannot_be_written_changes_no_exit_code():
    ran = subprocess.run(["bash", "-c", '"$0" run no/such/scenario 2>/dev/full', PROGRAM], check=False, timeout=60)
    assert ran.returncode == 2


def test_a_reader_that_goes_ends_no_run(tmp_path):
    file, results = scenario(tmp_path, "sums"), tmp_path / "results.jsonl"
    subprocess.run(
        ["bash", "-c", '"$0" run "$1" --repeat 20 --results "$2" 2>/dev/null | head -1', PROGRAM, file, results],
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    assert len(rows(results)) == 22 and rows(results)[-1]["kind"] == "summary"


# Signals


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_signal_ends_the_run_in_order(tmp_path, temporary, name):
    results, junit = tmp_path / "results.jsonl", tmp_path / "junit.xml"
    junit.write_text("of the run before", encoding="utf-8")
    ran = start_slow(tmp_path, results, "--junit", junit)
    ranks = ranks_of(ran.pid)
    ran.send_signal(getattr(signal, name))
    said = ran.communicate(timeout=30)[0]
    assert ran.returncode == 130, said
    assert f"the run was interrupted ({name})" in said
    assert rows(results)[-1] == {**rows(results)[-1], "kind": "summary", "exit_code": 130}
    (case,) = ElementTree.parse(junit).getroot().findall(".//testcase")
    assert f"the run was interrupted ({name})" in case.find("error").get("message")
    assert not list(temporary.iterdir())
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]


def test_a_run_under_nohup_survives_a_hang_up(tmp_path):
    file = tmp_path / "short.yaml"
    file.write_text(SLOW.replace("60000", "1500"), encoding="utf-8")
    ran = start("run", file, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    time.sleep(0.5)
    ran.send_signal(signal.SIGHUP)
    said = ran.communicate(timeout=60)[0]
    assert ran.returncode in (0, 1) and "interrupted" not in said


def test_the_next_run_sweeps_what_a_killed_one_left(tmp_path, temporary):
    # Entries with such a name that no run has made do not end the sweep.
    foreign = [temporary / f"lockstep-run-{number:06}" for number in range(9)]
    for number, path in enumerate(foreign):
        if number % 3 == 0:
            path.symlink_to(tmp_path / "nowhere")
        elif number % 3 == 1:
            path.write_text("a file", encoding="utf-8")
        else:
            path.mkdir(mode=0o755)
    killed = start_slow(tmp_path, tmp_path / "killed.jsonl")
    ranks = ranks_of(killed.pid)
    os.kill(ranks[0], signal.SIGSTOP)  # a stopped rank ends too
    killed.kill()
    killed.communicate(timeout=30)
    deadline = time.monotonic() + 20
    while any("lockstep" in name_of(pid) for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    left = [folder for folder in temporary.iterdir() if folder not in foreign]
    assert [folder.name[:13] for folder in left] == ["lockstep-run-"]
    living = start_slow(tmp_path, tmp_path / "living.jsonl")
    mine = [folder for folder in temporary.iterdir() if folder not in left + foreign]
    assert len(mine) == 1 and not left[0].exists()
    assert lockstep("run", scenario(tmp_path, "sums")).returncode == 0
    assert set(temporary.iterdir()) == {*mine, *foreign}  # the folder of a running run stays
    living.terminate()
    living.communicate(timeout=30)
    assert set(temporary.iterdir()) == set(foreign)


# Limits


def test_each_limit_is_named(tmp_path, temporary):
    file, results = scenario(tmp_path, "sums"), tmp_path / "results.jsonl"
    for limit, named in [({"FSIZE": 1 << 20}, "ulimit -f"), ({"NOFILE": 8}, "ulimit -n")]:
        ran = start("run", file, "--jobs", 1, "--results", results, preexec_fn=limited(**limit))
        said = ran.communicate(timeout=60)[0]
        assert ran.returncode == 3 and named in said, said
        assert rows(results)[-1]["exit_code"] == 3
        assert not list(temporary.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit on processes applies to a user that only this test has")
@pytest.mark.parametrize("launch", ["process", "thread"])
def test_the_limit_on_processes_is_named(tmp_path, launch):
    file = tmp_path / "four.yaml"
    file.write_text(SLOW.replace("60000", "1"), encoding="utf-8")

    def become_another_user() -> None:
        os.chdir("/")
        limited(NPROC=4)()
        os.setuid(54321)

    for parent in [tmp_path, *tmp_path.parents]:
        if parent.owner() == "root" and parent != Path("/tmp") and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    environment = {**os.environ, "TMPDIR": "/tmp", "OPENBLAS_NUM_THREADS": "1"}
    ran = start("run", file, "--launch", launch, "--jobs", 1, preexec_fn=become_another_user, env=environment)
    said = ran.communicate(timeout=60)[0]
    assert ran.returncode == 3 and "ulimit -u" in said, said


def test_a_missing_temporary_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    results = tmp_path / "results.jsonl"
    ran = lockstep("run", scenario(tmp_path, "sums"), "--results", results)
    assert ran.returncode == 3 and f"the temporary folder {tmp_path}/missing" in ran.stderr and "TMPDIR" in ran.stderr
    assert [row["status"] for row in rows(results) if row["kind"] == "case"] == ["MISSING"]


def test_results_that_do_not_fit_are_counted(tmp_path):
    full = lockstep("run", scenario(tmp_path, "sums"), "--results", "/dev/full")
    assert full.returncode == 3 and "/dev/full: No space left on device" in full.stderr
    junit = lockstep("run", scenario(tmp_path, "sums"), "--junit", "/dev/full")
    assert junit.returncode == 3 and "PASS" in junit.stdout and "/dev/full: No space left on device" in junit.stderr


FILES = """\
scenario: files
summary: A rank writes a file.
ranks: {world_size: [2], launch: [process, thread]}
device: [cpu]
steps:
  - write: {file: numbers.safetensors, value: "{'x': full([100000], 1.5)}"}
    when: rank == 1
  - expect: rank >= 0
"""


def on_full_disk(folder: Path, command: str, *arguments: object) -> subprocess.CompletedProcess:
    """Runs a bash command ($0 is the program) with a file system of 24 KiB at `folder`, which is unmounted with the command."""
    folder.mkdir()
    mounted = 'mount -t tmpfs -o size=24k none "$0" || exit 99; folder=$0; program=$1; shift; '
    ran = subprocess.run(
        ["unshare", "-m", "bash", "-c", mounted + command, str(folder), str(PROGRAM), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if ran.returncode == 99 or "unshare failed" in ran.stderr:
        pytest.skip("no file system can be mounted here")
    return ran


def test_a_full_results_disk_keeps_whole_lines(tmp_path):
    file, copy = scenario(tmp_path, "sums"), tmp_path / "copy.jsonl"
    command = '"$program" run "$1" --repeat 40 --results "$folder/r.jsonl"; code=$?; cat "$folder/r.jsonl" > "$2"; exit $code'
    ran = on_full_disk(tmp_path / "disk", command, file, copy)
    assert ran.returncode == 3 and "r.jsonl: No space left on device" in ran.stderr
    whole = rows(copy)  # no line is truncated
    lacking = 40 - sum(row["kind"] == "case" for row in whole)
    assert 0 < lacking < 40 and f"lacks {lacking} of 40 results" in ran.stderr


def test_a_full_temporary_disk_is_named(tmp_path):
    file = tmp_path / "files.yaml"
    file.write_text(FILES, encoding="utf-8")
    ran = on_full_disk(tmp_path / "disk", 'TMPDIR=$folder exec "$program" run "$1"', file)
    assert ran.returncode == 3 and "No space left on device" in ran.stderr, ran.stdout


# The culprit

LATE = """\
scenario: late
summary: One rank sleeps while the others wait for it.
ranks: {world_size: [4], launch: [process, thread]}
device: [cpu]
steps:
  - delay: {ms: 60000, where: host}
    when: rank == 2
  - barrier: all_ranks
  - expect: rank >= 0
"""


def test_the_rank_that_all_wait_for_heads_a_hang(tmp_path):
    file, results = tmp_path / "late.yaml", tmp_path / "results.jsonl"
    file.write_text(LATE, encoding="utf-8")
    ran = lockstep("run", file, "--timeout", 2, "--results", results)
    assert ran.returncode == 1 and "SIGKILL" not in ran.stdout
    cases = [row for row in rows(results) if row["kind"] == "case"]
    assert len(cases) == 2
    for case in cases:
        failure = case["failure"]
        assert case["status"] == "HANG" and failure["rank"] == 2 and failure["check"] == "delay", failure
        assert failure["message"].startswith("rank 2 did not end in time and was ended by the harness in delay; ranks 0, 1, 3 wait")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_the_rank_that_crashes_heads_a_crash(tmp_path, name):
    file, results = tmp_path / "late.yaml", tmp_path / "results.jsonl"
    file.write_text(LATE, encoding="utf-8")
    ran = start("run", file, "--launch", "process", "--timeout", 4, "--results", results)
    deadline = time.monotonic() + 30
    while len(ranks_of(ran.pid)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    os.kill(ranks_of(ran.pid)[1], getattr(signal, name))
    ran.communicate(timeout=90)
    (case,) = [row for row in rows(results) if row["kind"] == "case"]
    assert case["status"] == "CRASH" and case["failure"]["rank"] == 1
    assert f"rank 1 was ended by signal {getattr(signal, name).value} ({name}" in case["failure"]["message"]


# Signals that the parent has ignored or blocked


def test_the_ends_of_children_are_noticed_though_the_parent_ignores_them(tmp_path):
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)}
    wrong = scenario(tmp_path, "wrong")
    wrong.write_text(wrong.read_text(encoding="utf-8").replace("all_reduce", "all_redcue"), encoding="utf-8")
    for arguments, code in ((("validate", wrong), 2), (("run", scenario(tmp_path, "sums")), 0)):
        ran = start(*arguments, **ignored)
        said = ran.communicate(timeout=60)[0]
        assert ran.returncode == code, said
    file, results = tmp_path / "late.yaml", tmp_path / "results.jsonl"
    file.write_text(LATE, encoding="utf-8")
    ran = start("run", file, "--launch", "process", "--timeout", 4, "--results", results, **ignored)
    deadline = time.monotonic() + 30
    while len(ranks_of(ran.pid)) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    os.kill(ranks_of(ran.pid)[1], signal.SIGKILL)
    ran.communicate(timeout=60)
    (case,) = [row for row in rows(results) if row["kind"] == "case"]
    assert "rank 1 was ended by signal 9" in case["failure"]["message"], case


def test_the_time_limit_of_the_run_holds_though_the_parent_blocks_its_signal(tmp_path):
    file = tmp_path / "slow.yaml"
    file.write_text(SLOW, encoding="utf-8")
    blocked = signal.SIGALRM, signal.SIGTERM
    ran = start("run", file, "--run-timeout", 1, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, blocked))
    said = ran.communicate(timeout=50)[0]
    assert ran.returncode == 124, said


# Files of two runs


def test_a_folder_of_the_user_is_not_swept(tmp_path, temporary):
    mine = temporary / "lockstep-run-output"
    mine.mkdir(mode=0o700)
    file = scenario(mine, "sums")
    ran = lockstep("run", file, "--results", mine / "results.jsonl")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert file.exists() and rows(mine / "results.jsonl")[-1]["kind"] == "summary"
    assert list(temporary.iterdir()) == [mine]


def test_two_runs_do_not_share_a_results_file(tmp_path, temporary):
    results = tmp_path / "results.jsonl"
    first = start_slow(tmp_path, results)
    second = lockstep("run", scenario(tmp_path, "sums"), "--results", results)
    assert second.returncode == 2 and "another run is writing the results file" in second.stderr
    first.terminate()
    first.communicate(timeout=30)
    assert [row.get("scenario") for row in rows(results)] == [None, "slow", None]
    assert not list(temporary.iterdir())


def test_only_dumps_of_an_earlier_run_are_removed(tmp_path):
    results, dumps = tmp_path / "results.jsonl", tmp_path / "results.jsonl.dumps"
    lockstep("run", scenario(tmp_path, "wrong", expected="4"), "--repeat", 2, "--results", results)
    assert (dumps / "case-1" / "recorder.jsonl").exists() and (dumps / "case-2").exists()
    (dumps / "notes.txt").write_text("mine", encoding="utf-8")
    (dumps / "case-1" / "mine.txt").write_text("mine", encoding="utf-8")
    (dumps / "case-9").mkdir()
    (dumps / "case-9" / "case.txt").write_text("mine", encoding="utf-8")
    lockstep("run", scenario(tmp_path, "sums"), "--results", results)
    left = sorted(str(file.relative_to(dumps)) for file in dumps.rglob("*") if file.is_file())
    assert left == ["case-1/mine.txt", "case-9/case.txt", "notes.txt"]


# explain-hang


def test_explain_hang_takes_results_dumps_or_a_case(tmp_path):
    results, dumps = tmp_path / "results.jsonl", tmp_path / "results.jsonl.dumps"
    file = scenario(tmp_path, "wrong", expected="4")
    lockstep("run", file, "--repeat", 2, "--results", results)
    for path in (results, dumps):
        listed = lockstep("explain-hang", path)
        assert listed.returncode == 0 and f"{dumps}/case-1" in listed.stdout and f"{dumps}/case-2" in listed.stdout
    one = lockstep("explain-hang", dumps / "case-1")
    assert one.returncode == 0 and one.stdout.startswith("wrong [world_size=2,")
    lockstep("run", file, "--launch", "thread", "--results", results)
    assert lockstep("explain-hang", results).stdout.startswith("wrong [world_size=2,launch=thread")


def test_explain_hang_finds_nothing_in_nothing(tmp_path):
    good, empty = tmp_path / "good.jsonl", tmp_path / "empty"
    lockstep("run", scenario(tmp_path, "sums"), "--results", good)
    empty.mkdir()
    blank = tmp_path / "blank"
    blank.mkdir()
    (blank / "recorder.jsonl").write_text("", encoding="utf-8")
    for path in (good, empty, blank, tmp_path / "missing"):
        told = lockstep("explain-hang", path)
        assert told.returncode == 2 and str(path) in told.stderr and "No rank failed" not in told.stdout, path


# Text from outside

ODD = ["a\x1b[31mb", "c\nPASS d", "e\x9bf", "g\u202eh", "i\u2028j"]


def test_names_do_not_steer_the_terminal(tmp_path):
    file = tmp_path / "odd.yaml"
    file.write_text(
        "scenario: odd\nsummary: Odd names.\nranks: {world_size: [2], launch: [process]}\ndevice: [cpu]\n"
        f"matrix: {{word: {json.dumps(ODD)}}}\nsteps:\n  - expect: rank == 0\n",
        encoding="utf-8",
    )
    junit, results, page = tmp_path / "junit.xml", tmp_path / "results.jsonl", tmp_path / "page"
    ran = lockstep("run", file, "--junit", junit, "--results", results, "--report", page)
    said = [ran.stdout, ran.stderr, junit.read_text(encoding="utf-8"), (page / "index.html").read_text(encoding="utf-8")]
    for command in (["explain", file], ["list", file], ["validate", file], ["explain-hang", results]):
        told = lockstep(*command)
        said += [told.stdout, told.stderr]
    said.append(lockstep("compare", results, results).stdout)
    for text in said:
        for odd in ("\x1b", "\x9b", "\u202e", "\u2028", "\nPASS d", "&#10;PASS d"):
            assert odd not in text, (odd, text[:2000])
    assert "word=a\\x1b[31mb," in ran.stdout and "word=c\\nPASS d," in ran.stdout and "word=e\\u009bf," in ran.stdout
    assert {row["params"]["word"] for row in rows(results) if row["kind"] == "case"} == set(ODD)  # the data is unchanged
