#!/usr/bin/env python3
"""Runs clang-tidy with the checks of .clang-tidy over the sources that are not tests.

    check_tidy.py [ROOT]            sources that differ from the main branch, committed or not
    check_tidy.py [ROOT] --all      every source

A source takes about 8 s. The main branch is origin/main, or main when there is no such remote branch; on the main branch itself the
last commit is checked. LOCKSTEP_BASE names another commit to compare with. Findings in headers count; a changed header is checked
through the source of its name, or through one source that includes it. A source is not checked again while its text and the text of
all project headers it includes are unchanged; the stamps lie in ROOT/build/tidy-check. CLANG_TIDY names the program. Exits with 1
when clang-tidy finds something, 3 when it is not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from check_headers import SYSTEM_FOLDERS, Headers, failures_of  # noqa: E402
from includes import SOURCE_FOLDERS, source_files  # noqa: E402

# No build is needed: these are the flags that change the meaning of the code, and definitions that the build would make.
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wno-unknown-warning-option", "-DFMT_SHARED"] + [
    f'-DLOCKSTEP_{name}=""' for name in ("VERSION", "SOURCE_DIR", "COMPILER")
]
NOT_CHECKED = ("_test.cpp", "_bench.cpp")  # macros of GoogleTest and Google Benchmark


def sources_of(root: Path) -> list[str]:
    paths = (file.relative_to(root).as_posix() for file in source_files(root))
    return sorted(path for path in paths if path.endswith(".cpp") and not path.endswith(NOT_CHECKED))


def git(root: Path, *arguments: str) -> str | None:
    ran = subprocess.run(["git", "-C", str(root), *arguments], text=True, capture_output=True, check=False)
    return ran.stdout.strip() if ran.returncode == 0 else None


def changed_files(root: Path) -> set[str]:
    """Files of the source folders that differ from the commit where the branch left the main branch; every file when git does not
    know that commit."""
    bases = [os.environ["LOCKSTEP_BASE"]] if "LOCKSTEP_BASE" in os.environ else ["origin/main", "main"]
    for base in bases:
        since = git(root, "merge-base", "HEAD", base)
        if since is None:
            continue
        if "LOCKSTEP_BASE" not in os.environ and since == git(root, "rev-parse", "HEAD"):
            since = git(root, "rev-parse", "--verify", "--quiet", "HEAD^") or since
        changed = git(root, "diff", "--name-only", "--diff-filter=d", since, "--", *SOURCE_FOLDERS)
        new = git(root, "ls-files", "--others", "--exclude-standard", "--", *SOURCE_FOLDERS)
        if changed is not None and new is not None:
            return set(changed.split()) | set(new.split())
    return {file.relative_to(root).as_posix() for file in source_files(root)}


def sources_showing(changed: set[str], sources: list[str], headers: Headers) -> list[str]:
    """The sources to check: the changed ones, and one source per changed header."""
    wanted = {source for source in sources if source in changed}
    for header in sorted(path for path in changed if path.endswith(".hpp")):
        if any(header in headers.closure(source) for source in wanted):
            continue
        own = header.removesuffix(".hpp") + ".cpp"
        including = [own] if own in sources else [source for source in sources if header in headers.closure(source)]
        wanted.update(including[:1])
    return sorted(wanted)


def check_source(program: str, root: Path, source: str) -> str | None:
    """The findings of clang-tidy in the source; None when it is clean."""
    command = [program, "--quiet", f"--config-file={root / '.clang-tidy'}", source, "--", *FLAGS, f"-I{root}"]
    command += [f"-isystem{folder}" for folder in SYSTEM_FOLDERS]
    ran = subprocess.run(command, cwd=root, text=True, capture_output=True, check=False)
    return None if ran.returncode == 0 else ran.stdout or ran.stderr


def check(root: Path, sources: list[str], stamps: Path, program: str) -> dict[str, str]:
    """The findings by path, for each source that is not clean."""
    headers = Headers(root)
    version = subprocess.run([program, "--version"], text=True, capture_output=True, check=True).stdout
    salt = " ".join([version, *FLAGS, (root / ".clang-tidy").read_text(encoding="utf-8")])
    keys = {source: headers.key(source, salt) for source in sources_of(root)}
    return failures_of(keys, sources, stamps, lambda source: check_source(program, root, source))


def main(arguments: list[str]) -> int:
    every = "--all" in arguments
    paths = [argument for argument in arguments if argument != "--all"]
    root = Path(paths[0] if paths else Path(__file__).resolve().parent.parent).resolve()
    program = os.environ.get("CLANG_TIDY", "clang-tidy")
    if shutil.which(program) is None:
        print("check_tidy: clang-tidy is missing; ci/setup.sh --tests installs it", file=sys.stderr)
        return 3
    sources = sources_of(root)
    if not every:
        sources = sources_showing(changed_files(root), sources, Headers(root))
    findings = check(root, sources, root / "build" / "tidy-check", program)
    for text in findings.values():
        print(text)
    if findings:
        print(f"check_tidy: {len(findings)} of {len(sources)} sources: {', '.join(findings)}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
