"""The operations of torch_values.py: results and gradients in float64 of every operation that the language of scenarios reaches.

All inputs are multiples of 1/8 or 1/16 of small size, which float16 and bfloat16 hold exactly, so that one value serves all
types. Zeros occur, where derivatives of relu and abs are a convention.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable

import torch
import torch.nn.functional as functional


@dataclass
class Operation:
    name: str
    sizes: list[tuple[int, ...]]
    run: Callable  # takes the inputs; gives the result, or a list of the result and tensors without a gradient
    positive: bool = False
    indices: list[int] = field(default_factory=list)  # of the last input, which they replace


def values_of(size: tuple[int, ...], shift: int, positive: bool) -> torch.Tensor:
    count = torch.Size(size).numel()
    low = 2 if positive else -8
    flat = [(low + (7 * i + 5 * shift + i // 17) % 17) / 8 for i in range(count)]
    return torch.tensor(flat, dtype=torch.float64).reshape(size)


def batch_norm(x, weight, bias):
    mean, variance = torch.zeros(x.shape[1], dtype=x.dtype), torch.ones(x.shape[1], dtype=x.dtype)
    y = functional.batch_norm(x, mean, variance, weight, bias, training=True)
    return [y, mean, variance]


def batch_norm_evaluated(x, weight, bias):
    shape = x.shape[1]
    return functional.batch_norm(x, torch.zeros(shape, dtype=x.dtype), torch.ones(shape, dtype=x.dtype), weight, bias)


def broadcasts(name: str, run: Callable, positive: bool = False) -> list[Operation]:
    sizes = [[(3, 5), (3, 5)], [(3, 5), (5,)], [(4, 1), (4, 3)], [(3, 1, 2), (5, 1)], [(2, 3), (1,)]]
    return [Operation(name, size, run, positive) for size in sizes]


def unary(name: str, run: Callable, positive: bool = False) -> list[Operation]:
    return [Operation(name, [size], run, positive) for size in [(3, 43), (1, 1), (2, 3, 5)]]


def arithmetic() -> list[Operation]:
    return [
        *broadcasts("add", lambda a, b: a + b),
        *broadcasts("sub", lambda a, b: a - b),
        *broadcasts("mul", lambda a, b: a * b),
        *broadcasts("div", lambda a, b: a / b, positive=True),
        *unary("numbers", lambda a: 2 - (a * -2 + 3) / 8 - (-a)),
        *unary("inverse", lambda a: 2 / a, positive=True),
        *unary("square", lambda a: a**2),
        *unary("abs", torch.abs),
        *unary("relu", torch.relu),
        *unary("gelu", functional.gelu),
        *unary("exp", torch.exp),
        *unary("sqrt", torch.sqrt, positive=True),
        *unary("rsqrt", torch.rsqrt, positive=True),
    ]


def reductions() -> list[Operation]:
    each = [("sum", torch.sum), ("mean", torch.mean), ("softmax", torch.softmax)]
    found = [Operation(f"{name}_dim_{dim}", [size], lambda a, run=run, dim=dim: run(a, dim))
             for name, run in each for dim in (0, 1, 2) for size in [(2, 7, 3), (1, 4, 9)]]
    return found + [
        Operation("sum_all", [(5, 7)], torch.sum),
        Operation("mean_all", [(5, 7)], torch.mean),
        Operation("mse_loss", [(5, 9), (5, 9)], functional.mse_loss),
    ]


def shapes() -> list[Operation]:
    return [
        Operation("reshape", [(2, 3, 4)], lambda a: a.reshape(4, -1) * a.reshape(4, 6)),
        Operation("flatten", [(2, 3, 4)], lambda a: a.flatten(1, 2)),
        Operation("transpose", [(2, 3, 4)], lambda a: a.transpose(0, 2)),
        Operation("rows", [(5, 3)], lambda a: a[1:4] + a[2:5]),
        Operation("one_row", [(5, 3)], lambda a: a[3] * a[0]),
        Operation("cat_dim_0", [(2, 3), (1, 3), (4, 3)], lambda a, b, c: torch.cat([a, b, c, a], 0)),
        Operation("cat_dim_1", [(2, 3), (2, 1), (2, 2)], lambda a, b, c: torch.cat([b, a, c, b], 1)),
        Operation("index_select", [(5, 3), (4,)], lambda a, at: a[at], indices=[1, 1, 4, 0]),
    ]


def products() -> list[Operation]:
    sizes = [[(5, 19), (19, 7)], [(6,), (6,)], [(3, 4), (4,)], [(2, 3, 4), (4, 2)], [(2, 2, 3, 4), (2, 2, 4, 2)], [(1, 1), (1, 3)]]
    linear = [[(5, 17), (6, 17), (6,)], [(2, 3, 4), (5, 4), (5,)], [(1, 1), (3, 1), (3,)]]
    convolutions = [("conv_plain", (1, 0)), ("conv_patches", (3, 0)), ("conv_padded", (2, 1))]
    return [
        *[Operation("matmul", size, torch.matmul) for size in sizes],
        *[Operation("linear", size, functional.linear) for size in linear],
        *[Operation("linear_no_bias", size[:2], functional.linear) for size in linear],
        *[Operation(name, [(2, 3, 7, 6), (4, 3, 3, 3), (4,)],
                    lambda x, w, b, stride=stride, padding=padding: functional.conv2d(x, w, b, stride, padding))
          for name, (stride, padding) in convolutions],
    ]


def networks() -> list[Operation]:
    def loss(**options):
        return lambda x, target: functional.cross_entropy(x, target, **options)

    weight = torch.tensor([0.5, 1.0, 0.25, 2.0, 1.5, 0.75, 1.25], dtype=torch.float64)
    targets = [6, 0, 2, 2, 5]
    return [
        Operation("layer_norm", [(2, 3, 8), (8,), (8,)], lambda x, w, b: functional.layer_norm(x, (8,), w, b)),
        Operation("layer_norm_no_bias", [(4, 5), (5,)], lambda x, w: functional.layer_norm(x, (5,), w, None, 0.25)),
        Operation("rms_norm", [(4, 19), (19,)], lambda x, w: functional.rms_norm(x, (19,), w, 1e-6)),
        Operation("batch_norm", [(7, 3), (3,), (3,)], batch_norm),
        Operation("batch_norm", [(3, 2, 2, 3), (2,), (2,)], batch_norm),
        Operation("batch_norm_evaluated", [(3, 2, 2, 3), (2,), (2,)], batch_norm_evaluated),
        Operation("embedding", [(5, 3), (2, 3)], lambda w, at: functional.embedding(at, w), indices=[4, 0, 2, 4, 4, 1]),
        Operation("cross_entropy", [(5, 7), (5,)], loss(), indices=targets),
        Operation("cross_entropy_sum", [(5, 7), (5,)], loss(reduction="sum"), indices=targets),
        Operation("cross_entropy_none", [(5, 7), (5,)], loss(reduction="none"), indices=targets),
        Operation("cross_entropy_weighted", [(5, 7), (5,)], loss(weight=weight), indices=targets),
        Operation("cross_entropy_ignored", [(5, 7), (5,)], loss(weight=weight, ignore_index=2), indices=targets),
    ]


def flat(x: torch.Tensor) -> list:
    return x.detach().flatten().tolist()


def case(operation: Operation) -> dict:
    inputs = [values_of(size, shift, operation.positive).requires_grad_() for shift, size in enumerate(operation.sizes)]
    if operation.indices:
        inputs[-1] = torch.tensor(operation.indices).reshape(operation.sizes[-1])
    results = operation.run(*inputs)
    results = results if isinstance(results, list) else [results]
    upstream = values_of(tuple(results[0].shape), 3, False)
    results[0].backward(upstream)
    return dict(
        name=operation.name,
        shapes=[list(size) for size in operation.sizes],
        inputs=[flat(x) for x in inputs],
        upstream=flat(upstream),
        result_shape=list(results[0].shape),
        results=[flat(x) for x in results],
        gradients=[flat(x.grad) for x in inputs if x.requires_grad],
    )


def operations() -> list[dict]:
    return [case(operation) for operation in [*arithmetic(), *reductions(), *shapes(), *products(), *networks()]]
