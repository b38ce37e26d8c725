#!/usr/bin/env python3
"""Compiles the hot kernels for x86-64-v3 (AVX2) and x86-64-v4 (AVX-512), and looks for vector instructions in them.

    check_vectors.py [ROOT]

A loop that the compiler fails to vectorise gives right results slowly, perhaps on one processor only. This
check reads the machine code of each functor in HOT, and fails when the functor has no arithmetic on whole vectors (ymm or
zmm). A source is compiled again only when its text, or that of a header it includes, has changed: the stamps lie in
ROOT/build/vector-check. CXX names the compiler (g++). On other processors than x86-64 there is nothing to check.
Exits with 1 when a functor fails.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from check_headers import SYSTEM_FOLDERS, Headers, failures_of  # noqa: E402

TARGETS = ("x86-64-v3", "x86-64-v4")
# As CMakeLists.txt compiles them.
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi"]

# Per source: texts that occur in the demangled names of a functor's functions.
HOT = {
    "engine/kernels/activations.cpp": [
        *(f"{name}, {types}>" for name in ("Gelu", "Tanh", "Sigmoid", "Erf")
          for types in ("float, float", "lockstep::BFloat16, lockstep::BFloat16")),
        *(f"{name}, {types}>" for name in ("GeluBackward", "TanhBackward", "SigmoidBackward")
          for types in ("float, float", "lockstep::BFloat16, lockstep::BFloat16")),
        *(f"{name}, double, double>" for name in ("Gelu", "Tanh", "Erf")),
        "KeepScaled<float>",
    ],
    "engine/kernels/arithmetic.cpp": ["::Add, float, float>", "::Sub, float, float>", "::Mul, float, float>", "::Div, float, float>"],
    "engine/kernels/functions.cpp": [
        "Exp, float, float>", "Exp, double, double>", "Sqrt, float, float>", "Log, float, float>", "Log, double, double>",
        "Log, lockstep::BFloat16, lockstep::BFloat16>",
    ],
    "engine/kernels/norm.cpp": ["Norm<float>", "NormBackward<float>"],
    "engine/kernels/norm_weights.cpp": ["NormWeights<float>"],
    "engine/kernels/numbers.cpp": [
        "::Pow, float, float>", "::Pow, double, double>", "::Pow, lockstep::BFloat16, lockstep::BFloat16>",
    ],
    "engine/kernels/optimizer.cpp": ["SgdKernel<float>", "AdamKernel<float>"],
    "engine/kernels/reduce.cpp": ["RowSum<float", "ColumnSum<float"],
    "engine/kernels/softmax.cpp": [
        "Softmax<float>", "SoftmaxBackward<float>", "Probabilities<float>", "ProbabilitiesBackward<float>",
    ],
    "engine/kernels/class_losses.cpp": ["ClassLosses<float>", "ClassSums<float>", "ClassLossesBackward<float>"],
    "engine/kernels/narrow_product.cpp": ["add_up<4"],
    "engine/comm/reduce.cpp": ["Sum, float, float>", "Sum, float, lockstep::BFloat16>"],
}

_FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
_ARITHMETIC = re.compile(r"^\s*[0-9a-f]+:\s+v?(?:fn?m(?:add|sub)\d*|add|mul|sub|div|sqrt|max|min)([ps])[sd]\s+(.*)$")


@dataclass
class Count:
    """Arithmetic instructions on floating-point values."""

    wide: int = 0  # on vectors of 256 or 512 bits
    single: int = 0


def counts_by_function(listing: str) -> dict[str, Count]:
    """The functions in the output of `objdump -d -C`."""
    found: dict[str, Count] = {}
    current = Count()
    for line in listing.splitlines():
        if function := _FUNCTION.match(line):
            current = found.setdefault(function.group(1), Count())
        elif arithmetic := _ARITHMETIC.match(line):
            if arithmetic.group(1) == "s":
                current.single += 1
            elif re.search(r"%[yz]mm", arithmetic.group(2)):
                current.wide += 1
    return found


def problem_of(functor: str, by_function: dict[str, Count]) -> str | None:
    counts = [count for name, count in by_function.items() if functor in name]
    if not counts:
        return f"no function of the name {functor}: was it renamed?"
    if any(count.wide for count in counts):
        return None
    single = sum(count.single for count in counts)
    return f"{functor} is not vectorised: {single} instructions on single elements, none on whole vectors"


def machine_code(compiler: str, root: Path, source: str, target: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        compiled = f"{folder}/compiled.o"
        system = [f"-isystem{each}" for each in SYSTEM_FOLDERS]
        command = [compiler, *FLAGS, f"-march={target}", f"-I{root}", *system, "-c", str(root / source), "-o", compiled]
        subprocess.run(command, check=True)
        listing = ["objdump", "-d", "-C", "--no-show-raw-insn", compiled]
        return subprocess.run(listing, text=True, capture_output=True, check=True).stdout


def check(root: Path, stamps: Path, compiler: str) -> dict[str, str]:
    """The functors that are not vectorised, by `source for target`."""
    headers = Headers(root)
    version = subprocess.run([compiler, "--version"], text=True, capture_output=True, check=True).stdout.splitlines()[0]
    keys = {
        f"{source} for {target}": headers.key(source, " ".join([version, *FLAGS, target, *functors]))
        for source, functors in HOT.items()
        for target in TARGETS
    }

    def look(what: str) -> str | None:
        source, target = what.split(" for ")
        by_function = counts_by_function(machine_code(compiler, root, source, target))
        problems = [problem for functor in HOT[source] if (problem := problem_of(functor, by_function))]
        return "\n".join(problems) or None

    return failures_of(keys, list(keys), stamps, look)


def main(arguments: list[str]) -> int:
    root = Path(arguments[0] if arguments else Path(__file__).resolve().parent.parent).resolve()
    if platform.machine() != "x86_64":
        print(f"check_vectors: nothing to check on {platform.machine()}")
        return 0
    failed = check(root, root / "build" / "vector-check", os.environ.get("CXX", "g++"))
    for what, message in failed.items():
        print(f"{what}:\n{message}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
