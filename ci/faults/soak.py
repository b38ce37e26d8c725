"""Random damage to running programs: ranks and launchers are killed and stopped, disks are full. Then: pauses that must not matter."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sandbox import GRACE_S, adopt_orphans, reap_orphans, shared_memory  # noqa: E402
from scenes import CHECKPOINT, ROOT  # noqa: E402

PROGRAM = Path(os.environ.get("LOCKSTEP_PROGRAM", ROOT / "build" / "bin" / "lockstep")).resolve()
DEADLINE_S = 1.0  # of a collective
TIMEOUT_S = 3.0  # of a case
LONGEST_S = 30.0  # of a run
PAUSE_SHARE = 0.8  # of the deadline

STEADY = """\
scenario: steady
summary: Sums without end.
ranks: {{world_size: [{ranks}], launch: [{launch}]}}
device: [{device}]
steps:
  - let: {{x: "full([16], rank + 1)"}}
  - repeat: {times}
    steps:
      - let: {{y: "x + 0"}}
      - all_reduce: {{tensor: y, op: sum}}
      - delay: {{ms: {ms}, where: host}}
  - expect_equal: [y, {total}]
"""

COUNTED = """\
scenario: counted
summary: Many sums, each of them checked.
ranks: {{world_size: [{ranks}], launch: [process]}}
device: [cpu]
matrix: {{part: {parts}}}
steps:
  - let: {{x: "full([16], rank + 1)"}}
  - repeat: {times}
    steps:
      - let: {{y: "x + 0"}}
      - all_reduce: {{tensor: y, op: sum}}
  - expect_equal: [y, {total}]
"""


@dataclass
class Outcome:
    kind: str
    seed: int
    injected: bool = False
    problems: list[str] = field(default_factory=list)
    culprit: bool | None = None  # whether the right rank was named; None: nobody is to blame
    said: str = ""


class Run:
    """A running program in a folder of its own."""

    def __init__(self, folder: Path, text: str, name: str, *options: str, place: Path | None = None, timeout: float = TIMEOUT_S):
        self.folder = folder
        self.place = place or folder  # of TMPDIR and results
        for each in ("home/scenarios", "tmp", "out"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        for each in ("tmp", "out"):
            (self.place / each).mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        self.results = self.place / "out" / "results.jsonl"
        self.environment = os.environ | {
            "OPENBLAS_NUM_THREADS": "1", "LOCKSTEP_HOME": str(folder / "home"), "TMPDIR": str(self.place / "tmp"),
        }  # fmt: skip
        self.command = [str(PROGRAM), "run", str(folder / f"{name}.yaml"), "--results", str(self.results), "--jobs", "1",
                        "--deadline", str(DEADLINE_S), "--timeout", str(timeout), "--progress", "never", "--color", "never",
                        *options]  # fmt: skip
        self.log = folder / "log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self.environment, start_new_session=True
            )

    def children(self) -> list[int]:
        try:
            return [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text("ascii").split()]
        except OSError:
            return []

    def wait_for_ranks(self, num: int) -> list[int]:
        """The processes of the ranks, in order of ranks; empty if the program ends first."""
        deadline = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < deadline:
            # The guardian is the first child, before the folder of the case exists.
            ranks = self.children()[1:]
            if len(ranks) == num and any((self.place / "tmp").glob("lockstep-run-*/case-*")):
                return ranks
            time.sleep(0.002)
        return []

    def wait(self, seconds: float = LONGEST_S) -> int | None:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def rows(self) -> list[dict]:
        if not self.results.exists():
            return []
        return [json.loads(line) for line in self.results.read_text(encoding="utf-8").splitlines()]

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def case_of(run: Run) -> dict:
    return next((row for row in run.rows() if row["kind"] == "case"), {})


def check_end(run: Run, outcome: Outcome, before: set[str], codes: set[int]) -> None:
    code = run.wait()
    if code is None:
        outcome.problems.append("hang")
    elif code not in codes:
        outcome.problems.append(f"exit code {code}, not {sorted(codes)}")
    left = reap_orphans(GRACE_S) + [f"shared memory {name}" for name in sorted(shared_memory() - before)]
    left += [f"folder {path.name}" for path in (run.place / "tmp").iterdir()]
    outcome.problems += [f"left: {each}" for each in left]
    try:
        rows = run.rows()
        if code in (0, 1, 3, 130) and rows and rows[-1].get("exit_code") != code:
            outcome.problems.append(f"the summary says {rows[-1].get('exit_code')}, the program {code}")
    except ValueError as error:
        outcome.problems.append(f"results that cannot be read: {error}")


def steady(random_: random.Random, folder: Path, times: int, launch: str | None = None) -> tuple[Run, int, list[int], str]:
    ranks = random_.choice((2, 2, 3, 4))
    launch = launch or random_.choice(("process", "process", "thread"))
    device = random_.choice(("cpu", "sim"))
    total = ranks * (ranks + 1) // 2
    text = STEADY.format(ranks=ranks, launch=launch, device=device, times=times, ms=2, total=total)
    run = Run(folder, text, "steady")
    return run, ranks, run.wait_for_ranks(ranks if launch == "process" else 1), launch


def kill_a_rank(random_: random.Random, folder: Path, outcome: Outcome) -> Run:
    run, ranks, pids, launch = steady(random_, folder, 1000)
    time.sleep(random_.uniform(0, 0.3))
    rank = random_.randrange(ranks) if launch == "process" else 0
    outcome.injected = bool(pids) and send(pids[rank], signal.SIGKILL)
    run.wait()
    row = case_of(run)
    outcome.culprit = row.get("status") == "CRASH" and (launch == "thread" or row["failure"]["rank"] == rank)
    return run


def stop_a_rank(random_: random.Random, folder: Path, outcome: Outcome) -> Run:
    run, ranks, pids, _launch = steady(random_, folder, 1000, "process")
    time.sleep(random_.uniform(0, 0.3))
    rank = random_.randrange(ranks)
    outcome.injected = bool(pids) and send(pids[rank], signal.SIGSTOP)
    run.wait()
    row = case_of(run)
    failure = row.get("failure") or {}
    named = failure.get("rank") == rank or f"rank {rank} " in str(failure.get("message", ""))
    outcome.culprit = row.get("status") in ("HANG", "CRASH", "FAIL") and named
    return run


def pause_a_rank(random_: random.Random, folder: Path, outcome: Outcome) -> Run:
    run, ranks, pids, launch = steady(random_, folder, 40)
    time.sleep(random_.uniform(0, 0.1))
    rank = random_.randrange(ranks) if launch == "process" else 0
    if pids and send(pids[rank], signal.SIGSTOP):
        outcome.injected = True
        time.sleep(random_.uniform(0.05, PAUSE_SHARE) * DEADLINE_S)
        send(pids[rank], signal.SIGCONT)
    return run


def pause_the_launcher(random_: random.Random, folder: Path, outcome: Outcome) -> Run:
    run, _ranks, pids, _launch = steady(random_, folder, 40)
    if pids and send(run.process.pid, signal.SIGSTOP):
        outcome.injected = True
        time.sleep(random_.uniform(0.05, 1.0))
        send(run.process.pid, signal.SIGCONT)
    return run


def kill_the_launcher(random_: random.Random, folder: Path, outcome: Outcome) -> Run:
    run, _ranks, pids, _launch = steady(random_, folder, 1000)
    time.sleep(random_.uniform(0, 0.2))
    outcome.injected = bool(pids) and send(run.process.pid, signal.SIGKILL)
    run.wait()
    outcome.problems += [f"left: {each}" for each in reap_orphans(GRACE_S)]
    run.rows()
    # The folder of a killed run is removed by the next run.
    return Run(folder, COUNTED.format(ranks=2, parts=[1], times=1, total=3), "counted")


def kill_the_guardian(random_: random.Random, folder: Path, outcome: Outcome) -> Run:
    run, _ranks, pids, _launch = steady(random_, folder, 20)
    outcome.injected = bool(pids) and send(run.children()[0], signal.SIGKILL)
    return run


def interrupt(random_: random.Random, folder: Path, outcome: Outcome) -> Run:
    run, _ranks, pids, _launch = steady(random_, folder, 1000)
    time.sleep(random_.uniform(0, 0.2))
    outcome.injected = bool(pids) and send(run.process.pid, random_.choice((signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)))
    return run


def fill_the_disk(random_: random.Random, folder: Path, outcome: Outcome) -> Run:
    """A file system with little space holds the temporary folder and the results."""
    place = folder / "disk"
    place.mkdir()
    pages = random_.randrange(4, 30)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pages * 4}k", "tmpfs", str(place)], check=True)
    run = Run(folder, CHECKPOINT, "checkpoint", "--junit", str(place / "out" / "junit.xml"), place=place)
    code = run.wait()
    outcome.injected = True
    if code != 0:
        outcome.culprit = "No space left on device" in run.said() or "no space" in json.dumps(run.rows()).lower()
    return run


DAMAGE = {
    kill_a_rank: (5, {1}), stop_a_rank: (3, {1}), pause_a_rank: (5, {0}), pause_the_launcher: (2, {0}), kill_the_launcher: (3, {0}),
    kill_the_guardian: (2, {0}), interrupt: (2, {130}), fill_the_disk: (3, {0, 1, 3}),
}  # fmt: skip


def injure(job: tuple[int, int, bool]) -> Outcome:
    seed, number, has_mounts = job
    random_ = random.Random(f"{seed} {number}")
    known = [each for each in DAMAGE if has_mounts or each is not fill_the_disk]
    damage = random_.choices(known, [DAMAGE[each][0] for each in known])[0]
    outcome = Outcome(damage.__name__.replace("_", " "), number)
    before = shared_memory()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        run = damage(random_, folder, outcome)
        check_end(run, outcome, before, DAMAGE[damage][1])
        outcome.said = run.said()[-3000:]
    finally:
        if (folder / "disk").is_dir():
            subprocess.run(["umount", str(folder / "disk")], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=False, capture_output=True)
        return done.returncode == 0 and subprocess.run(["umount", folder], check=False).returncode == 0


def pauses(seed: int, collectives: int, jobs_ranks: int = 4) -> tuple[int, int, float, list[str]]:
    """Runs so many sums while ranks are paused in turn. Returns their number, the pauses, the longest pause, and problems."""
    random_ = random.Random(seed)
    parts = max(1, collectives // 5000)
    total = jobs_ranks * (jobs_ranks + 1) // 2
    text = COUNTED.format(ranks=jobs_ranks, parts=list(range(parts)), times=5000, total=total)
    longest, num, problems = 0.0, 0, []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        run = Run(Path(folder), text, "counted", "--no-order-check", timeout=600)
        while run.process.poll() is None:
            time.sleep(random_.uniform(0.01, 0.1))
            ranks = run.children()[1:]
            if len(ranks) < 2:  # between two cases
                continue
            pid = random_.choice(ranks)
            began = time.monotonic()
            if not send(pid, signal.SIGSTOP):
                continue
            time.sleep(max(0.0, PAUSE_SHARE * DEADLINE_S))
            send(pid, signal.SIGCONT)
            longest = max(longest, time.monotonic() - began)
            num += 1
        rows = [row for row in run.rows() if row["kind"] == "case"]
        for row in rows:
            if row["status"] != "PASS":
                problems.append(f"{row['case']}: {row['status']} {(row.get('failure') or {}).get('message')}")
        done = sum(line["count"] for row in rows for line in row["collectives"] if line["operation"] == "all_reduce")
        problems += [f"left: {each}" for each in reap_orphans(GRACE_S)]
    return done, num, longest, problems


def say(line: str) -> None:
    print(f"== {line}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/soak.sh", description=__doc__)
    parser.add_argument("seconds", type=float, metavar="SECONDS", help="start no further injection after this time")
    parser.add_argument("seed", type=int, nargs="?", metavar="SEED", help="default: drawn, and printed")
    parser.add_argument("--injections", type=int, default=1_000_000, help="at most so many")
    parser.add_argument("--number", type=int, help="only this injection of the seed, with its output")
    parser.add_argument("--collectives", type=int, default=0, metavar="N", help="also run N collectives while ranks are paused")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once (%(default)s)")
    return parser.parse_args()


def injure_all(given: argparse.Namespace, seed: int) -> bool:
    has_mounts = can_mount()
    if not has_mounts:
        say("full disks are left out: this user may not mount a file system")
    numbers = [given.number] if given.number is not None else range(given.injections)
    began = time.monotonic()
    jobs = ((seed, number, has_mounts) for number in numbers if time.monotonic() - began < given.seconds)
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    total: collections.Counter = collections.Counter()
    with multiprocessing.Pool(given.jobs, adopt_orphans) as pool:
        for outcome in bounded(pool, jobs, given.jobs):
            for count in (counts[outcome.kind], total):
                count["injected" if outcome.injected else "missed"] += 1
                count["wrong"] += bool(outcome.problems) and outcome.injected
                if outcome.culprit is not None and outcome.injected:
                    count["to be named"] += 1
                    count["named"] += outcome.culprit
            if outcome.injected and (outcome.problems or outcome.culprit is False or given.number is not None):
                blame = " the culprit is not named;" if outcome.culprit is False else ""
                print(f"{outcome.kind} (--number {outcome.seed}):{blame} {'; '.join(outcome.problems)}\n{outcome.said}", flush=True)
    for kind, count in sorted(counts.items()):
        say(f"{kind}: " + ", ".join(f"{number} {name}" for name, number in count.items()))
    named, to_be_named = total["named"], total["to be named"]
    say(f"{total['injected']} injections in {time.monotonic() - began:.0f} s, {total['wrong']} wrong, "
        f"the culprit named in {named} of {to_be_named}")  # fmt: skip
    return total["wrong"] == 0 and named >= 0.99 * to_be_named


def bounded(pool, jobs, num: int):
    """The outcomes of the jobs, of which few are drawn ahead, so that the clock stops them."""
    waiting: collections.deque = collections.deque()
    for job in jobs:
        waiting.append(pool.apply_async(injure, (job,)))
        if len(waiting) > num:
            yield waiting.popleft().get()
    while waiting:
        yield waiting.popleft().get()


def main() -> int:
    given = arguments()
    seed = random.randrange(1 << 30) if given.seed is None else given.seed
    say(f"seed {seed}")
    with contextlib.ExitStack() as stack:
        tempfile.tempdir = stack.enter_context(tempfile.TemporaryDirectory(prefix="lockstep-soak-"))
        is_well = injure_all(given, seed) if given.seconds > 0 else True
        if given.collectives:
            adopt_orphans()
            done, num, longest, problems = pauses(seed, given.collectives)
            for problem in problems:
                print(problem)
            say(f"{done} collectives, {num} pauses of at most {longest:.2f} s with a deadline of {DEADLINE_S} s, "
                f"{len(problems)} alarms")  # fmt: skip
            is_well = is_well and not problems and done >= given.collectives
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
