#!/usr/bin/env python3
"""Checks the order of the source folders: a layer may include itself and the layers below it.

    check_layers.py [ROOT]

Prints `file:line: error; remedy` for each #include in the wrong direction, and exits with 1 if there is one. The order is that of
CMakeLists.txt; a new layer is entered in both.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from includes import SOURCE_FOLDERS, Include, includes_of, source_files  # noqa: E402

ENGINE = [
    f"engine/{name}"
    for name in "core layout device kernels tensor comm mesh autograd nn optim parallel state".split()
]
HARNESS = [f"harness/{name}" for name in "scenario verdict launch plan run report fuzz cli".split()]
ORDER = ENGINE + HARNESS

# Layers that may include less than all layers below them. The language and the evidence are independent of the engine under test,
# and the plan of collectives cannot ask the engine for its collectives.
NARROWED = {
    "harness/scenario": {"engine/core"},
    "harness/verdict": {"engine/core", "harness/scenario"},
    "harness/fuzz": {"engine/core", "harness/scenario", "harness/verdict"},
    "harness/plan": {"engine/core", "engine/layout", "harness/scenario", "harness/verdict"},
}


@dataclass(frozen=True)
class Library:
    name: str
    pattern: re.Pattern
    only_in: tuple[str, ...]  # folders whose sources may include it; empty: any
    in_public_headers: bool = False


LIBRARIES = [
    Library("Kokkos", re.compile(r"^(Kokkos|KokkosBlas|impl/Kokkos)"), ("engine/kernels",)),
    Library("BLAS", re.compile(r"^(openblas|cblas|dnnl|cublas|f77blas|lapacke)"), ("engine/kernels",)),
    Library("CUDA", re.compile(r"^cuda(_\w+)?\.h$"), ("engine/device", "engine/kernels")),
    Library("MPI", re.compile(r"^mpi(\.h|/)"), ("engine/comm", "harness/launch")),
    Library("NCCL", re.compile(r"^(nccl|rccl)\b"), ("engine/comm",)),
    Library("yaml-cpp", re.compile(r"^yaml-cpp/"), ("harness/scenario",)),
    Library("nlohmann/json", re.compile(r"^nlohmann/"), ()),
    Library("CLI11", re.compile(r"^CLI/"), ("harness/cli",)),
    Library("pugixml", re.compile(r"^pugixml"), ("harness/report",)),
]


def layer_of(path: str) -> str | None:
    """The layer of a path: its first two folders, if they are a layer."""
    parts = path.split("/")
    layer = "/".join(parts[:2])
    return layer if len(parts) > 2 and layer in ORDER else None


def allowed(layer: str) -> set[str]:
    below = set(ORDER[: ORDER.index(layer)])
    return {layer} | (NARROWED[layer] if layer in NARROWED else below)


def is_internal(path: str) -> bool:
    """Whether only its own layer may include the header: `*_internal.hpp`, or any header in a folder `detail`."""
    return path.endswith("_internal.hpp") or "/detail/" in path


def problem_of(root: Path, path: str, include: Include) -> str | None:
    """The error of an include line of the file at `path` (relative to the root), with its remedy; None for a valid line."""
    layer = layer_of(path)
    if layer is None:
        return None
    target = include.target

    if include.quoted and ((root / path).parent / target).exists() and layer_of(target) is None:
        return f'"{target}" hides its layer; write the path from the root of the repository'
    if include.quoted and target.split("/")[0] in SOURCE_FOLDERS:
        target_layer = layer_of(target)
        if target_layer is None:
            return f"{target} is in no known layer; a new layer gets its place in ci/check_layers.py and CMakeLists.txt"
        if target_layer not in allowed(layer):
            if layer in NARROWED and ORDER.index(target_layer) < ORDER.index(layer):
                return (
                    f"{layer} may include {', '.join(sorted(NARROWED[layer]))} only, not {target_layer}; "
                    "pass what it needs as a plain value"
                )
            return (
                f"{layer} lies below {target_layer} and must not include it; move the code up, move its dependency down, "
                "or let the upper layer hand in a function"
            )
        if target_layer != layer and is_internal(target):
            return f"{target} is internal to {target_layer}; move the needed declarations into a public header there"
        return None

    for library in LIBRARIES:
        if not library.pattern.match(target):
            continue
        if library.only_in and layer not in library.only_in:
            return f"{library.name} is used in {' and '.join(library.only_in)} only; go through a header of that layer"
        if path.endswith(".hpp") and not is_internal(path):
            return (
                f"{library.name} must not appear in a public header; include it in the .cpp, "
                "or rename this header to *_internal.hpp when only its own layer includes it"
            )
    return None


def check(root: Path) -> list[str]:
    problems = []
    for file in source_files(root):
        path = file.relative_to(root).as_posix()
        for include in includes_of(file.read_text(encoding="utf-8", errors="replace")):
            problem = problem_of(root, path, include)
            if problem:
                problems.append(f"{path}:{include.line}: {problem}")
    return problems


def main(arguments: list[str]) -> int:
    root = Path(arguments[0] if arguments else Path(__file__).resolve().parent.parent).resolve()
    problems = check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
