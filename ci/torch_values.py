#!/usr/bin/env python3
"""Writes the values of PyTorch that the scenarios in scenarios/beside_pytorch compare with.

    torch_values.py                     writes all files
    torch_values.py --only trainings    writes one of them
    torch_values.py --check             exit code 1 if a file differs from what this PyTorch gives by more than 1e-12

Each file is a list of cases with inputs and results. Inputs are arithmetic on integers, so that no generator is involved. One
process on the CPU computes them, mostly in float64. No other script calls this one: it needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys

import torch

from torch_values_derivatives import derivatives
from torch_values_functions import edges, functions, types
from torch_values_in_place import in_place, in_place_types
from torch_values_numbers import rounding
from torch_values_operations import operations
from torch_values_training import trainings

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scenarios", "beside_pytorch")
FILES = {"operations": operations, "functions": functions, "edges": edges, "derivatives": derivatives, "types": types,
         "in_place": in_place, "in_place_types": in_place_types, "rounding": rounding, "trainings": trainings}


def written(cases: list[dict]) -> str:
    """One line per list of numbers, so that a change shows where it is."""
    text = json.dumps(cases, indent=1)
    while (shorter := re.sub(r"\[([^\[\]{}\n]*)\n\s*([^\[\]{}]*?)\s*\]", lambda m: "[" + " ".join((m[1] + m[2]).split()) + "]", text)) != text:
        text = shorter
    return text + "\n"


def same(a, b) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12)
    return a == b


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(FILES))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    different = 0
    for name in [options.only] if options.only else FILES:
        path = os.path.join(FOLDER, name + ".json")
        cases = FILES[name]()
        if not options.check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(written(cases))
            continue
        with open(path, encoding="utf-8") as file:
            agrees = same(json.load(file), json.loads(json.dumps(cases)))
        different += not agrees
        print(f"{name}: {'the same' if agrees else 'other values'}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
