"""One run of a scene in a fresh folder, with or without a fault, and what it leaves behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from scenes import Scene, environment_of, free_port

PR_SET_CHILD_SUBREAPER = 36
LONGEST_S = 30.0  # of one run; every deadline in it is shorter
GRACE_S = 2.0  # for processes that end a moment after the program


@dataclass
class Ran:
    exit_codes: list[int | None]  # per command; None: it had not ended in time
    output: list[str]
    errors: list[str]
    reached: list[str]  # lines of the library's log
    left: list[str]  # processes and shared memory that outlived the program
    folder: Path
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def said(self) -> str:
        return "\n".join(self.output + self.errors)


def adopt_orphans() -> None:
    """Processes whose parent ends become children of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    me = os.getpid()
    found: list[int] = []
    for task in Path(f"/proc/{me}/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text(encoding="ascii").split()]
        except OSError:
            pass
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return "?"


def reap_orphans(seconds: float) -> list[str]:
    """Waits for the end of adopted processes. Kills and names those that remain."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] > 0:
                pass
        except ChildProcessError:
            return []
        left = _children()
        if not left:
            return []
        if time.monotonic() > deadline:
            named = [f"process {_name(pid)}" for pid in left]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            return named + reap_orphans(1.0)
        time.sleep(0.005)


def shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {each.name for each in folder.iterdir() if "lockstep" in each.name} if folder.is_dir() else set()


class Sandbox:
    """The template of a scene's folder, copied for every run."""

    def __init__(self, scene: Scene, program: Path, library: Path, every_allocation: bool = False):
        """`every_allocation`: each allocation of the program is a point, and not the first at each place alone."""
        self.scene, self.program, self.library, self.every_allocation = scene, program, library, every_allocation
        self.template = Path(tempfile.mkdtemp(prefix="template-"))
        scene.prepare(self.template, self._prepare_run)

    def _prepare_run(self, arguments: list[str], folder: Path, variables: dict[str, str]) -> None:
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | variables
        subprocess.run([self.program, *arguments], env=environment, cwd=folder, capture_output=True, check=False, timeout=60)

    def close(self) -> None:
        shutil.rmtree(self.template, ignore_errors=True)

    def run(self, folder: Path, point: str | None = None, reason: int = 0, short: bool = False) -> Ran:
        shutil.copytree(self.template, folder, symlinks=True)
        for name in ("tmp", "out"):
            (folder / name).mkdir()
        log = folder / "points"
        port = free_port()
        before = shared_memory()
        started, files = [], []
        began = time.monotonic()
        for number, command in enumerate(self.scene.commands):
            environment = environment_of(self.scene, folder, number, port)
            environment |= {"LD_PRELOAD": str(self.library), "FAULTS_LOG": str(log), "FAULTS_ROLE": f"p{number}"}
            if self.every_allocation:
                environment["FAULTS_EVERY_NEW"] = "1"
            if point is not None:
                environment |= {"FAULTS_AT": point, "FAULTS_ERRNO": str(reason)}
                if short:
                    environment["FAULTS_SHORT"] = "1"
            streams = [folder / f"stdout-{number}", folder / f"stderr-{number}"]
            with streams[0].open("wb") as output, streams[1].open("wb") as errors:
                started.append(
                    subprocess.Popen(
                        [str(self.program), *(word.format(folder=folder) for word in command)],
                        stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment, cwd=folder, start_new_session=True,
                    )  # fmt: skip
                )
            files.append(streams)
        codes: list[int | None] = []
        for process in started:
            try:
                codes.append(process.wait(max(0.1, began + LONGEST_S - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
                process.kill()
                process.wait()
        seconds = time.monotonic() - began
        left = reap_orphans(GRACE_S)
        left += [f"shared memory {name}" for name in sorted(shared_memory() - before)]
        texts = [[stream.read_text(encoding="utf-8", errors="replace") for stream in each] for each in files]
        reached = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return Ran(codes, [each[0] for each in texts], [each[1] for each in texts], reached, left, folder, seconds)
