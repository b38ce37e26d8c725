"""The derivatives of torch_values.py: gradients where a function has no derivative, or an infinite one.

Equal largest elements, kinks, roots and logarithms of 0, infinities and not-a-number, in float64. Inputs are indices into
SPECIAL, and not-a-number and infinities are replaced by codes, as in `edges` of torch_values_functions.py.
"""

from __future__ import annotations

from typing import Callable

import torch
import torch.nn.functional as functional

from torch_values_functions import ROWS, SPECIAL, coded

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# Rows with finite elements only, many of them equal.
EQUAL = [[0, 0, 0, 0], [1, 1, 2, 1], [2, 7, 7, 2], [7, 0, 6, 0], [6, 0, 2, 2], [1, 7, 1, 7]]

OF_ELEMENTS: dict[str, Function] = {
    "abs": lambda x, y: torch.abs(x),
    "relu": lambda x, y: torch.relu(x),
    "gelu": lambda x, y: functional.gelu(x),
    "tanh": lambda x, y: torch.tanh(x),
    "sigmoid": lambda x, y: torch.sigmoid(x),
    "exp": lambda x, y: torch.exp(x),
    "log": lambda x, y: torch.log(x),
    "sqrt": lambda x, y: torch.sqrt(x),
    "rsqrt": lambda x, y: torch.rsqrt(x),
    "power_of_0": lambda x, y: x**0,
    "power_of_half": lambda x, y: x**0.5,
    "power_of_1": lambda x, y: x**1,
    "power_of_2": lambda x, y: x**2,
    "power_of_3": lambda x, y: x**3,
    "power_of_minus_1": lambda x, y: x**-1,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / y,
    "of_number": lambda x, y: 2.0 / x,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where_root": lambda x, y: torch.where(x > 0, torch.sqrt(x), y),
    "root_of_squares": lambda x, y: torch.sqrt(torch.sum(x * x, 1)),
}
ALONG: dict[str, Function] = {
    "amax": lambda x, y: torch.amax(x, 1),
    "amax_dim_0": lambda x, y: torch.amax(x, 0),
    "amax_kept": lambda x, y: torch.amax(x, -1, keepdim=True) * y,
    "amin": lambda x, y: torch.amin(x, 1),
    "amin_dim_0": lambda x, y: torch.amin(x, 0, keepdim=True) * y,
    "amax_of_amin": lambda x, y: torch.amax(torch.amin(x, 0), 0),
    "softmax": lambda x, y: torch.softmax(x, 1),
    "log_softmax": lambda x, y: torch.log_softmax(x, 1),
    "layer_norm": lambda x, y: functional.layer_norm(x, (4,)),
    "layer_norm_exact": lambda x, y: functional.layer_norm(x, (4,), eps=0.0),
    "rms_norm": lambda x, y: functional.rms_norm(x, (4,), eps=1e-6),
    "mse_loss": lambda x, y: functional.mse_loss(x, y),
}


def case(name: str, run: Function, rows: list[list[int]]) -> dict:
    x = torch.tensor([[SPECIAL[i] for i in row] for row in rows], dtype=torch.float64)
    others = [row[-1:] + row[:-1] for row in rows[::-1]]
    y = torch.tensor([[SPECIAL[i] for i in row] for row in others], dtype=torch.float64)
    x.requires_grad_()
    y.requires_grad_()
    result = run(x, y)
    upstream = ((torch.arange(result.numel()) % 5 + 1) / 4).to(torch.float64).reshape(result.shape)
    result.backward(upstream)
    return dict(
        name=name,
        rows=rows,
        others=others,
        result_shape=list(result.shape),
        result=coded(result.detach()),
        upstream=upstream.reshape(-1).tolist(),
        gradients=[coded(z.grad) for z in (x, y) if z.grad is not None],
    )


def derivatives() -> list[dict]:
    every = {**OF_ELEMENTS, **ALONG}
    return [*[case(name, run, ROWS) for name, run in every.items()], *[case(name, run, EQUAL) for name, run in ALONG.items()]]
