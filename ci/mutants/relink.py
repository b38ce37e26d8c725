"""A build of the mutants of a few sources, from the release build: only these are compiled, and the programs linked again.

    tree = Relinked(root, root / "build-mutants")       # build/ is complete
    mutants = tree.build_sources(files, targets, jobs)

Files of the folder, beside those of Tree: few/mutated/ (the mutated sources and the switch), few/objects/, few/lib/, few/bin/, few/tests/.
The programs take copies of the static libraries in which the objects of mutated sources stand for the original ones.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tree import ERROR_AT, HERE, MUTATED_FLAGS, SWITCH, Mutant, Tree, write_if_changed


def draw(files: list[str], count: int, root: Path, random_: random.Random) -> list[str]:
    """This many of the files, the larger ones likelier, so that the mutants in them stand for those of all."""
    left, drawn = dict((file, (root / file).stat().st_size) for file in sorted(files)), []
    while left and len(drawn) < count:
        one = random_.choices(list(left), weights=list(left.values()))[0]
        drawn.append(one)
        del left[one]
    return sorted(drawn)


class Relinked(Tree):
    def __init__(self, root: Path, folder: Path):
        super().__init__(root, folder)
        few = folder / "few"
        self.release, self.source, self.mutated, self.binary, self.objects = root / "build", root, few / "mutated", few, few / "objects"
        if not (self.release / "bin" / "lockstep").is_file():
            sys.exit("mutants: there is no release build; run ci/build.sh release lockstep tests")
        self.commands = {one["file"]: one["command"] for one in json.loads((self.release / "compile_commands.json").read_text())}

    def compile_commands(self) -> Path:
        return self.release / "compile_commands.json"

    def build_sources(self, files: list[str], targets: list[str], jobs: int, say=print) -> list[Mutant]:
        for own, path in SWITCH.items():
            write_if_changed(self.mutated / path, (HERE / own).read_bytes())
        self.find(files, jobs)
        self.number()
        written = {file: self.write(file) for file in self.points}
        self.compile_until_it_succeeds(written, targets, jobs, say)
        return [one for file in sorted(self.points) for one in self.mutants[file] if one.key not in self.dropped]

    def _compile(self, targets: list[str], jobs: int) -> list[tuple[str, int, int]] | None:
        files = [*self.points, *(path for path in SWITCH.values() if path.endswith(".cpp"))]
        with ThreadPoolExecutor(jobs) as pool:
            outputs = list(pool.map(self._object_of, files))
        (self.folder / "compiler.log").write_text("".join(outputs))
        if any(outputs):
            places = [ERROR_AT.match(line) for output in outputs for line in output.splitlines()]
            return [(str(Path(one[1]).relative_to(self.mutated)), int(one[2]), int(one[3]))
                    for one in places if one and Path(one[1]).is_relative_to(self.mutated)]  # fmt: skip
        libraries = self._libraries()
        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(lambda target: self._link(target, libraries), targets):
                pass
        return None

    def _libraries(self) -> dict[str, Path]:
        """The copies of libraries, by the names of the originals in the release build."""
        members: dict[str, list[Path]] = {}
        for file in self.points:
            words = shlex.split(self.commands[str(self.root / file)])
            folder = Path(words[words.index("-o") + 1]).parts[1]  # CMakeFiles/lockstep_optim.dir/engine/optim/clip.cpp.o
            members.setdefault(f"lib{folder.removesuffix('.dir')}.a", []).append(self._object(file))
        copies = {}
        for name, objects in members.items():
            copy = self.binary / "lib" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.release / name, copy)
            listed = subprocess.run(["ar", "t", copy], capture_output=True, text=True, check=True).stdout.split()
            twice = [one.name for one in objects if listed.count(one.name) != 1]
            if twice:
                sys.exit(f"mutants: {name} does not have one member of the name {twice[0]}")
            subprocess.run(["ar", "r", copy, *objects], capture_output=True, check=True)
            copies[name] = copy
        return copies

    def _object(self, file: str) -> Path:
        return self.objects / (file + ".o")

    def _object_of(self, file: str) -> str:
        """Compiles the source if need be; returns the errors of the compiler."""
        source, made = self.mutated / file, self._object(file)
        command = self.commands.get(str(self.root / file))
        words = shlex.split(command or self.commands[str(self.root / "engine/core/error.cpp")])
        given = self.release / words[words.index("-o") + 1]
        newest = max(source.stat().st_mtime, given.stat().st_mtime if command else 0)
        if made.is_file() and made.stat().st_mtime > newest:
            return ""
        made.parent.mkdir(parents=True, exist_ok=True)
        while Path(words[0]).name in ("ccache", "sccache"):
            words = words[1:]
        words = [one for one in words if one not in ("-MD", "-c", str(self.root / file), "-Werror")]
        for option in ("-MT", "-MF", "-o"):
            if option in words:
                at = words.index(option)
                del words[at : at + 2]
        if not command:
            words = [one for one in words if not one.endswith(".cpp")]
        words = [words[0], f"-I{self.mutated}", "-iquote", str((self.root / file).parent), *words[1:]]
        words += [*MUTATED_FLAGS.split(";"), "-c", str(source), "-o", str(made)]
        ended = subprocess.run(words, cwd=self.release, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        if ended.returncode == 0:
            return ""
        made.unlink(missing_ok=True)
        return ended.stderr or f"{file}: the compiler ended with {ended.returncode}\n"

    def _link(self, target: str, libraries: dict[str, Path]) -> None:
        name = f"bin/{target}" if target == "lockstep" else f"tests/{target}"
        made = self.binary / name
        listed = subprocess.run(["ninja", "-C", str(self.release), "-t", "commands", name], capture_output=True, text=True)
        if listed.returncode != 0:
            sys.exit(f"mutants: the release build has no {name}\n{listed.stdout}{listed.stderr}")
        command = next(line for line in reversed(listed.stdout.splitlines()) if f"-o {name} " in line)
        words = shlex.split(command.split("&&")[1])  # `: && c++ ... && :`
        words = [str(libraries.get(one, made if one == name else one)) for one in words]
        words.insert(1, str(self._object(SWITCH["switch.cpp"])))
        made.parent.mkdir(parents=True, exist_ok=True)
        ended = subprocess.run(words, cwd=self.release, capture_output=True, text=True)
        if ended.returncode != 0:
            sys.exit(f"mutants: {name} could not be linked\n{ended.stderr[-2000:]}")
