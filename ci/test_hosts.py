"""Runs on several hosts: processes that find each other by TCP, each a host of its own on this machine; and by MPI where it is there.

LOCKSTEP_PROGRAM names the program (build/bin/lockstep of this repository when unset).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from program import PROGRAM, lockstep, rows, scenario

SLEEP = """\
scenario: sleep
summary: One rank sleeps while the others wait for it.
ranks: {world_size: [2], launch: [process]}
device: [cpu]
matrix: {turn: [1, 2]}
steps:
  - delay: {ms: 30000, where: host}
    when: rank == 1
  - barrier: all_ranks
  - expect: rank >= 0
"""

DIES = """\
scenario: dies
summary: The second rank dies in the first case.
ranks: {world_size: [2], launch: [process]}
device: [cpu]
matrix: {turn: [1, 2]}
steps:
  - exit: kill
    when: rank == 1 and turn == 1
  - let: {x: "full([4], rank + 1)"}
  - all_reduce: {tensor: x, op: sum}
  - expect_equal: [x, 3]
"""


LONG_STAGES = """\
scenario: long_stages
summary: The first stage uses most of the time, and the second one needs more than the rest, on the second host alone.
ranks: {world_size: [2], launch: [process]}
device: [cpu]
timeout: 9
matrix: {turn: [1, 2]}
stages:
  - name: first
    steps:
      - delay: {ms: "7500 if turn == 1 else 1", where: host}
      - expect: rank >= 0
  - name: second
    steps:
      - delay: {ms: "5000 if turn == 1 else 1", where: host}
        when: rank == 1
      - expect: rank >= 0
"""

BEHIND = """\
scenario: behind
summary: The first rank has ended, and the second one waits for the third, until the time is over.
ranks: {world_size: [3], launch: [process]}
device: [cpu]
timeout: 1
deadline: 60
steps:
  - mesh: {shape: [2], ranks: [1, 2], names: [pair]}
    as: pair
    when: rank > 0
  - delay: {ms: 30000, where: host}
    when: rank == 2
  - barrier: pair
    when: rank > 0
  - expect: rank >= 0
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Run:
    """`num` processes with the variables of torchrun. `arguments` may be a function of the rank, and `folders` are their working
    directories."""

    def __init__(
        self,
        num: int,
        *arguments: object,
        each_a_host: bool = True,
        first: int = 0,
        folders: list[Path] | None = None,
        **variables: str,
    ):
        environment = {
            **os.environ,
            "WORLD_SIZE": str(num),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "LOCKSTEP_CONNECT_SECONDS": "20",
            "OPENBLAS_NUM_THREADS": "1",
            **variables,
        }
        environment["LOCKSTEP_HOSTS"] = variables.get("LOCKSTEP_HOSTS", "ranks" if each_a_host else "")
        self.processes = []
        for rank in range(first, num):
            words = arguments[0](rank) if callable(arguments[0]) else arguments
            self.processes.append(
                subprocess.Popen(
                    [str(PROGRAM), *map(str, words)],
                    env={**environment, "RANK": str(rank)},
                    cwd=folders[rank] if folders else None,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )

    def end(self, timeout: float = 120) -> tuple[list[int], list[str]]:
        """Exit codes and outputs."""
        try:
            said = [each.communicate(timeout=timeout)[0] for each in self.processes]
        finally:
            for each in self.processes:
                each.kill()
        return [each.returncode for each in self.processes], said


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    names = {int(child): Path(f"/proc/{child}/comm").read_text(encoding="utf-8") for child in listed}
    return [child for child, name in names.items() if "guard" not in name]


def is_alive(pid: int) -> bool:
    """Not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for_rank(launcher: int, results: Path) -> int:
    """The first rank of this launcher. Host 0 begins the results file before the first case."""
    deadline = time.monotonic() + 30
    while not (results.exists() and (ranks := children_of(launcher))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return ranks[0]


def test_only_host_0_prints_and_writes(tmp_path):
    file, results = scenario(tmp_path, "sums"), tmp_path / "results.jsonl"
    codes, said = Run(2, "run", file, "--results", results).end()
    assert codes == [0, 0], said
    assert "PASS             1" in said[0] and said[1] == ""
    written = rows(results)
    assert "2 ranks on 2 hosts over TCP" in written[0]["machine"]["hosts"]
    assert [row["status"] for row in written if row["kind"] == "case"] == ["PASS"]


def test_all_end_with_the_code_of_the_results(tmp_path):
    codes, said = Run(3, "run", scenario(tmp_path, "wrong", expected="4")).end()
    assert codes == [1, 1, 1], said
    assert "FAIL             1" in said[0] and "also rank" in said[0]


def test_larger_cases_are_skipped(tmp_path):
    file = tmp_path / "sizes.yaml"
    file.write_text(
        "scenario: sizes\nsummary: Sizes.\nranks: {world_size: [1, 4, 2], launch: [process]}\ndevice: [cpu]\n"
        "steps:\n  - let: {x: ones(4)}\n  - all_reduce: {tensor: x, op: sum}\n  - expect_equal: [x, world_size]\n",
        encoding="utf-8",
    )
    for each_a_host in (True, False):
        codes, said = Run(3, "run", file, each_a_host=each_a_host).end()
        assert codes == [0, 0, 0], said
        assert "it needs 4 ranks, and 3 processes were started" in said[0]
        assert "PASS             2" in said[0] and "SKIP             1" in said[0]
        codes, said = Run(3, "run", file, "--case", "world_size=4", each_a_host=each_a_host).end()
        assert codes == [4, 4, 4], said  # nothing was executed


def test_processes_of_one_machine_leave_the_ranks_to_the_first(tmp_path):
    file, results = tmp_path / "sleep.yaml", tmp_path / "results.jsonl"
    file.write_text(SLEEP.replace("30000", "1500"), encoding="utf-8")
    run = Run(2, "run", file, "--case", "turn=1", "--results", results, each_a_host=False)
    wait_for_rank(run.processes[0].pid, results)
    time.sleep(0.3)
    assert len(children_of(run.processes[0].pid)) == 2 and children_of(run.processes[1].pid) == []
    codes, said = run.end()
    assert codes == [0, 0] and "PASS             1" in said[0] and said[1] == ""


def expect_the_bits_of_one_host(folder, num, per_host, *words):
    here, there = folder / "here", folder / "there"
    options = [*words, "--world-size", num]
    alone = lockstep("run", *options, "--trace-bits", here, "--results", folder / "a", timeout=250)
    codes, said = Run(
        num, "run", *options, "--trace-bits", there, "--results", folder / "b", LOCKSTEP_HOSTS=str(per_host)
    ).end(timeout=250)
    assert codes == [alone.returncode] * num, said[0]
    assert not re.search(r"^(UNSUPPORTED|INVALID) ", said[0], re.MULTILINE), said[0]
    compared = lockstep("compare", "--trace", here, there)
    assert " 0 cases differ" in compared.stdout, compared.stdout  # cases with larger stages are missing
    same = lockstep("compare", folder / "a", folder / "b")
    worse = [line for line in same.stdout.splitlines() if line.startswith("worse") and "SKIP" not in line]
    assert not worse, same.stdout
    memory = [{row["repro"]: row["memory"] for row in rows(folder / name) if row.get("status") == "PASS"} for name in "ab"]
    assert memory[1].items() <= memory[0].items()  # cases with larger stages are skipped on two hosts


@pytest.mark.parametrize(
    "num,per_host,what,shard",
    [(2, 1, "replicate/*", "1/1"), (2, 1, "bits/*", "1/1"), (4, 2, "training/*", "1/4"), (3, 2, "bits/*", "1/1")],
)
def test_scenarios_have_the_bits_of_one_host(tmp_path, num, per_host, what, shard):
    expect_the_bits_of_one_host(tmp_path, num, per_host, what, "--device", "cpu", "--shard", shard)


# On the stand-ins of CUDA and NCCL. The ranks of a host share a GPU, or have one each. In the latter case NCCL carries the bytes on
# one host, and on two hosts those of the groups within a host.
@pytest.mark.parametrize("gpus", ["stand-in", "stand-in:4"])
def test_scenarios_on_gpus_have_the_bits_of_one_host(tmp_path, monkeypatch, gpus):
    monkeypatch.setenv("LOCKSTEP_CUDA", gpus)
    scenarios = ["collectives/g*", "replicate/*_module", "training/mlp_stack_*d*"]
    expect_the_bits_of_one_host(tmp_path, 4, 2, *scenarios, "--device", "cuda", "--shard", "1/10")


def test_a_rank_that_is_killed_is_a_crash_and_the_next_case_runs(tmp_path):
    file, results = tmp_path / "sleep.yaml", tmp_path / "results.jsonl"
    file.write_text(SLEEP, encoding="utf-8")
    run = Run(2, "run", file, "--timeout", 4, "--results", results)
    time.sleep(0.5)
    os.kill(wait_for_rank(run.processes[1].pid, results), signal.SIGKILL)
    codes, said = run.end()
    assert codes == [1, 1], said
    first, second = [row for row in rows(results) if row["kind"] == "case"]
    assert first["status"] == "CRASH" and first["failure"]["rank"] == 1
    assert "rank 1 was ended by signal 9" in first["failure"]["message"]
    assert second["status"] == "HANG" and second["failure"]["rank"] == 1


def test_an_expected_death_passes_and_the_next_case_runs(tmp_path):
    file = tmp_path / "dies.yaml"
    file.write_text(DIES, encoding="utf-8")
    codes, said = Run(2, "run", file).end()
    assert codes == [1, 1]
    assert "PASS             1" in said[0] and "rank 1 died: ended by signal 9 (SIGKILL)" in said[0]


def test_stages_share_the_time_of_their_case_on_every_host(tmp_path):
    file, results = tmp_path / "long_stages.yaml", tmp_path / "results.jsonl"
    file.write_text(LONG_STAGES, encoding="utf-8")
    codes, said = Run(2, "run", file, "--results", results).end()
    assert codes == [1, 1], said
    first, second = [row for row in rows(results) if row["kind"] == "case"]
    assert first["status"] == "HANG" and first["failure"]["rank"] == 1
    assert second["status"] == "PASS"


def test_the_rank_that_another_host_waits_for_heads_a_hang(tmp_path):
    file, results = tmp_path / "behind.yaml", tmp_path / "results.jsonl"
    file.write_text(BEHIND, encoding="utf-8")
    codes, said = Run(3, "run", file, "--results", results).end()
    assert codes == [1, 1, 1], said
    (case,) = [row for row in rows(results) if row["kind"] == "case"]
    assert case["status"] == "HANG" and case["failure"]["rank"] == 2 and case["failure"]["check"] == "delay", case["failure"]
    assert "in delay; rank 1 waits for it in barrier" in case["failure"]["message"]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_launcher_that_is_killed_ends_the_others(tmp_path, victim):
    file, results = tmp_path / "sleep.yaml", tmp_path / "results.jsonl"
    file.write_text(SLEEP.replace("30000", "3000" if victim == 2 else "30000"), encoding="utf-8")
    run = Run(3, "run", file, "--results", results)
    ranks = [wait_for_rank(run.processes[host].pid, results) for host in (0, 1)]
    begin = time.monotonic()
    run.processes[victim].kill()
    codes, said = run.end()
    assert time.monotonic() - begin < 12
    assert codes == [-9 if host == victim else 3 for host in range(3)], said
    assert not [pid for pid in ranks if is_alive(pid)]
    if victim == 0:
        return
    cases = [row for row in rows(results) if row["kind"] == "case"]
    if victim == 1:
        assert cases[0]["status"] == "CRASH" and "host 1 (" in cases[0]["failure"]["message"]
    assert cases[-1]["status"] == "MISSING" and "was lost" in cases[-1]["reason"]
    assert f"host {victim} (" in said[0] and rows(results)[-1]["exit_code"] == 3


def test_a_launcher_that_stops_is_lost_in_time(tmp_path):
    file, results = tmp_path / "sleep.yaml", tmp_path / "results.jsonl"
    file.write_text(SLEEP, encoding="utf-8")
    run = Run(2, "run", file, "--results", results)
    wait_for_rank(run.processes[1].pid, results)
    begin = time.monotonic()
    run.processes[1].send_signal(signal.SIGSTOP)
    said = run.processes[0].communicate(timeout=60)[0]
    assert run.processes[0].returncode == 3 and time.monotonic() - begin < 20, said
    run.processes[1].send_signal(signal.SIGCONT)
    run.end()
    assert run.processes[1].returncode == 3
    first, second = [row for row in rows(results) if row["kind"] == "case"]
    assert first["status"] == "CRASH" and "host 1 (" in first["failure"]["message"] and "silent" in first["failure"]["message"]
    assert second["status"] == "MISSING"


@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_one_host_ends_the_run_on_all(tmp_path, host, name):
    file, results = tmp_path / "sleep.yaml", tmp_path / "results.jsonl"
    file.write_text(SLEEP, encoding="utf-8")
    run = Run(2, "run", file, "--results", results)
    wait_for_rank(run.processes[0].pid, results)
    begin = time.monotonic()
    run.processes[host].send_signal(getattr(signal, name))
    codes, said = run.end()
    assert codes == [130, 130] and time.monotonic() - begin < 10, said
    assert f"the run was interrupted ({name})" in said[0]
    assert [row["status"] for row in rows(results) if row["kind"] == "case"] == ["MISSING", "MISSING"]


def test_the_time_limit_of_the_run_holds_on_all(tmp_path):
    file = tmp_path / "sleep.yaml"
    file.write_text(SLEEP, encoding="utf-8")
    codes, said = Run(2, "run", file, "--run-timeout", 1).end()
    assert codes == [124, 124], said


def test_hosts_with_other_commands_or_files_are_refused(tmp_path):
    file = scenario(tmp_path, "sums")
    codes, said = Run(2, lambda rank: ("run", file, "--deadline", 5 + rank)).end()
    assert codes == [2, 2] and "--deadline 5` on host 0" in said[0] and "--deadline 6` there" in said[0]
    codes, said = Run(2, lambda rank: ("run", tmp_path / f"{'sums' if rank == 0 else 'none'}.yaml")).end()
    assert codes == [2, 2] and "differ" in said[0]


def test_hosts_with_other_routines_are_refused(tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(folders):
        (folder / "lib").mkdir(parents=True)
        (folder / "lib" / "more.yaml").write_text(
            f"routine: more\nsummary: Adds.\nparameters: {{x: tensor}}\ngives: [y]\nsteps:\n  - let: {{y: x + {number + 1}}}\n",
            encoding="utf-8",
        )
        (folder / "own.yaml").write_text(
            "scenario: own\nsummary: s\nranks: {world_size: [2], launch: [process]}\ndevice: [cpu]\nsteps:\n"
            "  - use: more\n    with: {x: ones(3)}\n    as: {y: b}\n  - expect: item(sum(b)) > 0\n",
            encoding="utf-8",
        )
    codes, said = Run(2, "run", "own.yaml", folders=folders).end()
    assert codes == [2, 2] and "`routine more " in said[0], said
    codes, said = Run(2, "run", "own.yaml", folders=folders[:1] * 2).end()
    assert codes == [0, 0], said


def test_schedules_are_refused_on_several_hosts(tmp_path):
    codes, said = Run(2, "run", scenario(tmp_path, "sums"), "--schedule", "random:1").end()
    assert codes == [2, 2] and "--schedule decides for the ranks of one process" in said[0], said


def test_folders_that_a_host_does_not_see_are_noted(tmp_path):
    file, folders = scenario(tmp_path, "sums"), [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    words = ("run", file, "--launch", "process", "--trace-bits", "bits", "--timeline", "lines")
    codes, said = Run(2, *words, folders=folders).end()
    assert codes == [0, 0], said
    assert "does not see bits; give --trace-bits a folder" in said[0] and "does not see lines; give --timeline a folder" in said[0]
    codes, said = Run(2, *words, folders=folders[:1] * 2).end()
    assert codes == [0, 0] and "does not see" not in said[0], said


def test_a_wrong_command_ends_all(tmp_path):
    for words in (["run", "no/such/scenario"], ["run", tmp_path / "missing.yaml"]):
        codes, said = Run(2, *words).end()
        assert codes == [2, 2], said
        assert said[0] and said[1] == ""


def test_missing_processes_are_named(tmp_path):
    file = scenario(tmp_path, "sums")
    codes, said = Run(2, "run", file, first=1, LOCKSTEP_CONNECT_SECONDS="0.5").end()
    assert codes == [2] and "rank 1 could not connect to 127.0.0.1" in said[0] and "MASTER_ADDR" in said[0]
    for rank, port in (("1", "29500"), ("7", "tcp://1:2")):  # wrong ones, too
        alone = subprocess.run(
            [PROGRAM, "run", file, "--link", "none"],
            env={**os.environ, "RANK": rank, "WORLD_SIZE": "2", "MASTER_PORT": port},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert alone.returncode == 0 and "PASS             1" in alone.stdout


def test_doctor_names_the_launcher_and_the_link():
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    told = subprocess.run([PROGRAM, "doctor"], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert "torchrun: rank 1 of 4, rendezvous at node0:29500" in told.stdout
    assert "TCP: torchrun gives address and port" in told.stdout
    environment["RANK"] = "4"
    told = subprocess.run([PROGRAM, "doctor"], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode == 1 and "RANK=4 is not below WORLD_SIZE=4" in told.stdout
    environment["LOCKSTEP_LINK"] = "none"
    told = subprocess.run([PROGRAM, "doctor"], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert "none: LOCKSTEP_LINK=none" in told.stdout and "is not below" not in told.stdout


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
@pytest.mark.parametrize("each_a_host", [False, True])
def test_mpirun_starts_a_run(tmp_path, each_a_host):
    if "not built in" in lockstep("doctor").stdout.split("MPI", 1)[1].splitlines()[0]:
        pytest.skip("MPI is not built in")
    file, results = scenario(tmp_path, "sums"), tmp_path / "results.jsonl"
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    if each_a_host:
        environment["LOCKSTEP_HOSTS"] = "ranks"
    ran = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", PROGRAM, "run", file, "--results", results],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("cases            1") == 1
    assert f"2 ranks on {2 if each_a_host else 1} host" in rows(results)[0]["machine"]["hosts"]
