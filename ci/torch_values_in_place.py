"""The in-place operations of torch_values.py: results and gradients in float64, on tensors, views and bases.

The inputs are those of torch_values_operations.py. `in_place_types` has the values of every pair of types, or that PyTorch
refuses the pair.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from torch_values_functions import TYPES, case
from torch_values_operations import Operation, flat, unary


def into(name: str, run, positive: bool = False) -> list[Operation]:
    """A second input that broadcasts to the sizes of the first."""
    sizes = [[(3, 5), (3, 5)], [(3, 5), (5,)], [(3, 5), (3, 1)], [(2, 3, 4), (3, 1)], [(4, 3), (1,)], [(1, 1), (1, 1)]]
    return [Operation(name, size, run, positive) for size in sizes]


def whole() -> list[Operation]:
    def replaced(a, b):
        y = a * 3
        y.copy_(b)
        return y + a

    return [
        *into("add", lambda a, b: (a * 1).add_(b)),
        *into("add_scaled", lambda a, b: (a * 1).add_(b, alpha=-0.5)),
        *into("sub", lambda a, b: (a * 1).sub_(b)),
        *into("mul", lambda a, b: (a * 2).mul_(b)),
        *into("div", lambda a, b: (a * 1).div_(b), positive=True),
        *into("copy", replaced),
        *unary("numbers", lambda a: (a * 1).add_(2).mul_(0.5).sub_(1).div_(-4).add_(1, alpha=0.25)),
        *unary("relu", lambda a: (a * 1).relu_()),
        *unary("zero", lambda a: (a * 2).zero_() + a),
        *unary("fill", lambda a: (a * 2).fill_(0.5) * a),
        Operation("relu_of_linear", [(3, 7), (5, 7), (5,)], lambda x, w, b: functional.linear(x, w, b).relu_()),
    ]


def unary_views() -> list[Operation]:
    def zeroed(a):
        y = a * 2
        y[1].zero_()
        y.select(1, 2).fill_(0.75)
        return y * a

    def rectified(a):
        y = a * 1
        y.transpose(0, 1)[1:4].relu_()
        return y * 2

    def unchanged_history(a):
        y = a * 2
        part = y[1:3]
        y.detach().add_(1)
        return part * a[1:3]

    return [
        Operation("parts_without_values", [(4, 5)], zeroed),
        Operation("relu_of_transposed", [(3, 5)], rectified),
        Operation("detached", [(4, 5)], unchanged_history),
    ]


def views() -> list[Operation]:
    def transposed(a, b):
        y = a * 1
        y.transpose(0, 1).mul_(b)
        return y

    def columns(a, b):
        y = a * 2
        y.narrow(1, 1, 3).mul_(b)
        return y * a

    def row(a, b):
        y = a * 2
        y.select(0, 1).copy_(b)
        return y * a

    def base_after_view(a, b):
        y = a * 2
        part = y[1:3]
        y.mul_(b)
        return part * a[1:3]

    def both(a, b):
        y = a * 1
        part = y[0:2]
        part.mul_(b)
        return [torch.cat([y * 2, part * a[0:2]]), y, part]

    def plain_base(a, b):
        y = torch.zeros(3, 5, dtype=a.dtype)
        y.narrow(1, 1, 3).add_(b)
        return y * a

    def plain_views(a, b):
        y = torch.full((3, 5), 0.5, dtype=a.dtype)
        first, last = y[0:2], y.t()[3:5]
        y.add_(a)
        assert first.grad_fn is not None  # PyTorch renews the history of a view when it is asked for it
        first.mul_(b)
        return first.sum(1, keepdim=True) * last.sum(0)[0:2].unsqueeze(1)

    def view_of_view(a, b):
        y = a * 1
        y.transpose(0, 1)[1:4].unsqueeze(0).sub_(b)
        return y * a

    def twice(a, b):
        y = a * 1
        u, v = y[0:3], y[1:4]
        u.mul_(b)
        v.mul_(2)
        u.add_(b)
        return torch.cat([v, y * b[0:1], u])

    def after_use(a, b):
        y = a * 1
        z = y + b
        y.add_(1)
        return z * y

    def divided(a, b):
        y = a * 3
        y.view(-1)[2:7].div_(b)
        return y

    def expanded_value(a, b):
        y = a * 1
        y.mul_(b.expand(3, 5))
        return y

    return [
        Operation("transposed", [(3, 5), (5, 3)], transposed),
        Operation("transposed", [(2, 4), (4, 1)], transposed),
        Operation("columns", [(3, 5), (3, 3)], columns),
        Operation("columns", [(3, 5), (3,)], columns),
        Operation("row", [(3, 5), (5,)], row),
        Operation("row", [(3, 2, 3), (2, 1)], row),
        Operation("base_after_view", [(4, 3), (4, 3)], base_after_view),
        Operation("base_after_view", [(4, 3), (3,)], base_after_view),
        Operation("both", [(3, 5), (2, 5)], both),
        Operation("plain_base", [(3, 5), (3, 3)], plain_base),
        Operation("plain_views", [(3, 5), (2, 5)], plain_views),
        Operation("view_of_view", [(3, 5), (1, 3, 3)], view_of_view),
        Operation("twice", [(4, 3), (3, 3)], twice),
        Operation("after_use", [(3, 5), (3, 5)], after_use),
        Operation("divided", [(3, 5), (5,)], divided, positive=True),
        Operation("expanded_value", [(3, 5), (3, 1)], expanded_value),
    ]


def in_place() -> list[dict]:
    return [case(operation) for operation in [*whole(), *unary_views(), *views()]]


OF_TWO = {
    "add": lambda a, b: a.add_(b),
    "sub": lambda a, b: a.sub_(b),
    "mul": lambda a, b: a.mul_(b),
    "div": lambda a, b: a.div_(b),
    "copy": lambda a, b: a.copy_(b),
}
OF_ONE = {
    "add_integer": lambda a: a.add_(2),
    "add_number": lambda a: a.add_(0.5),
    "mul_integer": lambda a: a.mul_(3),
    "mul_number": lambda a: a.mul_(0.25),
    "sub_integer": lambda a: a.sub_(1),
    "div_integer": lambda a: a.div_(2),
    "add_bool": lambda a: a.add_(True),
    "relu": lambda a: a.relu_(),
    "fill_number": lambda a: a.fill_(2.75),
    "zero": lambda a: a.zero_(),
}


def in_place_types() -> list[dict]:
    """The values after an operation on each type, or on each pair of types; none where PyTorch refuses it. The values are no multiples of
    powers of two, so that the type of the arithmetic shows."""
    first, second = torch.tensor([0.1, 1.7, 3.3, -2.6], dtype=torch.float64), torch.tensor([2.3, 1.1, 1.7, 3.9], dtype=torch.float64)
    cases = []

    def tried(name: str, types: list[str], run, *operands) -> None:
        try:
            result = flat(run(*operands).double())
        except (RuntimeError, NotImplementedError):
            result = []
        cases.append(dict(name=name, types=types, result=result))

    for name, dtype in TYPES.items():
        for other, other_dtype in TYPES.items():
            for function, run in OF_TWO.items():
                tried(function, [name, other], run, first.to(dtype, copy=True), second.to(other_dtype))
        for function, run in OF_ONE.items():
            tried(function, [name, name], run, first.to(dtype, copy=True))
    return cases
