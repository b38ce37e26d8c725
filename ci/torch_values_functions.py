"""The functions of torch_values.py: results and gradients of the functions of tensors that operations.json leaves out.

Most are in float64, on inputs as those of torch_values_operations.py. `edges` are forward only: not-a-number, infinities, equal elements, dims
without elements. Their inputs are indices into SPECIAL, and not-a-number and infinities in results are replaced by codes,
because JSON has neither.
"""

from __future__ import annotations

from typing import Callable

import torch
import torch.nn.functional as functional

from torch_values_operations import Operation, broadcasts, flat, unary, values_of

COMPARISONS = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}
# The scenario has the same list.
SPECIAL = [0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), -0.0, 2.0]
CODES = {"nan": 3e4, "inf": 2e4, "-inf": -2e4}


def choices() -> list[Operation]:
    along = [("amax", torch.amax), ("amin", torch.amin), ("argmax", torch.argmax)]
    return [
        *[op for name, run in COMPARISONS.items() for op in broadcasts(name, run)],
        *[op for name, run in COMPARISONS.items() for op in unary(f"{name}_number", lambda a, run=run: run(a, 0.125))],
        *[Operation(f"{name}_dim_{dim}", [size], lambda a, run=run, dim=dim: run(a, dim)) for name, run in along
          for dim in (0, 1, 2) for size in [(2, 7, 3), (1, 4, 9), (3, 2, 131)]],
        *[Operation(f"{name}_kept", [(2, 7, 3)], lambda a, run=run: run(a, -2, keepdim=True)) for name, run in along],
        *broadcasts("where", lambda a, b: torch.where(a > b, a, b)),
        Operation("where_of_three", [(3, 1, 2), (5, 1), (2,)], lambda a, b, c: torch.where(a > 0.25, b, c)),
        Operation("where_of_three", [(3, 1), (3, 5), (3, 5)], lambda a, b, c: torch.where(a > 0.25, b, c)),
        Operation("where_turned", [(3, 5), (3, 5)], lambda a, b: torch.where((a.t() > 0.25).t(), a, b)),
        *unary("where_numbers", lambda a: torch.where(a > 0.25, a, -0.5) * torch.where(a > 0, 2.0, 0.25)),
    ]


def positions() -> list[Operation]:
    def parts(run: Callable) -> Callable:
        return lambda a: [torch.cat([part * (i + 1) for i, part in enumerate(run(a))][::-1], 1), *run(a)]

    def unused(run: Callable) -> Callable:
        return lambda a: run(a)[1] * 2

    return [
        *[Operation(f"index_select_dim_{dim}", [(5, 6, 7), (4,)], lambda a, at, dim=dim: torch.index_select(a, dim, at), indices=[1, 1, 4, 0])
          for dim in (0, 1, 2)],
        Operation("index_select_none", [(5, 3), (0,)], lambda a, at: torch.index_select(a, 0, at), indices=[]),
        *[Operation(f"select_dim_{dim}", [(5, 6, 7)], lambda a, dim=dim: a.select(dim, 4) * a.select(dim, -2)) for dim in (0, 1, 2)],
        *[Operation(f"narrow_dim_{dim}", [(5, 6, 7)], lambda a, dim=dim: a.narrow(dim, 1, 3) * a.narrow(dim, -4, 3)) for dim in (0, 1, 2)],
        Operation("narrow_none", [(5, 3)], lambda a: torch.cat([a.narrow(1, 3, 0), a], 1)),
        Operation("split", [(3, 7)], parts(lambda a: a.split(3, 1))),
        Operation("split_unused", [(3, 7)], unused(lambda a: a.split(3, 1))),
        Operation("split_large", [(3, 7)], parts(lambda a: a.split(9, -1))),
        Operation("chunk", [(3, 7)], parts(lambda a: a.chunk(3, 1))),
        Operation("chunk_many", [(3, 5)], parts(lambda a: a.chunk(4, 1))),
        Operation("chunk_unused", [(3, 7)], unused(lambda a: a.chunk(4, 1))),
        *[Operation(f"stack_dim_{dim}", [(2, 3), (2, 3), (2, 3)], lambda a, b, c, dim=dim: torch.stack([a, b, c, a], dim))
          for dim in (0, 1, 2, -1)],
    ]


def views() -> list[Operation]:
    def sums(name: str, run: Callable) -> list[Operation]:
        return [
            Operation(f"{name}_kept", [(2, 7, 3)], lambda a: run(a, 1, keepdim=True) * a),
            Operation(f"{name}_dims", [(2, 7, 3)], lambda a: run(a, (0, 2))),
            Operation(f"{name}_dims_kept", [(2, 7, 3)], lambda a: run(a, (-1, 0), keepdim=True)),
        ]

    return [
        *sums("sum", torch.sum),
        *sums("mean", torch.mean),
        Operation("view", [(2, 3, 4)], lambda a: a.contiguous().view(4, -1) * a.contiguous().view([4, 6])),
        Operation("permute", [(2, 3, 4)], lambda a: a.permute(2, 0, 1)),
        Operation("permute", [(1, 1, 1)], lambda a: a.permute(2, 0, 1)),
        Operation("permute_back", [(2, 3, 4, 5)], lambda a: a.permute(-1, 1, 0, -2)),
        Operation("squeeze", [(2, 1, 3)], lambda a: a.squeeze(1) * a.squeeze(0).squeeze(-2)),
        *[Operation(f"unsqueeze_{dim}", [(2, 3)], lambda a, dim=dim: a.unsqueeze(dim)) for dim in (0, 1, 2, -1)],
        Operation("expand", [(3, 1)], lambda a: a.expand(2, -1, 4)),
        Operation("expand_scalar", [(1,)], lambda a: a.select(0, 0).expand(2, 3)),
        Operation("contiguous", [(3, 4)], lambda a: a.transpose(0, 1).contiguous() * a.contiguous().transpose(0, 1)),
    ]


def networks() -> list[Operation]:
    def on_expanded(run: Callable) -> Callable:
        return lambda a: run(a.expand(3, 2, 5))

    each = [("tanh", torch.tanh), ("sigmoid", torch.sigmoid)]
    linear = [[(5, 17), (6, 17), (6,)], [(2, 3, 4), (5, 4), (5,)], [(1, 1), (3, 1), (3,)]]
    norm = [(2, 3, 4), (3, 4), (3, 4)]
    return [
        *[op for name, run in each for op in unary(name, run)],
        *[Operation(f"{name}_expanded", [(2, 1)], on_expanded(run)) for name, run in
          [*each, ("log_softmax", lambda x: torch.log_softmax(x, 1)), ("amax", lambda x: torch.amax(x, 2))]],
        *unary("log", torch.log, positive=True),
        *[Operation(f"log_softmax_dim_{dim}", [size], lambda a, dim=dim: torch.log_softmax(a, dim))
          for dim in (0, 1, 2) for size in [(2, 7, 3), (1, 4, 9)]],
        Operation("embedding", [(5, 3), (2, 3)], lambda w, at: functional.embedding(at, w), indices=[4, 0, 2, 4, 4, 1]),
        *[Operation("linear", size, functional.linear) for size in linear],
        *[Operation("linear_no_bias", size[:2], functional.linear) for size in linear],
        Operation("layer_norm", norm, lambda x, w, b: functional.layer_norm(x, (3, 4), w, b)),
        Operation("layer_norm_last", [(2, 3, 4), (4,), (4,)], lambda x, w, b: functional.layer_norm(x, (4,), w, b, 0.25)),
        Operation("layer_norm_plain", [(4, 5)], lambda x: functional.layer_norm(x, (5,))),
        Operation("layer_norm_bias", [(4, 5), (5,)], lambda x, b: functional.layer_norm(x, (5,), None, b)),
        Operation("rms_norm", norm[:2], lambda x, w: functional.rms_norm(x, (3, 4), w, 1e-6)),
        Operation("rms_norm_plain", [(4, 19)], lambda x: functional.rms_norm(x, (19,), None, 0.25)),
        *norms_of_channels(),
        *convolutions(),
        *attentions(),
    ]


def norms_of_channels() -> list[Operation]:
    def trained(x, w, b):
        mean, variance = torch.tensor([0.5, -0.25], dtype=x.dtype), torch.tensor([2.0, 0.5], dtype=x.dtype)
        y = functional.batch_norm(x, mean, variance, w, b, training=True, momentum=0.25, eps=0.125)
        return [y, mean, variance]

    def evaluated(x, w, b):
        mean, variance = torch.tensor([0.5, -0.25], dtype=x.dtype), torch.tensor([2.0, 0.5], dtype=x.dtype)
        return functional.batch_norm(x, mean, variance, w, b)

    return [
        Operation("batch_norm", [(7, 2), (2,), (2,)], trained),
        Operation("batch_norm", [(3, 2, 2, 3), (2,), (2,)], trained),
        Operation("batch_norm_plain", [(5, 3, 2)], lambda x: functional.batch_norm(x, None, None, training=True)),
        Operation("batch_norm_bias", [(5, 3), (3,)], lambda x, b: functional.batch_norm(x, None, None, None, b, training=True)),
        Operation("batch_norm_evaluated", [(3, 2, 2, 3), (2,), (2,)], evaluated),
    ]


def convolutions() -> list[Operation]:
    def with_options(stride, padding) -> Callable:
        return lambda x, w, b=None: functional.conv2d(x, w, b, stride, padding)

    return [
        Operation("conv2d", [(2, 3, 7, 6), (4, 3, 3, 2), (4,)], with_options(1, 0)),
        Operation("conv2d_no_bias", [(2, 3, 7, 6), (4, 3, 3, 2)], with_options(1, 0)),
        Operation("conv2d_strided", [(2, 3, 8, 7), (4, 3, 3, 2), (4,)], with_options((3, 2), (0, 1))),
        Operation("conv2d_patches", [(1, 2, 6, 4), (5, 2, 2, 2), (5,)], with_options(2, 0)),
        Operation("conv2d_single", [(2, 3, 4, 5), (4, 3, 1, 1), (4,)], with_options(1, 0)),
        Operation("conv2d_padded", [(1, 1, 2, 2), (1, 1, 5, 5), (1,)], with_options(1, 2)),
    ]


MASK = [[True, False, True, True, False], [False, False, False, False, False], [True, True, True, True, True]]


def attentions() -> list[Operation]:
    sdpa = functional.scaled_dot_product_attention
    mask = torch.tensor(MASK)
    return [
        Operation("attention", [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 6)], sdpa),
        Operation("attention", [(3, 4), (5, 4), (5, 6)], sdpa),
        Operation("attention_causal", [(2, 5, 4), (2, 5, 4), (2, 5, 3)], lambda q, k, v: sdpa(q, k, v, is_causal=True)),
        Operation("attention_causal", [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)], lambda q, k, v: sdpa(q, k, v, is_causal=True)),
        Operation("attention_masked", [(2, 3, 4), (2, 5, 4), (2, 5, 6)], lambda q, k, v: sdpa(q, k, v, mask)),
    ]


def case(operation: Operation) -> dict:
    inputs = [values_of(size, shift, operation.positive).requires_grad_() for shift, size in enumerate(operation.sizes)]
    if operation.indices or operation.sizes[-1] == (0,):
        inputs[-1] = torch.tensor(operation.indices, dtype=torch.int64).reshape(operation.sizes[-1])
    results = operation.run(*inputs)
    results = results if isinstance(results, list) else [results]
    differentiable = results[0].is_floating_point() and not operation.name.startswith(("amax", "amin"))
    upstream = values_of(tuple(results[0].shape), 3, False)
    if differentiable:
        results[0].backward(upstream)
    return dict(
        name=operation.name,
        shapes=[list(size) for size in operation.sizes],
        inputs=[flat(x) for x in inputs],
        type={torch.bool: "bool", torch.int64: "int64", torch.float64: "float"}[results[0].dtype],
        upstream=flat(upstream) if differentiable else [],
        result_shape=list(results[0].shape),
        results=[flat(x.double()) for x in results],
        gradients=[flat(x.grad) for x in inputs if x.grad is not None] if differentiable else [],
    )


def functions() -> list[dict]:
    return [case(operation) for operation in [*choices(), *positions(), *views(), *networks()]]


def coded(x: torch.Tensor) -> list:
    x = x.double()
    x = torch.where(x.isnan(), CODES["nan"], x)
    x = torch.where(x == float("inf"), CODES["inf"], torch.where(x == -float("inf"), CODES["-inf"], x))
    return flat(x)


# Rows of indices into SPECIAL.
ROWS = [[0, 1, 2, 7], [7, 1, 7, 0], [1, 5, 3, 7], [5, 5, 1, 0], [4, 2, 4, 3], [6, 0, 0, 6], [3, 3, 3, 3], [4, 4, 4, 4], [2, 3, 5, 4]]
EDGES = {
    "amax": lambda x, y: torch.amax(x, 1),
    "amin": lambda x, y: torch.amin(x, 1),
    "argmax": lambda x, y: torch.argmax(x, 1),
    **{name: run for name, run in COMPARISONS.items()},
    "where": lambda x, y: torch.where(x > y, x, y),
    "where_nan": lambda x, y: torch.where(x == x, x, 7.0),
    "tanh": lambda x, y: torch.tanh(x),
    "sigmoid": lambda x, y: torch.sigmoid(x),
    "log": lambda x, y: torch.log(x),
    "softmax": lambda x, y: torch.softmax(x, 1),
    "log_softmax": lambda x, y: torch.log_softmax(x, 1),
    "abs": lambda x, y: torch.abs(x),
    "relu": lambda x, y: torch.relu(x),
    "square": lambda x, y: x**2,
    "root": lambda x, y: x**0.5,
    "sum": lambda x, y: torch.sum(x, 1),
    "mean": lambda x, y: torch.mean(x, 1, keepdim=True),
}


def edges() -> list[dict]:
    x = torch.tensor([[SPECIAL[i] for i in row] for row in ROWS], dtype=torch.float64)
    y = x.flip(0).roll(1, 1)
    other = [[SPECIAL.index(v) if v == v and not (v == 0 and torch.signbit(torch.tensor(v))) else 6 if v == v else 5 for v in row]
             for row in y.tolist()]
    return [dict(name=name, rows=ROWS, others=other, result=coded(run(x, y))) for name, run in EDGES.items()]


TYPES = {"bool": torch.bool, "int32": torch.int32, "int64": torch.int64, "float16": torch.float16, "bfloat16": torch.bfloat16,
         "float32": torch.float32, "float64": torch.float64}
OF_TWO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (b + 1),
    "eq": torch.eq,
    "lt": torch.lt,
    "where": lambda a, b: torch.where(a > b, a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b], 1),
    # Beside a tensor without dims.
    "add_scalar": lambda a, b: a + b.select(0, 0),
    "scalar_mul": lambda a, b: b.select(0, 3) * a,
    "div_scalar": lambda a, b: a / b.select(0, 0),
    "lt_scalar": lambda a, b: torch.lt(a, b.select(0, 0)),
    "where_scalar": lambda a, b: torch.where(a > 0, a, b.select(0, 1)),
    "scalars": lambda a, b: a.select(0, 2) * b.select(0, 3),
}
OF_ONE = {
    "add_integer": lambda a: a + 2,
    "add_whole_number": lambda a: a + 2.0,
    "add_number": lambda a: a + 0.5,
    "from_number": lambda a: 1.5 - a,
    "from_integer": lambda a: 3 - a,
    "from_whole_number": lambda a: 3.0 - a,
    "mul_one": lambda a: a * 1.0,
    "mul_number": lambda a: a * 0.25,
    "div_integer": lambda a: a / 2,
    "square": lambda a: a**2,
    "square_of_number": lambda a: a**2.0,
    "gt_integer": lambda a: a > 1,
    "gt_number": lambda a: a > 0.5,
    "where_integer": lambda a: torch.where(a > 0, a, 3),
    "where_number": lambda a: torch.where(a > 0, a, 0.5),
    "sum": torch.sum,
    "amax": lambda a: torch.amax(a, 0),
    "argmax": lambda a: torch.argmax(a, 0),
}


def types() -> list[dict]:
    """The type and values of each result, for every type and pair of types, except those of bool that PyTorch refuses."""
    cases = []
    of_integers = [0, 1, 3, 2], [2, 1, 0, 3]
    for name, dtype in TYPES.items():
        a = torch.tensor(of_integers[0]).to(dtype)
        for other, other_dtype in TYPES.items():
            b = torch.tensor(of_integers[1]).to(other_dtype)
            for function, run in OF_TWO.items():
                if function == "sub" and "bool" in (name, other):
                    continue
                cases.append((function, name, other, run(a, b)))
        cases += [(function, name, name, run(a)) for function, run in OF_ONE.items()
                  if name != "bool" or function not in ("from_number", "from_integer", "from_whole_number", "argmax")]
    names = {value: key for key, value in TYPES.items()}
    return [dict(name=function, types=[name, other], type=names[y.dtype], result=flat(y.double())) for function, name, other, y in cases]
