#!/usr/bin/env python3
"""Runs clang-tidy with the checks of .clang-tidy over the sources that are not tests.

    check_tidy.py [ROOT]            those that changed since the branch left the main one, with what lies uncommitted
    check_tidy.py [ROOT] --all      every one

More than 40 that changed are left to --all, which is what such a change should be looked at with: a source takes some 8 s.
The main branch is origin/main, or main where there is no such remote branch; LOCKSTEP_BASE names another commit. What is said
about a header counts too; a header that changed is looked at through the source of its name, or one that includes it. A source
whose text, and the text of all project headers it includes, was clean before is not looked at again: the stamps lie in
ROOT/build/tidy-check. CLANG_TIDY names the program. Exits with 1 when something is found, 3 when there is no clang-tidy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from check_headers import SYSTEM_FOLDERS, Headers, looked_at_once  # noqa: E402
from includes import SOURCE_FOLDERS, source_files  # noqa: E402

# Nothing of a build is needed: these are the flags that matter to meaning, and stand-ins for what the build defines.
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wno-unknown-warning-option", "-DFMT_SHARED"] + [
    f'-DLOCKSTEP_{name}=""' for name in ("VERSION", "SOURCE_DIR", "COMPILER")
]
MOST_CHANGED = 40
NOT_LOOKED_AT = ("_test.cpp", "_bench.cpp")  # GoogleTest's and Google Benchmark's macros


def sources_of(root: Path) -> list[str]:
    paths = (file.relative_to(root).as_posix() for file in source_files(root))
    return sorted(path for path in paths if path.endswith(".cpp") and not path.endswith(NOT_LOOKED_AT))


def git(root: Path, *arguments: str) -> str | None:
    ran = subprocess.run(["git", "-C", str(root), *arguments], text=True, capture_output=True, check=False)
    return ran.stdout.strip() if ran.returncode == 0 else None


def changed_files(root: Path) -> set[str]:
    """Files of the source folders that differ from where the branch left the main one; all when that cannot be told."""
    bases = [os.environ["LOCKSTEP_BASE"]] if "LOCKSTEP_BASE" in os.environ else ["origin/main", "main"]
    for base in bases:
        since = git(root, "merge-base", "HEAD", base)
        if since is None:
            continue
        changed = git(root, "diff", "--name-only", "--diff-filter=d", since, "--", *SOURCE_FOLDERS)
        new = git(root, "ls-files", "--others", "--exclude-standard", "--", *SOURCE_FOLDERS)
        if changed is not None and new is not None:
            return set(changed.split()) | set(new.split())
    return {file.relative_to(root).as_posix() for file in source_files(root)}


def sources_showing(changed: set[str], sources: list[str], headers: Headers) -> list[str]:
    """The sources to look at: those that changed, and one for every header that did."""
    wanted = {source for source in sources if source in changed}
    for header in sorted(path for path in changed if path.endswith(".hpp")):
        if any(header in headers.closure(source) for source in wanted):
            continue
        own = header.removesuffix(".hpp") + ".cpp"
        including = [own] if own in sources else [source for source in sources if header in headers.closure(source)]
        wanted.update(including[:1])
    return sorted(wanted)


def look_at(program: str, root: Path, source: str) -> str | None:
    """What clang-tidy says of the source, None when nothing."""
    command = [program, "--quiet", f"--config-file={root / '.clang-tidy'}", source, "--", *FLAGS, f"-I{root}"]
    command += [f"-isystem{folder}" for folder in SYSTEM_FOLDERS]
    ran = subprocess.run(command, cwd=root, text=True, capture_output=True, check=False)
    return None if ran.returncode == 0 else ran.stdout or ran.stderr


def check(root: Path, sources: list[str], stamps: Path, program: str) -> dict[str, str]:
    """What is said of the sources that are not clean, by path."""
    headers = Headers(root)
    version = subprocess.run([program, "--version"], text=True, capture_output=True, check=True).stdout
    salt = " ".join([version, *FLAGS, (root / ".clang-tidy").read_text(encoding="utf-8")])
    keys = {source: headers.key(source, salt) for source in sources_of(root)}
    return looked_at_once(keys, sources, stamps, lambda source: look_at(program, root, source))


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
        if len(sources) > MOST_CHANGED:
            print(f"check_tidy: {len(sources)} sources changed, which is left to `ci/check.sh tidy-all`", file=sys.stderr)
            return 0
    said = check(root, sources, root / "build" / "tidy-check", program)
    for text in said.values():
        print(text)
    if said:
        print(f"check_tidy: {len(said)} of {len(sources)} sources: {', '.join(said)}", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
