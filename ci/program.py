"""The program under test, as the tests of ci/ run it.

LOCKSTEP_PROGRAM names the program (build/bin/lockstep of this repository when unset).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

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


def refused(result: subprocess.CompletedProcess, place: str) -> str:
    said = result.stdout + result.stderr
    assert result.returncode == 2, said
    assert place in said, said
    return said
