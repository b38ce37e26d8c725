"""The cases of golden_torch.py under flat sharding (FullyShardedDataParallel): scenarios/golden/flat_*.

Digests are of the original parameters in full, under their original names; without original parameters there are no gradients
to summon. The loss is the sum of (output - 1)^2 unless a case says otherwise.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Callable

import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from golden_torch_models import (
    MLP,
    Block,
    CompositeParamModel,
    CountCollectives,
    Transformer,
    UnitModule,
    digests,
    normal,
    tokens,
    two_layers,
)


class SimpleModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1, self.net2, self.net3 = nn.Linear(5, 8), nn.Linear(8, 4), nn.Linear(4, 12)

    def forward(self, x):
        return self.net3(self.net2(torch.relu(self.net1(x))))


def full(model: FullyShardedDataParallel, gradients: bool = False):
    return FullyShardedDataParallel.summon_full_params(model, writeback=False, with_grads=gradients)


def original_names(named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.replace("_fsdp_wrapped_module.", ""): tensor for name, tensor in named.items()}


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-2)


def adamw(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


@dataclass
class FlatCase:
    world_size: int
    build: Callable[[], nn.Module]
    units: set[type]
    draw: Callable[[], torch.Tensor]
    iterations: int = 5
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
    original: bool = True
    precision: MixedPrecision | None = None
    optimizer: Callable = adam
    new_inputs: bool = True  # drawn for every forward, else once
    squares: bool = True
    microbatches: int = 1
    max_norm: float | None = None
    tensor_parallel: bool = False  # on the second axis of a 2 x 2 mesh; then there are no digests

    def shard(self, model: nn.Module) -> FullyShardedDataParallel:
        options = dict(
            sharding_strategy=self.strategy,
            device_id=torch.device("cpu"),
            use_orig_params=self.original,
            mixed_precision=self.precision,
            auto_wrap_policy=ModuleWrapPolicy(self.units) if self.units else None,
        )
        if self.tensor_parallel:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            plan = {"net1": ColwiseParallel(input_layouts=Shard(0)), "net2": RowwiseParallel(output_layouts=Shard(0))}
            parallelize_module(model, mesh["tp"], plan)
            options["device_mesh"] = mesh["dp"]
        elif self.world_size == 4 and self.strategy in (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2):
            options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        return FullyShardedDataParallel(model, **options)

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return ((output - 1) ** 2).sum() if self.squares else output.sum()

    def run(self, seed: int, rank: int) -> dict:
        torch.manual_seed(seed)
        model = self.shard(self.build())
        optimizer = self.optimizer(model.parameters())
        torch.manual_seed(seed + rank + 1)
        num_inputs = self.iterations * self.microbatches
        inputs = [self.draw() for _ in range(num_inputs)] if self.new_inputs else [self.draw()] * num_inputs
        found, counting = dict(losses=[]), CountCollectives()
        for iteration in range(self.iterations):
            optimizer.zero_grad()
            with counting:
                for microbatch in range(self.microbatches):
                    is_last = microbatch == self.microbatches - 1
                    with contextlib.nullcontext() if is_last else model.no_sync():
                        loss = self.loss(model(inputs[iteration * self.microbatches + microbatch]))
                        loss.backward()
                    found["losses"].append(loss.item())
            if iteration == 0:
                found["comm_first"] = dict(sorted(counting.counts.items()))
                if self.original and not self.tensor_parallel:
                    with full(model, gradients=True):
                        found["grads_first"] = digests(original_names({name: p.grad for name, p in model.named_parameters()}))
            if self.max_norm is not None:
                found.setdefault("norms", []).append(model.clip_grad_norm_(self.max_norm).item())
            optimizer.step()
        if not self.tensor_parallel:
            with full(model):
                found["params_last"] = digests(original_names(dict(model.named_parameters())))
        return found


def composite(world_size: int, **options) -> FlatCase:
    return FlatCase(world_size, CompositeParamModel, options.pop("units", {UnitModule}), normal(2, 100), **options)


FLAT_CASES = {
    "flat_full_w2": composite(2),
    "flat_full_w3": composite(3),
    "flat_one_unit_w2": composite(2, units=set()),
    "flat_grad_op_w2": composite(2, strategy=ShardingStrategy.SHARD_GRAD_OP),
    "flat_no_shard_w2": composite(2, strategy=ShardingStrategy.NO_SHARD),
    "flat_not_original_w2": composite(2, original=False, optimizer=adamw),
    "flat_hybrid_w4": composite(4, strategy=ShardingStrategy.HYBRID_SHARD),
    "flat_hybrid_grad_op_w4": composite(4, strategy=ShardingStrategy._HYBRID_SHARD_ZERO2),
    "flat_bfloat16_w2": composite(2, precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)),
    "flat_uneven_w4": FlatCase(
        4, lambda: two_layers(7, 15, 3), set(), normal(4, 7), iterations=10, new_inputs=False, squares=False
    ),
    "flat_clip_w2": FlatCase(
        2, lambda: nn.Sequential(MLP(17), MLP(17)), {MLP}, normal(8, 17), max_norm=0.5,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    ),
    "flat_no_sync_w2": FlatCase(
        2, lambda: nn.Sequential(nn.Linear(32, 32), MLP(32), MLP(32)), {MLP}, normal(2, 32), iterations=3, microbatches=3
    ),
    "flat_transformer_w2": FlatCase(
        2, lambda: Transformer(3), {Block}, tokens(8, 2, 16), optimizer=adamw, squares=False
    ),
    "flat_tensor_parallel_w4": FlatCase(
        4, SimpleModel, set(), lambda: torch.rand(2, 3, 5), iterations=3, tensor_parallel=True,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=3e-5),
    ),
}
