#!/usr/bin/env python3
"""Compiles every header on its own, included twice: a header must include what it uses, and guard against a second inclusion.

    check_headers.py [ROOT]

A header is not compiled again while its text and the text of all project headers it includes are unchanged. The stamps of passed
headers lie in ROOT/build/header-check. CXX names the compiler (g++). Exits with 1, after the compiler's message, when a header fails.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent))
from includes import includes_of, source_files  # noqa: E402

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
# Where Debian keeps the headers that internal headers may include.
SYSTEM_FOLDERS = [
    "/usr/include/trilinos",
    "/usr/include/x86_64-linux-gnu/openblas-pthread",
    "/usr/lib/x86_64-linux-gnu/openmpi/include",
]


class Headers:
    """The headers below a root, and what each includes, directly or not."""

    def __init__(self, root: Path):
        self.root = root
        self._texts: dict[str, str] = {}
        self._closures: dict[str, set[str]] = {}

    def text(self, path: str) -> str:
        if path not in self._texts:
            file = self.root / path
            self._texts[path] = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        return self._texts[path]

    def closure(self, path: str) -> set[str]:
        if path not in self._closures:
            seen: set[str] = set()
            waiting = [path]
            while waiting:
                current = waiting.pop()
                if current in seen:
                    continue
                seen.add(current)
                waiting += [include.target for include in includes_of(self.text(current)) if include.quoted]
            self._closures[path] = seen
        return self._closures[path]

    def key(self, path: str, salt: str) -> str:
        digest = hashlib.sha256(salt.encode())
        for name in sorted(self.closure(path)):
            digest.update(f"\0{name}\0{self.text(name)}".encode("utf-8", "replace"))
        return f"{digest.hexdigest()[:32]}"


def compile_twice(compiler: str, root: Path, path: str) -> str | None:
    """The compiler's message when the header does not stand on its own, else None."""
    source = f'#include "{path}"\n#include "{path}"\n'
    command = [compiler, *FLAGS, f"-I{root}", *(f"-isystem{folder}" for folder in SYSTEM_FOLDERS), "-x", "c++", "-"]
    result = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
    return None if result.returncode == 0 else result.stderr


def failures_of(
    keys: dict[str, str], paths: list[str], stamps: Path, check_one: Callable[[str], str | None]
) -> dict[str, str]:
    """The messages of `check_one` by path, for each path that fails. A path that passes leaves a stamp named by its key (a digest
    of its content) and is skipped while the stamp exists. Stamps of contents that no longer exist are removed."""
    stamps.mkdir(parents=True, exist_ok=True)
    unchecked = [path for path in paths if not (stamps / keys[path]).exists()]
    failures: dict[str, str] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for path, message in zip(unchecked, pool.map(check_one, unchecked)):
            if message is None:
                (stamps / keys[path]).touch()
            else:
                failures[path] = message
    for stamp in stamps.iterdir():
        if stamp.name not in keys.values():
            stamp.unlink()
    return failures


def check(root: Path, stamps: Path, compiler: str) -> dict[str, str]:
    """The messages of the headers that fail, by path."""
    headers = Headers(root)
    version = subprocess.run([compiler, "--version"], text=True, capture_output=True, check=True).stdout.splitlines()[0]
    salt = " ".join([version, *FLAGS])
    paths = [file.relative_to(root).as_posix() for file in source_files(root) if file.suffix == ".hpp"]
    keys = {path: headers.key(path, salt) for path in paths}
    return failures_of(keys, paths, stamps, lambda path: compile_twice(compiler, root, path))


def main(arguments: list[str]) -> int:
    root = Path(arguments[0] if arguments else Path(__file__).resolve().parent.parent).resolve()
    failed = check(root, root / "build" / "header-check", os.environ.get("CXX", "g++"))
    for path, message in failed.items():
        print(f"{path}: does not stand on its own, included twice:\n{message}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
