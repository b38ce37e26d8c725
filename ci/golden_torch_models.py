"""The models, draws and figures of golden_torch.py and golden_torch_flat.py."""

from __future__ import annotations

from collections import Counter
from typing import Callable

import torch
import torch.nn as nn
import torch.nn.functional as functional
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

# ---- models ----


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x):
        return self.fc3(self.fc2(self.fc1(x)))


class UnitModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(100, 100)
        self.seq = nn.Sequential(nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
        self.l2 = nn.Linear(100, 100)

    def forward(self, x):
        return self.l2(self.seq(self.l1(x)))


class CompositeParamModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(100, 100)
        self.u1, self.u2 = UnitModule(), UnitModule()
        self.p = nn.Parameter(torch.randn(100, 100))
        self.register_buffer("buffer", torch.randn(100, 100))

    def forward(self, x):
        return self.u2(self.u1(self.l(x))) @ self.p


class MLP(nn.Module):
    def __init__(self, dim: int, mult: int = 4):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(dim, mult * dim), nn.Linear(mult * dim, dim)

    def forward(self, x):
        return torch.relu(self.out_proj(torch.relu(self.in_proj(x))))


class MultiForwardModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x):
        return self.outer(self.inner(x) + self.inner(x))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.head_dim, self.dropout = dim // heads, dropout
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        shape = (batch, length, -1, self.head_dim)  # under tensor parallelism the heads of this rank
        q, k, v = (linear(x).view(shape).transpose(1, 2) for linear in (self.wq, self.wk, self.wv))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        return functional.dropout(self.wo(mixed.transpose(1, 2).reshape(batch, length, -1)), self.dropout, self.training)


class FeedForward(nn.Module):
    def __init__(self, dim: int, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.w1, self.w2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return functional.dropout(self.w2(functional.gelu(self.w1(x))), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(dim), Attention(dim, heads, dropout)
        self.ffn_norm, self.feed_forward = nn.LayerNorm(dim), FeedForward(dim, dropout)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, layers: int, vocab: int = 8, length: int = 16, dim: int = 16, heads: int = 4, tied: bool = True, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.tok_embeddings, self.pos_embeddings = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        if tied:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens):
        hidden = self.tok_embeddings(tokens) + self.pos_embeddings(torch.arange(tokens.shape[1]))
        hidden = functional.dropout(hidden, self.dropout, self.training)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.output(self.norm(hidden)).float()


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_proj = nn.Conv2d(3, 1024, kernel_size=14, stride=14)

    def forward_features(self, x):
        return self.patch_proj(x).flatten(2).transpose(1, 2)

    def forward(self, x):
        return self.forward_features(x).sum(1)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.vit, self.projector = VisionTransformer(), nn.Linear(1024, 256)

    def forward(self, x):
        return self.projector(self.vit.forward_features(x))


def two_layers(first: int, hidden: int, last: int) -> nn.Module:
    return nn.Sequential(nn.Linear(first, hidden), nn.ReLU(), nn.Linear(hidden, last))


def norm_and_mlps(dim: int) -> nn.Module:
    return nn.Sequential(nn.LayerNorm(dim, bias=False), MLP(dim, 3), MLP(dim), MLP(dim, 3))


def tokens(vocab: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, vocab, shape)


def normal(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


# ---- figures ----


class CountCollectives(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    @staticmethod
    def is_wait(function) -> bool:
        return function._opname in ("wait_tensor", "_wrap_tensor_autograd")

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # DTensor then issues its collectives below this mode
        if function.namespace == "c10d" or (function.namespace == "_c10d_functional" and not self.is_wait(function)):
            self.counts[function._opname] += 1
        return function(*args, **(kwargs or {}))


def digests(named: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    found = {}
    for name, tensor in named.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        flat = full.detach().double().flatten()
        weights = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
        found[name] = [flat.sum().item(), flat.abs().sum().item(), (flat * weights).sum().item()]
    return found
