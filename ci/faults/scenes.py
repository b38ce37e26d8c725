"""The commands whose calls are made to fail, each in a folder of its own with what it reads."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SUM = """\
scenario: {name}
summary: A sum over the ranks.
ranks: {{world_size: [2], launch: [{launch}]}}
device: [{device}]
matrix: {{turn: [1, 2]}}
steps:
  - let: {{x: "full([4], rank + 1)"}}
  - all_reduce: {{tensor: x, op: sum}}
  - expect_equal: [x, 3]
  - if: rank == 0
    steps:
      - expect_equal: [x, {expected}]
"""

CHECKPOINT = """\
scenario: checkpoint
summary: A model is saved, changed, and loaded again; a value goes through a file.
ranks: {world_size: [2], launch: [process]}
device: [cpu]
steps:
  - seed: 42
  - model: Linear(4, 6)
    as: model
  - fully_shard: model
  - save_checkpoint: {folder: saved, state: {model: model, step: 1}}
  - assign: {to: parameters(model), value: 5}
  - save_checkpoint: {folder: saved, state: {model: model, step: 2}, overwrite: true, async: true}
    as: saving
  - wait: saving
  - assign: {to: parameters(model), value: 6}
  - load_checkpoint: {folder: saved, state: {model: model, step: 0}}
    as: loaded
  - expect: loaded.values.step == 2
  - expect_equal: [model.weight.local, 5]
"""


@dataclass(frozen=True)
class Scene:
    name: str
    commands: tuple[tuple[str, ...], ...]  # run at once; {folder} is the scene's folder, {page} the folder of the pages
    prepare: Callable[[Path, Callable], None]
    variables: dict[str, str] = field(default_factory=dict)
    exit_code: int = 0  # without a fault
    short_writes: bool = True  # whether writes also fail half-way

SCHEDULED = """\
scenario: scheduled
summary: A save on a thread of its own under a schedule.
ranks: {world_size: [2], launch: [thread]}
device: [sim]
steps:
  - let: {x: "ones(4)", y: "zeros(4)"}
  - save_checkpoint: {folder: saved, state: {x: x}, async: true}
    as: saving
  - wait: saving
  - load_checkpoint: {folder: saved, state: {x: y}}
  - expect_equal: [y, x]
"""


def _home(folder: Path) -> Path:
    """A home with few scenarios, so that few calls search it."""
    home = folder / "home"
    (home / "scenarios" / "inner").mkdir(parents=True)
    (home / "scenarios" / "inner" / "other.yaml").write_text(
        SUM.format(name="inner/other", launch="process", device="cpu", expected=3), encoding="utf-8"
    )
    (home / "reports").symlink_to(ROOT / "reports")
    return home


def _scenario(name: str, text: str) -> Callable[[Path, Callable], None]:
    def prepare(folder: Path, _run: Callable) -> None:
        _home(folder)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")

    return prepare


def _sum(name: str, launch: str = "process", device: str = "cpu", expected: int = 3) -> Callable[[Path, Callable], None]:
    return _scenario(name, SUM.format(name=name, launch=launch, device=device, expected=expected))


def _results(folder: Path, run: Callable) -> None:
    """Two results files of earlier runs: one that passed, one that failed."""
    for name, expected in (("good", 3), ("bad", 4)):
        target = folder / name
        target.mkdir()
        _sum("sums", expected=expected)(target, run)
        run(["run", f"{target}/sums.yaml", "--results", f"{folder}/{name}.jsonl"], folder, {"LOCKSTEP_HOME": f"{target}/home"})
        shutil.rmtree(target)
    _home(folder)


def _saved(folder: Path, run: Callable) -> None:
    """The checkpoints of an earlier run."""
    _scenario("checkpoint", CHECKPOINT)(folder, run)
    run(["run", f"{folder}/checkpoint.yaml", "--files", f"{folder}/kept"], folder, {"LOCKSTEP_HOME": f"{folder}/home"})
    shutil.move(folder / "kept" / "case-1" / "saved", folder / "saved")
    shutil.rmtree(folder / "kept")


RUN = ("run", "--jobs", "1", "--deadline", "3", "--timeout", "6", "--progress", "never", "--color", "never")
RESULTS = ("--results", "{folder}/out/results.jsonl", "--junit", "{folder}/out/junit.xml")
KEPT = ("--timeline", "{folder}/out/timeline", "--trace-bits", "{folder}/out/bits", "--files", "{folder}/out/files")


def all_scenes() -> list[Scene]:
    return [
        Scene("list", (("list", "{folder}/sums.yaml", "inner/other"),), _sum("sums")),
        Scene("run", ((*RUN, "{folder}/sums.yaml", *RESULTS),), _sum("sums")),
        Scene("run_failing", ((*RUN, "{folder}/sums.yaml", *RESULTS, *KEPT),), _sum("sums", "thread", "sim", 4), exit_code=1),
        # Both cases run in one process.
        Scene("run_series", ((*RUN, "{folder}/sums.yaml", *RESULTS),), _sum("sums", "thread", "cuda"), {"LOCKSTEP_CUDA": "stand-in"}),
        Scene("run_checkpoint", ((*RUN, "{folder}/checkpoint.yaml", *RESULTS, "--files", "{folder}/out/files"),),
              _scenario("checkpoint", CHECKPOINT)),  # fmt: skip
        Scene("run_scheduled", ((*RUN, "{folder}/scheduled.yaml", "--schedule", "random:1", *RESULTS),),
              _scenario("scheduled", SCHEDULED)),  # fmt: skip
        Scene("run_hosts", tuple((*RUN, "{folder}/sums.yaml", *RESULTS) for _ in range(2)), _sum("sums"),
              {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCKSTEP_HOSTS": "ranks", "LOCKSTEP_LINK": "tcp",
               "LOCKSTEP_CONNECT_SECONDS": "4"}),  # fmt: skip
        Scene("compare", (("compare", "{folder}/good.jsonl", "{folder}/bad.jsonl"),), _results, exit_code=1),
        Scene("report", (("report", "{folder}/good.jsonl", "-o", "{folder}/out/page"),), _results),
        Scene("checkpoint_verify", (("checkpoint", "verify", "{folder}/saved"),), _saved),
        Scene("checkpoint_diff", (("checkpoint", "diff", "{folder}/saved", "{folder}/saved"),), _saved),
        Scene("checkpoint_show", (("checkpoint", "show", "{folder}/saved"),), _saved),
        Scene("checkpoint_export", (("checkpoint", "export", "{folder}/saved", "-o", "{folder}/out/all.safetensors"),), _saved),
    ]


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def environment_of(scene: Scene, folder: Path, process: int, port: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LOCKSTEP_PYTHON") if name in os.environ}
    given = {"OPENBLAS_NUM_THREADS": "1", "LOCKSTEP_RESTARTED": "1", "TMPDIR": f"{folder}/tmp", "LOCKSTEP_HOME": f"{folder}/home"}
    several = {"RANK": str(process), "MASTER_PORT": port} if len(scene.commands) > 1 else {}
    return kept | given | scene.variables | several
