"""A failure at every point: each call for a file, memory, a process, a thread or a socket fails once, in a run of its own."""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from judge import judge, problems_of_files  # noqa: E402
from points import Point, build_library, points_of  # noqa: E402
from sandbox import Ran, Sandbox, adopt_orphans  # noqa: E402
from scenes import ROOT, Scene, all_scenes  # noqa: E402

_state: dict = {}  # of a worker: its sandboxes and the clean runs


def say(line: str) -> None:
    print(f"== {line}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ci/faults.sh", description=__doc__)
    names = [scene.name for scene in all_scenes()]
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--sample", type=int, metavar="N", help="this many points of all, drawn by --seed; default: all")
    parser.add_argument("--seed", type=int, help="of the sample; default: drawn, and printed")
    parser.add_argument("--every-allocation", action="store_true",
                        help="let each allocation fail, and not the first at each place alone; take a sample")  # fmt: skip
    parser.add_argument("--calls", default="", help="only these calls, separated by commas, such as write,fsync")
    parser.add_argument("--at", metavar="TEXT", help="only points whose description contains this text; their output is shown")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once (%(default)s)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write one line of JSON per point")
    parser.add_argument("--show", action="store_true", help="show the output of each run that is wrong")
    given = parser.parse_args()
    for name in given.scenes:
        if name not in names:
            parser.error(f"unknown scene {name}; known are {', '.join(names)}")
    return given


def start_worker(scenes: list[Scene], program: Path, library: Path, every_allocation: bool, work: str) -> None:
    adopt_orphans()
    tempfile.tempdir = work
    _state["folder"] = Path(tempfile.mkdtemp(prefix="worker-"))
    for scene in scenes:
        box = Sandbox(scene, program, library, every_allocation)
        _state[scene.name] = (scene, box, box.run(_state["folder"] / f"clean-{scene.name}"))


def try_point(job: tuple[str, Point]) -> tuple[str, Point, str, list[str], str, list]:
    name, point = job
    scene, box, clean = _state[name]
    for _attempt in range(3):  # of processes that wait for each other, not every run makes the same calls
        folder = _state["folder"] / "run"
        ran: Ran = box.run(folder, point.key, point.reason, point.short)
        kind, problems = judge(scene, point, ran, clean)
        results = folder / "out" / "results.jsonl"
        said = f"exit codes {ran.exit_codes}\n{ran.said()}"
        if problems and results.exists():
            said += "\n" + results.read_text(encoding="utf-8", errors="replace")[:3000]
        shutil.rmtree(folder, ignore_errors=True)
        if kind != "unreached" or problems:
            break
    return name, point, kind, problems, said, ran.exit_codes


def count_points(scenes: list[Scene], program: Path, library: Path, every_allocation: bool) -> list[tuple[str, Point]]:
    adopt_orphans()
    jobs = []
    with tempfile.TemporaryDirectory(prefix="count-") as work:
        for scene in scenes:
            box = Sandbox(scene, program, library, every_allocation)
            ran = box.run(Path(work) / scene.name)
            box.close()
            wrong = ran.left + problems_of_files(ran.folder)
            if any(code != scene.exit_code for code in ran.exit_codes) or wrong or not ran.reached:
                say(f"{scene.name}: without a fault it ends with {ran.exit_codes} {wrong}\n{ran.said()}")
                sys.exit(3)
            points = points_of(ran.reached, ran.folder, scene.short_writes)
            say(f"{scene.name}: {len(points)} points, {ran.seconds:.2f} s without a fault")
            jobs += [(scene.name, point) for point in points]
    return jobs


def chosen_jobs(given: argparse.Namespace, jobs: list[tuple[str, Point]]) -> list[tuple[str, Point]]:
    calls = set(filter(None, given.calls.split(",")))
    jobs = [job for job in jobs if (not calls or job[1].call in calls) and (given.at is None or given.at in str(job[1]))]
    if given.sample is not None and given.sample < len(jobs):
        seed = random.randrange(1 << 30) if given.seed is None else given.seed
        say(f"a sample of {given.sample} of {len(jobs)} points; --seed {seed} repeats it")
        jobs = random.Random(seed).sample(jobs, given.sample)
    return jobs


def main() -> int:
    given = arguments()
    program = Path(os.environ.get("LOCKSTEP_PROGRAM", ROOT / "build" / "bin" / "lockstep")).resolve()
    library = build_library(Path(os.environ.get("LOCKSTEP_FAULTS_FOLDER", ROOT / "build" / "faults")), os.environ.get("CXX", "c++"))
    scenes = [scene for scene in all_scenes() if not given.scenes or scene.name in given.scenes]
    with tempfile.TemporaryDirectory(prefix="lockstep-faults-") as work:
        tempfile.tempdir = work
        return try_all(given, scenes, program, library)


def try_all(given: argparse.Namespace, scenes: list[Scene], program: Path, library: Path) -> int:
    began = time.monotonic()
    jobs = chosen_jobs(given, count_points(scenes, program, library, given.every_allocation))
    report = given.report.open("w", encoding="utf-8") if given.report else None
    kinds: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    wrong: list[tuple[str, Point, list[str], str]] = []
    with multiprocessing.Pool(given.jobs, start_worker, (scenes, program, library, given.every_allocation, tempfile.tempdir)) as pool:
        for name, point, kind, problems, said, codes in pool.imap_unordered(try_point, jobs, chunksize=4):
            kinds[name][kind] += 1
            if problems:
                kinds[name]["wrong"] += 1
                wrong.append((name, point, problems, said))
            if report:
                row = {"scene": name, "point": str(point), "class": kind, "problems": problems, "exit_codes": codes}
                report.write(json.dumps(row | ({"said": said} if problems else {})) + "\n")
            if given.at is not None or (given.show and problems):
                print(f"-- {name}: {point}: {kind} {problems}\n{said}\n")
    for name, point, problems, _said in sorted(wrong, key=lambda each: (each[0], each[1])):
        print(f"{name}: {point}: {'; '.join(problems)}")
    for name, counts in kinds.items():
        say(f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    say(f"{len(jobs)} points in {time.monotonic() - began:.0f} s, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
