"""The models and expressions of the programs of `lockstep fuzz` on PyTorch, for fuzz_torch.py."""

from __future__ import annotations

import torch
import torch.nn as nn

import golden_torch_models as models


class Expression(nn.Module):
    """A model that the scenario defines: children, parameters and a forward of the input x, an expression or several with names."""

    def __init__(self, definition: dict, *values: int):
        super().__init__()
        forward = definition["methods"]["forward(x)"] if "methods" in definition else {"return": definition["forward"]}
        self.statements = [(name, compile(text, name, "eval")) for name, text in forward.items()]
        arguments = dict(zip(definition.get("arguments", {}), values))
        for name, build in definition["children"].items():
            self.add_module(name, evaluate(build, arguments))
        for name, draw in definition.get("parameters", {}).items():
            self.register_parameter(name, nn.Parameter(evaluate(draw, arguments)))

    def forward(self, x):
        names = dict(self._modules) | dict(self._parameters) | {"x": x}
        for name, expression in self.statements:
            names[name] = eval(expression, dict(FUNCTIONS), names)
        return names["return"]


class Unsupported(Exception):
    """The program uses something that this interpreter leaves out."""


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Of inputs of any number of dims, with the channels at dim 1."""

    def _check_input_dim(self, input):
        pass


class Dropout(nn.Dropout):
    """Both draw for the elements in the order of the memory. Results of Lockstep's operations are contiguous, but for views;
    PyTorch's have the strides of their operands."""

    def forward(self, x):
        if x._is_view() and not x._base.is_contiguous():
            raise Unsupported("dropout of a view of a transposed result")
        return super().forward(x if x._is_view() else x.contiguous())


def linear(rows: int, columns: int, bias: bool = True) -> nn.Module:
    return nn.Linear(rows, columns, bias=bias)


def transformer(n_layers, vocab_size, max_seq_len, dim, n_heads, dropout_p, weight_tying) -> nn.Module:
    return models.Transformer(n_layers, vocab_size, max_seq_len, dim, n_heads, tied=weight_tying, dropout=dropout_p)


def along(reduce):
    """A reduction over all elements, or along a dim."""
    return lambda x, dim=None, keepdim=False: reduce(x) if dim is None else reduce(x, dim, keepdim=keepdim)


def cross_entropy(x, target):
    return nn.functional.cross_entropy(x.reshape(-1, x.shape[-1]), target.reshape(-1))


def in_place(name: str):
    return lambda x, *arguments, **options: getattr(x, name)(*arguments, **options)


ELEMENTWISE = ["relu", "tanh", "sigmoid", "abs", "exp", "sqrt", "rsqrt", "log", "gt", "where", "detach", "clone"]
SHAPES = ["narrow", "select", "unsqueeze", "cat", "chunk", "stack", "index_select"]
IN_PLACE = ["add_", "sub_", "mul_", "div_", "relu_", "fill_", "zero_", "copy_"]
FUNCTIONS = {
    "__builtins__": {"len": len, "range": range, "zip": zip},
    "none": None,
    "true": True,
    "false": False,
    "flatten": torch.flatten,
    "transpose": torch.transpose,
    "contiguous": torch.Tensor.contiguous,
    "reshape": torch.reshape,
    "requires_grad": torch.Tensor.requires_grad_,
    "tensor": torch.tensor,
    "amax": along(torch.amax),
    "amin": along(torch.amin),
    "argmax": torch.argmax,
    "attention": nn.functional.scaled_dot_product_attention,
    "cross_entropy": cross_entropy,
    "mse_loss": nn.functional.mse_loss,
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "gelu": nn.functional.gelu,
    **{name: getattr(torch, name) for name in ELEMENTWISE},
    **{name: getattr(torch, name) for name in SHAPES},
    **{name: in_place(name) for name in IN_PLACE},
    "randn": torch.randn,
    "rand": torch.rand,
    "randint": torch.randint,
    "sum": along(torch.sum),
    "mean": along(torch.mean),
    "Linear": linear,
    "MLP": models.MLP,
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "Conv2d": nn.Conv2d,
    "BatchNorm": BatchNorm,
    "LayerNorm": nn.LayerNorm,
    "RMSNorm": lambda dim: nn.RMSNorm(dim, eps=1e-6),  # PyTorch's default is that of the type
    "Dropout": Dropout,
    "Sequential": nn.Sequential,
    "Transformer": transformer,
}


LOSSES = {
    "squares": lambda y: ((y - 1) * (y - 1)).sum(),
    "mean": lambda y: (y * y).mean(),
    "entropy": lambda y: cross_entropy(y, torch.zeros(y.shape[:-1], dtype=torch.int64)),
    "distance": lambda y: nn.functional.mse_loss(y, torch.full_like(y, 0.5)),
    "changed": lambda y: (y.sub_(1) * y).sum(),
}


def evaluate(expression, names: dict):
    """The scenario's expressions of these programs are Python's, but for true, false and none."""
    return expression if not isinstance(expression, str) else eval(expression, dict(FUNCTIONS), names)
