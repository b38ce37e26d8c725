"""The build of the mutants: a copy of the working tree with mutated sources, in a build folder of its own.

    tree = Tree(root, root / "build-mutants")
    mutants = tree.build(folders, jobs)        # compiles; a mutant that does not compile is left out

Files of the folder: source/ (the copy), source/build/ (of CMake), flags.cmake (of mutated sources), points.json (cache of the
points), numbers.json (the first number of each source, kept so that a change of one source renumbers no other), dropped.json
(mutants that do not compile). A source that was mutated once stays mutated in the folder.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import defects as defects_module
import points as points_module
import probes as probes_module
from points import Point, find_points, parser_arguments
from rewrite import Rewritten, rewrite

HERE = Path(__file__).resolve().parent
SWITCH = {"switch.hpp": "engine/core/mutants_switch.hpp", "switch.cpp": "engine/core/mutants_switch.cpp"}
# The configuration of the preset release, so that a compiler cache has what is not mutated.
CONFIGURE = ["-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DLOCKSTEP_NATIVE=ON", "-DLOCKSTEP_TESTS=ON"]
MUTATED_FLAGS = "-O1;-w;-Wno-narrowing"  # the switch is no constant: {0, 1} narrows where it stands
# The operands that unit tests and benchmarks give to the operations, the stand-ins of CUDA and NCCL, the teams in which tests and
# stand-ins run kernels, and what `lockstep bench` alone calls.
TEST_INPUTS = re.compile(
    r"/(op_registry[^/]*|recording_(calls|memory)|(nccl_|cublas_)?stand_in|nccl_(mail|step)|teams_(in_turn|on_host)|bench_support)\.cpp$"
)
BLOCK = 100  # numbers are given to sources in blocks of this size
ERROR_AT = re.compile(r"^([^:\s][^:\n]*):(\d+):(\d+):\s+(?:fatal )?(error|required|in .constexpr)")


@dataclass
class Mutant:
    number: int
    file: str
    line: int
    function: str
    operator: str
    before: str  # the stretch of the source
    after: str
    begin: int
    end: int
    occurrence: int  # among the mutants of the same function, operator and texts

    @property
    def key(self) -> str:
        texts = [one_line(self.before), one_line(self.after)]
        return "|".join([self.file, self.function, self.operator, *texts, str(self.occurrence)])

    @property
    def folder(self) -> str:
        return "/".join(self.file.split("/")[:2])


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def read_json(path: Path, otherwise):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return otherwise


def write_if_changed(path: Path, data: bytes) -> None:
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _points_of(job: tuple[str, list[str]]) -> list[dict]:
    return [one.to_json() for one in find_points(*job)]


class Tree:
    def __init__(self, root: Path, folder: Path):
        self.root, self.folder = root, folder
        self.source, self.binary = folder / "source", folder / "source" / "build"
        self.mutated = self.source  # where the mutated sources stand
        self.dropped: set[str] = set(read_json(folder / "dropped.json", []))
        self.texts: dict[str, str] = {}  # of the sources, as they were at first: the working tree may change meanwhile
        self.points: dict[str, list[Point]] = {}
        self.mutants: dict[str, list[Mutant]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    # ---- sources

    def text_of(self, file: str) -> str:
        if file not in self.texts:
            self.texts[file] = (self.root / file).read_bytes().decode("latin-1")
        return self.texts[file]

    def tracked(self) -> list[str]:
        command = ["git", "-C", str(self.root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
        return sorted({one for one in listed if one and (self.root / one).is_file()})

    def selected(self, folders: list[str]) -> list[str]:
        def is_source(path: str) -> bool:
            return path.endswith(".cpp") and not path.endswith(("_test.cpp", "_bench.cpp", "_main.cpp")) and not TEST_INPUTS.search(path)

        return [one for one in self.tracked() if is_source(one) and one.startswith(tuple(f"{f.rstrip('/')}/" for f in folders))]

    def copy(self, mutated: set[str]) -> None:
        """Brings the copy up to date, but for the sources that stay mutated."""
        files = self.tracked()
        for path in files:
            if path not in mutated:
                write_if_changed(self.source / path, (self.root / path).read_bytes())
                shutil.copymode(self.root / path, self.source / path)
        for own, path in SWITCH.items():
            write_if_changed(self.source / path, (HERE / own).read_bytes())
        known = {*files, *SWITCH.values()}
        for path in self.source.rglob("*"):
            stale = path.is_file() and not path.is_relative_to(self.binary)
            if stale and str(path.relative_to(self.source)) not in known:
                path.unlink()

    def configure(self, mutated: list[str]) -> None:
        flags = self.folder / "flags.cmake"
        sources = "".join(f'  "{self.source / file}"\n' for file in mutated)
        text = f'set_source_files_properties(\n{sources}  PROPERTIES COMPILE_OPTIONS "{MUTATED_FLAGS}")\n'
        write_if_changed(flags, text.encode())
        if (self.binary / "build.ninja").exists():
            return
        command = ["cmake", "-S", self.source, "-B", self.binary, *CONFIGURE, f"-DCMAKE_PROJECT_INCLUDE={flags}"]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"mutants: cmake failed\n{result.stdout}{result.stderr}")

    # ---- points

    def compile_commands(self) -> Path:
        return self.binary / "compile_commands.json"

    def find(self, files: list[str], jobs: int) -> None:
        commands = {c["file"]: c["command"] for c in json.loads(self.compile_commands().read_text())}
        rules = "".join(Path(m.__file__).read_text() for m in (points_module, defects_module, probes_module))
        path = self.folder / "points.json"
        cache, wanted = read_json(path, {}), []
        digests = {}
        for file in files:
            digests[file] = hashlib.sha256(self.text_of(file).encode("latin-1") + rules.encode()).hexdigest()
            command = commands.get(str(self.source / file))
            if command is not None and cache.get(file, {}).get("digest") != digests[file]:
                include = str(self.root)
                arguments = parser_arguments(shlex.split(command.replace(str(self.source), include)))
                wanted.append((file, (str(self.root / file), arguments)))
        with multiprocessing.Pool(jobs) as pool:
            for (file, _), found in zip(wanted, pool.imap(_points_of, [job for _, job in wanted])):
                cache[file] = {"digest": digests[file], "points": found}
        path.write_text(json.dumps(cache))
        for file in files:
            if file in cache:
                self.points[file] = [Point.from_json(one) for one in cache[file]["points"]]

    def number(self) -> None:
        """Gives every mutant its number, and lists the mutants of each source."""
        path = self.folder / "numbers.json"
        blocks = read_json(path, {})
        free = max((one["first"] + one["size"] for one in blocks.values()), default=1)
        for file, found in self.points.items():
            count = sum(len(point.alternatives) for point in found)
            if blocks.get(file, {"size": -1})["size"] < count:
                size = -(-max(count, 1) // BLOCK) * BLOCK
                blocks[file] = {"first": free, "size": size}
                free += size
            self.mutants[file] = self._mutants_of(file, found, blocks[file]["first"])
        path.write_text(json.dumps(blocks))

    def _mutants_of(self, file: str, found: list[Point], number: int) -> list[Mutant]:
        text = self.text_of(file)
        seen: dict[str, int] = {}
        mutants = []
        for point in found:
            before = text[point.begin : point.end]
            for one in point.alternatives:
                mutant = Mutant(number, file, point.line, point.function, one.operator, before, one.text, point.begin, point.end, 0)
                first = mutant.key  # with occurrence 0
                mutant.occurrence = seen[first] = seen.get(first, -1) + 1
                mutants.append(mutant)
                number += 1
        return mutants

    def write(self, file: str) -> Rewritten:
        text = self.text_of(file)
        own = iter(self.mutants[file])
        numbers = []
        for point in self.points[file]:
            used = [next(own) for _ in point.alternatives]
            numbers.append([None if mutant.key in self.dropped else mutant.number for mutant in used])
        rewritten = rewrite(text, self.points[file], numbers)
        write_if_changed(self.mutated / file, rewritten.text.encode("latin-1"))
        return rewritten

    # ---- compiling

    def build(self, folders: list[str], targets: list[str], jobs: int, say=print) -> list[Mutant]:
        files = self.selected(folders)
        before = [one for one in read_json(self.folder / "numbers.json", {}) if (self.root / one).is_file()]
        mutated = sorted({*files, *before})
        self.copy(set(mutated))
        for file in mutated:
            if not (self.source / file).exists():
                write_if_changed(self.source / file, (self.root / file).read_bytes())
        self.configure(mutated)
        self.find(mutated, jobs)
        self.number()
        written = {file: self.write(file) for file in self.points}
        self.compile_until_it_succeeds(written, targets, jobs, say)
        chosen = set(files)
        return [one for file in sorted(chosen & set(self.mutants)) for one in self.mutants[file] if one.key not in self.dropped]

    def compile_until_it_succeeds(self, written: dict[str, Rewritten], targets: list[str], jobs: int, say=print) -> None:
        """Compiles without the mutants that do not compile."""
        while True:
            errors = self._compile(targets, jobs)
            if errors is None:
                break
            dropped = self._drop(errors, written)
            if not dropped:
                sys.exit(f"mutants: the build failed for another reason than a mutant; see the log in {self.folder}")
            say(f"{sum(dropped.values())} mutants do not compile; building {len(dropped)} sources again")
            (self.folder / "dropped.json").write_text(json.dumps(sorted(self.dropped)))
            for file in dropped:
                written[file] = self.write(file)

    def _compile(self, targets: list[str], jobs: int) -> list[tuple[str, int, int]] | None:
        """The places of the errors in mutated sources; nothing when the build succeeded."""
        command = ["ninja", "-C", str(self.binary), "-k", "0", "-j", str(jobs), *targets]
        environment = {**os.environ, "LC_ALL": "C"}
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        (self.folder / "ninja.log").write_text(result.stdout + result.stderr)
        if result.returncode == 0:
            return None
        found = []
        for line in result.stdout.splitlines():
            match = ERROR_AT.match(line)
            if not match:
                continue
            path = Path(os.path.normpath(self.binary / match[1]))  # a compiler cache makes paths relative
            if path.is_relative_to(self.source):
                found.append((str(path.relative_to(self.source)), int(match[2]), int(match[3])))
        return found

    def _drop(self, errors: list[tuple[str, int, int]], written: dict[str, Rewritten]) -> dict[str, int]:
        """Leaves out the mutants at the errors; where there is none, those of the function, or of the source."""
        dropped: dict[str, int] = {}
        aimless: dict[str, list[int]] = {}
        for file, line, column in errors:
            if file not in written:
                continue
            offset = _offset(written[file].text, line, column)
            numbers = set(written[file].mutants_at(offset))
            keys = {one.key for one in self.mutants[file] if one.number in numbers} - self.dropped
            self.dropped |= keys
            if keys:
                dropped[file] = dropped.get(file, 0) + len(keys)
            elif not numbers:
                aimless.setdefault(file, []).append(offset)
        for file, offsets in aimless.items():
            if file in dropped or not written[file].stretches:
                continue
            near = {_nearest(written[file], offset) for offset in offsets}
            keys = {one.key for one in self.mutants[file] if one.function in
                    {m.function for m in self.mutants[file] if m.number in near}} - self.dropped  # fmt: skip
            keys = keys or {one.key for one in self.mutants[file]} - self.dropped
            self.dropped |= keys
            if keys:
                dropped[file] = len(keys)
        return dropped


def _offset(text: str, line: int, column: int) -> int:
    at = 0
    for _ in range(line - 1):
        at = text.index("\n", at) + 1
    return at + column - 1


def _nearest(rewritten: Rewritten, offset: int) -> int:
    before = [one for one in rewritten.stretches if one[0] <= offset] or rewritten.stretches
    return max(before, key=lambda one: one[0])[2][0]
