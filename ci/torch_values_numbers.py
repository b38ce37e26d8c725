"""The rounding cases of torch_values.py: 16-bit tensors and float32 beside numbers and beside tensors with one element.

The inputs are (k + 1) / 29 and (k - 15.5) / 7 for k from 0 to 31. PyTorch computes 16-bit types in blocks of 32 elements and rounds the
elements of an incomplete block more often.
"""

from __future__ import annotations

import torch

from torch_values_functions import TYPES
from torch_values_operations import flat

COUNT = 32
NUMBERS = {
    "add": lambda a, b, n: a + n,
    "sub": lambda a, b, n: a - n,
    "from": lambda a, b, n: n - a,
    "mul": lambda a, b, n: a * n,
    "div": lambda a, b, n: a / n,
    "over": lambda a, b, n: n / a,
    "eq": lambda a, b, n: torch.eq(a, n),
    "lt": lambda a, b, n: torch.lt(a, n),
    "where": lambda a, b, n: torch.where(b > 0, b, n),
    "add_": lambda a, b, n: a.clone().add_(n),
    "sub_": lambda a, b, n: a.clone().sub_(n),
    "mul_": lambda a, b, n: a.clone().mul_(n),
    "div_": lambda a, b, n: a.clone().div_(n),
    "add_scaled_": lambda a, b, n: a.clone().add_(b, alpha=n),
    "power": lambda a, b, n: a**n,
}
POWERS = {"power": lambda a, b, n: b**n}
SCALARS = {
    "add": lambda a, s: a + s,
    "add_to": lambda a, s: s + a,
    "sub": lambda a, s: a - s,
    "mul": lambda a, s: a * s,
    "mul_from": lambda a, s: s * a,
    "div": lambda a, s: a / s,
    "over": lambda a, s: s / a,
    "lt": lambda a, s: torch.lt(a, s),
    "add_": lambda a, s: a.clone().add_(s),
    "sub_": lambda a, s: a.clone().sub_(s),
    "mul_": lambda a, s: a.clone().mul_(s),
    "div_": lambda a, s: a.clone().div_(s),
}


def rounding() -> list[dict]:
    k = torch.arange(COUNT, dtype=torch.float64)
    first, second = (k + 1) / 29, (k - 15.5) / 7
    cases = []

    def add(kind: str, name: str, dtype: str, other: str, number, result: torch.Tensor) -> None:
        cases.append(dict(kind=kind, name=name, dtype=dtype, other=other, number=number, result=flat(result.double())))

    for dtype in ("bfloat16", "float16", "float32"):
        a, b = first.to(TYPES[dtype]), second.to(TYPES[dtype])
        for number in (0.2069, 1001):
            for name, run in NUMBERS.items():
                if name == "power" and (dtype == "float32" or number == 1001):
                    continue  # the power function of PyTorch differs in the last bit of float32
                add("number", name, dtype, "", number, run(a, b, number))
        for number in (2, 3, -1, -2):
            add("power", "power", dtype, "", number, POWERS["power"](a, b, number))
        for other in ("float16", "bfloat16", "float32", "float64", "int64"):
            if dtype == "float32" or other == dtype:
                continue
            scalar = torch.tensor(257.3, dtype=torch.float64).to(TYPES[other])
            for name, run in SCALARS.items():
                add("scalar", name, dtype, other, 257.3, run(a, scalar))
        if dtype != "float32":
            one = torch.tensor([257])
            for name in ("mul", "div", "mul_", "div_"):
                add("one_element", name, dtype, "int64", 257, SCALARS[name](a, one))
    for dtype, other in (("float16", "bfloat16"), ("bfloat16", "float16"), ("bfloat16", "float32")):
        a, b = first.to(TYPES[dtype]), second.to(TYPES[other])
        add("wider", "add_scaled_", dtype, other, 0.2069, a.clone().add_(b, alpha=0.2069))
    return cases
