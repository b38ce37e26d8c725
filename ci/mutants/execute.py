"""Runs scenarios and unit tests of the build of the mutants: to record the points that they reach, and under a mutant.

A mutant may do anything: delete files, signal processes, never end. So its run has a file system that is read-only but for one
folder, and processes of its own (unshare). Where the machine permits no such thing, `isolated` is False. GoogleTest writes the output of
a death test to /tmp, so /tmp is empty and writable, unless the folder lies there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import hosts
from order import scenarios_about

MAPPED = """
mount -t tmpfs tmpfs /dev/shm && mount --bind "$1" "$1" && mount -o remount,bind,ro / && mount -t proc proc /proc &&
case "$1" in /tmp/*) ;; *) mount -t tmpfs tmpfs /tmp ;; esac &&
cd "$1" && shift && exec "$@"
"""
DEADLINE = 3  # seconds that a collective waits for its ranks
CASE_TIMEOUT = 8
SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
ABOUT = Path(__file__).with_name("about.txt")
OWN_LIMIT = re.compile(r"^timeout: *([0-9.]+)", re.MULTILINE)  # a scenario with a short one is about it
COMPARED = 3  # runs without a mutant, and as many with it, that `lockstep compare` looks at
PATIENCE = 4  # times as long for a run that asks whether the machine was slow
MEMORY = 4 << 30  # bytes per process: a mutant that fills memory ends, and not the processes beside it
ADDRESSES = 1 << 42  # for unit tests: there, ranks are threads, and each device reserves 8 GiB
LATE = ("HANG", "time limit")  # a slow machine ends like this too
UNEXPECTED = ("FAIL", "XPASS", "HANG", "CRASH", "INVALID")


@functools.cache
def can_isolate() -> bool:
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", MAPPED, "sh", "/dev/shm", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/oom_score_adj").write_text("1000")  # ends first where memory is short


@dataclass
class Ended:
    code: int | None  # None: it ran past the limit and was killed
    output: str
    seconds: float


def run(command: list[str], folder: Path, environment: dict[str, str], limit: float, memory: int = MEMORY) -> Ended:
    """Runs the command, which may write into the folder only."""
    temporary = folder / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    full = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
    full |= {"OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(temporary), **environment}
    if can_isolate():
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", MAPPED, "sh", str(folder), *command]
    began = time.monotonic()
    with (folder / "output").open("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=full, cwd=folder, start_new_session=True,
            preexec_fn=lambda: _limit(memory),
        )  # fmt: skip
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        text = output.read(200_000)
    return Ended(code, text, time.monotonic() - began)


@dataclass
class Catch:
    by: str  # scenario; comparison: with the results of a run without a mutant; unit test
    name: str  # of the scenario, or of the test
    check: str  # the check that failed, or how the run ended


FEW_RANKS = 4
ALL_SKIPPED = 77  # an exit code


@dataclass
class Place:
    """Where cases run: a device, further arguments of `lockstep list` and `lockstep run`, and of the run alone, and variables."""

    device: str
    selecting: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    start: Callable[[list[str], Path], tuple[list[str], dict[str, str]]] | None = None  # starts the processes of several hosts
    lacks: Callable[[Path, bool], str] | None = None  # why no case can run here; arguments: the program, whether runs are isolated
    one_of: int = 1  # this many scenarios gives cases, besides those that about.txt names for the sources below
    at_last: bool = False  # mutants run here that no other place catches
    about: tuple[str, ...] = ()  # beginnings of the sources whose mutants run here first


# On sim the order of accesses is that of an accelerator; under a schedule the host runs ahead of its streams; on cuda, a stand-in of CUDA
# runs the kernels' portable bodies; on hosts, messages go through sockets, and under mpirun through MPI; on pages, system calls close the
# memory of sim to the host; on nccl, each rank has a GPU of its own; on nccl_hosts, so have the ranks of two hosts.
PLACES = {
    "cpu": Place("cpu"),
    "sim": Place("sim"),
    "schedule": Place("sim", ("--launch", "thread"), ("--schedule", "random:1")),
    "cuda": Place("cuda", environment={"LOCKSTEP_CUDA": "stand-in"}, about=("engine/comm/one_device", "engine/device/cuda/")),
    "hosts": Place("cpu", start=hosts.by_sockets, about=("engine/comm/crossing", "engine/comm/ferry", "engine/comm/socket")),
    "pages": Place("sim", environment={"LOCKSTEP_PROTECT_SIM": "pages"}, one_of=16, at_last=True,
                   about=("engine/device/fault", "engine/device/protection")),
    "nccl": Place("cuda", environment={"LOCKSTEP_CUDA": "stand-in:8"}, at_last=True, about=("engine/comm/nccl", "engine/device/cuda/")),
    "nccl_hosts": Place("cuda", environment={"LOCKSTEP_CUDA": "stand-in:8"}, start=hosts.by_sockets, one_of=4, at_last=True,
                        about=("engine/comm/host_copies",)),
    "mpi": Place("cpu", start=hosts.by_mpirun, lacks=hosts.lacks_mpirun, one_of=8, at_last=True, about=("engine/comm/mpi",)),
}
# `lockstep run --failed` takes the cases from a results file; of its rows it reads which cases failed.
ANY_RUN = {"kind": "run", "schema": 1, "version": "", "started": "", "command": [], "build": {}, "machine": {}}
NO_EVIDENCE = dict.fromkeys(("comparisons", "trivial", "elements", "same_bits", "bits_required", "max_abs_difference",
                             "collectives_checked", "orders_checked", "errors_expected"), 0)  # fmt: skip
NO_EVIDENCE["loosest"] = {"rtol": 0, "atol": 0}
NO_MEMORY = dict.fromkeys(("parameter", "gradient", "gathered", "activation", "optimizer", "communication", "other", "peak_total"), 0)
ANY_CASE = {"kind": "case", "status": "FAIL", "mirrors": None, "params": {}, "world_size": 1, "launch": "process", "device": "cpu",
            "seconds": 0.0, "evidence": NO_EVIDENCE, "collectives": [], "memory": NO_MEMORY, "records": {}, "repro": ""}  # fmt: skip


def spread(items: list, count: int) -> list:
    """This many of them: the first, the last, and others at equal distances."""
    if len(items) <= count:
        return items
    if count == 1:
        return items[:1]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


class Scenarios:
    """Cases of the scenarios of a program, as "SCENARIO CASE", in one of PLACES."""

    what = "case"

    def __init__(self, program: Path, folder: Path, selection: list[str] = (), where: str = "cpu", per_scenario: int | None = None,
                 expected: dict[str, str] | None = None):  # fmt: skip
        """`where`: a key of PLACES. `per_scenario`: at most this many cases of each, on few ranks where it has such; None: all.
        `expected`: the facts of each case without a mutant, as `run_alone` gives them."""
        self.program, self.folder, self.selection, self.where = program, folder, selection, where
        self.place = PLACES[where]
        self.per_scenario = per_scenario
        self.kept_as = f"cases-{where}"
        self.expected = {} if expected is None else expected
        folder.mkdir(parents=True, exist_ok=True)

    def in_folder(self, folder: Path) -> "Scenarios":
        return Scenarios(self.program, folder, self.selection, self.where, self.per_scenario, self.expected)

    def lacking(self) -> str:
        """Why no case can run here; empty if they can."""
        return self.place.lacks(self.program, can_isolate()) if self.place.lacks else ""

    def names(self) -> list[str]:
        command = [self.program, "list", "--json", "--device", self.place.device, *self.place.selecting, *self.selection]
        variables = {**os.environ, **self.place.environment}
        listed = subprocess.run(command, capture_output=True, text=True, check=True, env=variables).stdout
        known = scenarios_about(ABOUT)
        named = {name for source in known if source.startswith(self.place.about) for name in known[source]}
        found = []
        for number, row in enumerate(_rows(listed)):
            if number % self.place.one_of > 0 and row["scenario"] not in named:
                continue
            cases = [(one["world_size"], one["case"]) for one in row["cases"] if "skip" not in one]
            if self.place.start:
                cases = [one for one in cases if one[0] == hosts.RANKS]
            if not cases:
                continue
            few = [one for one in cases if one[0] <= FEW_RANKS] or [one for one in cases if one[0] == min(cases)[0]]
            chosen = cases if self.per_scenario is None else spread(few, self.per_scenario)
            found += [f"{row['scenario']} {case}" for _, case in chosen]
        return found

    def run(self, names: list[str], environment: dict[str, str], limit: float, patience: int = 1) -> Catch | None:
        """The first unexpected result, or else the first case whose facts are not the expected ones, or that has no result."""
        own = [name for name in names if self._has_own_limit(name)]
        for together in ([name for name in names if name not in own], own):
            if together and (catch := self._run_together(together, environment, limit, patience)):
                return catch
        return None

    def _has_own_limit(self, name: str) -> bool:
        path = SCENARIOS / (name.split(" ")[0] + ".yaml")
        found = OWN_LIMIT.search(path.read_text()) if path.is_file() else None
        return found is not None and float(found[1]) < CASE_TIMEOUT

    def _run_together(self, names: list[str], environment: dict[str, str], limit: float, patience: int) -> Catch | None:
        ended, rows = self._run(names, environment, limit, patience)
        for row in rows:
            if row["status"] in UNEXPECTED:
                check = (row.get("failure") or {}).get("check")
                name = f"{row['scenario']} {row['case']}"
                return Catch("scenario", name, check if row["status"] == "FAIL" and check else row["status"])
        if ended.code not in (0, ALL_SKIPPED):
            return Catch("scenario", names[0], "time limit" if ended.code is None else f"exit code {ended.code}")
        for row in rows:
            name = f"{row['scenario']} {row['case']}"
            if name in self.expected and facts_of(row) != self.expected[name]:
                return Catch("comparison", name, "")
        reported = {f"{row['scenario']} {row['case']}" for row in rows}
        if missing := [name for name in names if name not in reported]:
            return Catch("scenario", missing[0], "no result")
        return None

    def run_alone(self, name: str, environment: dict[str, str], limit: float) -> tuple[str | None, str, float | None]:
        """Why the case cannot judge, or None; its facts; and its seconds, without those of the program's start."""
        ended, rows = self._run([name], environment, limit, 1)
        statuses = [row["status"] for row in rows]
        if ended.code == 0 and statuses and statuses[0] in ("PASS", "XFAIL"):
            return None, facts_of(rows[0]), rows[0].get("seconds")
        return ", ".join(statuses) or f"exit code {ended.code}", "", None

    def compared(self, name: str, environment: dict[str, str], limit: float) -> Catch | None:
        """Runs the case without and with the environment in turns. Does `lockstep compare`, or `compare --trace`, refuse each run
        with it beside the first, and none without? A case in which a rank fails may end sooner or later in the others. One
        that differs without the environment is not compared again."""
        if self.place.start:
            return None  # the first host has only a part of the traces
        kept = []
        for turn in range(2 * COMPARED):
            kept.append((self.folder / f"{turn}.jsonl", self.folder / f"{turn}.bits"))
            self._run([name], environment if turn % 2 else {}, limit, 1, *kept[-1])
        for title, option, which in (("compare", [], 0), ("compare --trace", ["--trace"], 1)):
            first, *others = [str(one[which]) for one in kept]
            commands = [[str(self.program), "compare", *option, first, other] for other in others]
            refused = [subprocess.run(command, capture_output=True).returncode == 1 for command in commands]
            if any(refused[1::2]):
                self.expected.pop(name, None)
            elif all(refused[::2]):
                return Catch("comparison", name, title)
        return None

    def _run(self, names: list[str], environment: dict[str, str], limit: float, patience: int,
             results: Path | None = None, bits: Path | None = None) -> tuple[Ended, list[dict]]:  # fmt: skip
        results, bits, chosen = results or self.folder / "results.jsonl", bits or self.folder / "bits", self.folder / "chosen.jsonl"
        results.unlink(missing_ok=True)
        shutil.rmtree(bits, ignore_errors=True)
        rows = [ANY_RUN, *({**ANY_CASE, "scenario": name.split(" ", 1)[0], "case": name.split(" ", 1)[1]} for name in names)]
        chosen.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = [str(self.program), "run", "--failed", str(chosen), "--results", str(results), "--fail-fast", "-q", "--color", "never",
                   "--progress", "never", "--device", self.place.device, "--jobs", "2", *self.place.selecting, *self.place.running,
                   *([] if all(map(self._has_own_limit, names)) else
                     ["--deadline", str(DEADLINE * patience), "--timeout", str(CASE_TIMEOUT * patience)])]  # fmt: skip
        environment = {**self.place.environment, **environment}
        if self.place.start:
            command, variables = self.place.start(command, self.folder)
            environment = {**variables, **environment}
        else:
            command += ["--trace-bits", str(bits)]
        ended = run(command, self.folder, environment, limit)
        rows = _rows(results.read_text(errors="replace")) if results.is_file() else []
        traces = _traces(bits)
        rows = [row for row in rows if row.get("kind") == "case"]
        for row in rows:
            row["trace"] = traces.get(f"{row['scenario']} {row['case']}", "")
        return ended, rows


class UnitTests:
    """The suites of the programs of unit tests, as PROGRAM:SUITE."""

    what = "unit test"
    kept_as = "unit-test"

    def __init__(self, programs: list[Path], folder: Path):
        self.programs, self.folder = {one.name: one for one in programs}, folder
        folder.mkdir(parents=True, exist_ok=True)

    def in_folder(self, folder: Path) -> "UnitTests":
        return UnitTests(list(self.programs.values()), folder)

    def lacking(self) -> str:
        return ""

    def run_alone(self, name: str, environment: dict[str, str], limit: float) -> tuple[str | None, str, float | None]:
        catch = self.run([name], environment, limit)
        return (None if catch is None else catch.check), "", None

    def names(self) -> list[str]:
        found = []
        for name, program in self.programs.items():
            listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
            suites = [line.split("#")[0].strip() for line in listed.splitlines() if line and not line.startswith(" ")]
            found += [f"{name}:{suite}" for suite in suites if suite.endswith(".")]
        return found

    def run(self, names: list[str], environment: dict[str, str], limit: float, patience: int = 1) -> Catch | None:
        for program in dict.fromkeys(name.split(":")[0] for name in names):
            own = [name.split(":")[1] + "*" for name in names if name.startswith(program + ":")]
            command = [str(self.programs[program]), f"--gtest_filter={':'.join(own)}", "--gtest_fail_fast", "--gtest_brief=1"]
            ended = run(command, self.folder, environment, limit, ADDRESSES)
            if ended.code == 0:
                continue
            failed = [line.split("]", 1)[1].split("(")[0].split(",")[0].strip()
                      for line in ended.output.splitlines() if line.startswith("[  FAILED  ]")]  # fmt: skip
            how = "assertion" if failed else "time limit" if ended.code is None else f"exit code {ended.code}"
            return Catch(self.what, failed[0] if failed else f"{program}:{own[0]}", how)
        return None


FACTS = ("status", "evidence", "collectives", "plan", "not_planned", "memory", "records", "trace")


def facts_of(row: dict) -> str:
    """A digest of all that `lockstep compare` and `compare --trace` look at, but for the times. Every run of a build gives the same."""
    return hashlib.sha256(json.dumps([row.get(key) for key in FACTS], sort_keys=True).encode()).hexdigest()[:16]


def _traces(folder: Path) -> dict[str, str]:
    """The digest of each case's traces, those of its ranks in their order."""
    found: dict[str, hashlib._Hash] = {}
    for path in sorted(folder.glob("*.jsonl")):
        head, _, rest = path.read_bytes().partition(b"\n")
        first = (_rows(head.decode(errors="replace")) or [{}])[0]
        if isinstance(first, dict) and "scenario" in first:
            found.setdefault(f"{first['scenario']} {first['case']}", hashlib.sha256()).update(rest)
    return {name: digest.hexdigest() for name, digest in found.items()}


def _rows(text: str) -> list[dict]:
    """The objects of JSON lines, or of one JSON list; a line that a killed program left unfinished is left out."""
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    except ValueError:
        pass
    rows = []
    for line in text.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
