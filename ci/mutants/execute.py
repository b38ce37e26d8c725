"""Runs scenarios and unit tests of the build of the mutants: to record the points that they reach, and under a mutant.

A mutant may do anything: delete files, signal processes, never end. So its run has a file system that is read-only but for one
folder, and processes of its own (unshare). Where the machine permits no such thing, `isolated` is False.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

MAPPED = """
mount -t tmpfs tmpfs /dev/shm && mount --bind "$1" "$1" && mount -o remount,bind,ro / && mount -t proc proc /proc &&
shift && exec "$@"
"""
DEADLINE = 10  # seconds that a collective waits for its ranks
CASE_TIMEOUT = 20
LATE = ("HANG", "time limit")  # a slow machine ends like this too


@functools.cache
def can_isolate() -> bool:
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", MAPPED, "sh", "/dev/shm", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@dataclass
class Ended:
    code: int | None  # None: it ran past the limit and was killed
    output: str
    seconds: float


def run(command: list[str], folder: Path, environment: dict[str, str], limit: float) -> Ended:
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
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=full, cwd=folder, start_new_session=True
        )
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
    by: str  # scenario, unit test
    name: str  # of the scenario, or of the test
    check: str  # the check that failed, or how the run ended


class Scenarios:
    """The scenarios of a program on one device."""

    what = "scenario"

    def __init__(self, program: Path, folder: Path, jobs: int, selection: list[str] = (), device: str = "cpu"):
        self.program, self.folder, self.jobs, self.selection, self.device = program, folder, jobs, selection, device
        self.kept_as = f"scenario-{device}"
        folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        command = [self.program, "list", "--json", *self.selection]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return sorted(row["scenario"] for row in _rows(listed))

    def run(self, names: list[str], environment: dict[str, str], limit: float) -> Catch | None:
        results = self.folder / "results.jsonl"
        results.unlink(missing_ok=True)
        command = [str(self.program), "run", *names, "--results", str(results), "--fail-fast", "-q", "--color", "never",
                   "--device", self.device, "--jobs", str(self.jobs), "--deadline", str(DEADLINE), "--timeout", str(CASE_TIMEOUT)]  # fmt: skip
        ended = run(command, self.folder, environment, limit)
        if ended.code == 0:
            return None
        rows = _rows(results.read_text(errors="replace")) if results.is_file() else []
        for row in rows:
            if row.get("kind") == "case" and row["status"] in ("FAIL", "XPASS", "HANG", "CRASH", "INVALID"):
                check = (row.get("failure") or {}).get("check")
                return Catch(self.what, row["scenario"], check if row["status"] == "FAIL" and check else row["status"])
        if ended.code is None:
            return Catch(self.what, names[0], "time limit")
        return Catch(self.what, names[0], f"exit code {ended.code}")


class UnitTests:
    """The suites of the programs of unit tests, as PROGRAM:SUITE."""

    what = "unit test"
    kept_as = "unit-test"

    def __init__(self, programs: list[Path], folder: Path):
        self.programs, self.folder = {one.name: one for one in programs}, folder
        folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        found = []
        for name, program in self.programs.items():
            listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
            suites = [line.split("#")[0].strip() for line in listed.splitlines() if line and not line.startswith(" ")]
            found += [f"{name}:{suite}" for suite in suites if suite.endswith(".")]
        return found

    def run(self, names: list[str], environment: dict[str, str], limit: float) -> Catch | None:
        for program in dict.fromkeys(name.split(":")[0] for name in names):
            own = [name.split(":")[1] + "*" for name in names if name.startswith(program + ":")]
            command = [str(self.programs[program]), f"--gtest_filter={':'.join(own)}", "--gtest_fail_fast", "--gtest_brief=1"]
            ended = run(command, self.folder, environment, limit)
            if ended.code == 0:
                continue
            failed = [line.split("]", 1)[1].split("(")[0].split(",")[0].strip()
                      for line in ended.output.splitlines() if line.startswith("[  FAILED  ]")]  # fmt: skip
            how = "assertion" if failed else "time limit" if ended.code is None else f"exit code {ended.code}"
            return Catch(self.what, failed[0] if failed else f"{program}:{own[0]}", how)
        return None


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
