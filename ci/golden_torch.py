#!/usr/bin/env python3
"""Runs the cases of scenarios/golden on PyTorch with gloo, and writes the figures that the scenarios compare with.

    golden_torch.py --seed 1234 --output scenarios/golden/torch-2.15.0-cpu-seed1234.json
    golden_torch.py --seed 42 --against scenarios/golden/torch-2.14.1-cpu.json     distance of this PyTorch from a stored file
    golden_torch.py --seed 42 --only hsdp_w4,accumulate_w4 --against FILE
    golden_torch.py --flat --seed 42 --against scenarios/golden/torch-2.15.0-cpu-flat.json      the cases of flat sharding

CPU, float32, one process with one thread per rank. A case is one entry of CASES, or of golden_torch_flat.py: the seeds, the order
of the draws and the order of the parallel APIs are those of the scenario with the same name. Each entry of the written list has
`case`, `world_size`, `torch`, `losses_by_rank` (per rank one number per forward), `comm_first` (the c10d operations of the first
iteration; `replicate` starts up in it), `grads_first` and `params_last` (per parameter the sum, the sum of absolute values and the
sum weighted by position from 1, of the full tensor in float64), and `norms` where gradients are clipped. `--against` prints, per
case, the largest distance of the losses as a share of the largest loss, of the first two digests as a share of the second, and of
the third as a share of the second times the number of elements.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from typing import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn as nn
import torch.nn.functional as functional
from torch.distributed._composable import checkpoint, replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from golden_torch_flat import FLAT_CASES
from golden_torch_models import (
    MLP,
    CompositeParamModel,
    CountCollectives,
    MultiForwardModule,
    Net,
    Transformer,
    ViT,
    digests,
    norm_and_mlps,
    normal,
    tokens,
    two_layers,
)

# ---- iterations ----


@dataclass
class Case:
    """One training. `build` returns the model; `parallelize` applies the APIs and returns the module to call."""

    world_size: int
    build: Callable[[], nn.Module]
    parallelize: Callable[[nn.Module], nn.Module]
    draw: Callable[[], torch.Tensor]
    iterations: int
    optimizer: Callable = lambda parameters: torch.optim.Adam(parameters, lr=1e-2)
    new_inputs: bool = False  # drawn for every forward, else once
    microbatches: int = 1
    model_seed: Callable[[int], int] = lambda seed: seed
    input_seed: Callable[[int, int], int] = lambda seed, rank: seed + rank + 1

    def run(self, seed: int, rank: int) -> dict:
        torch.manual_seed(self.model_seed(seed))
        model = self.build()
        called = self.parallelize(model)
        optimizer = self.optimizer(model.parameters())
        torch.manual_seed(self.input_seed(seed, rank))
        x = None if self.new_inputs else self.draw()
        losses, counting = [], CountCollectives()
        for iteration in range(self.iterations):
            optimizer.zero_grad()
            with counting:
                for microbatch in range(self.microbatches):
                    if self.microbatches > 1:
                        called.set_requires_gradient_sync(microbatch == self.microbatches - 1)
                    loss = called(self.draw() if self.new_inputs else x).sum()
                    loss.backward()
                    losses.append(loss.item())
            if iteration == 0:
                comm_first = dict(sorted(counting.counts.items()))
                grads_first = digests({name: p.grad for name, p in model.named_parameters()})
            optimizer.step()
        return dict(losses=losses, comm_first=comm_first, grads_first=grads_first, params_last=digests(dict(model.named_parameters())))


class RowsOfOneBatch:
    """replicate_net_sgd_w2: every rank draws the same batch and trains on its own row; plain gradient descent."""

    world_size = 2

    def run(self, seed: int, rank: int) -> dict:
        torch.manual_seed(0)
        model = Net()
        called = replicate(model)
        x, target = torch.randn(2, 2), torch.randn(2, 2)
        losses = []
        for iteration in range(2):
            called.zero_grad()
            loss = functional.mse_loss(called(x[rank : rank + 1]), target[rank : rank + 1])
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                for p in model.parameters():
                    p -= p.grad
            torch.manual_seed(iteration)
            x = x[torch.randperm(2)]
        return dict(losses=losses, params_last=digests(dict(model.named_parameters())))


# ---- the cases ----


def shard(model: nn.Module, groups=lambda model: [], **options) -> nn.Module:
    for module in groups(model):
        fully_shard(module, **options)
    return fully_shard(model, **options)


def shard_on_2x2(model: nn.Module, **options) -> nn.Module:
    return shard(model, list, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), **options)


def checkpoint_each(model: nn.Module, modules) -> nn.Module:
    for module in modules:
        checkpoint(module)
    return model


def shard_vit(model: ViT) -> nn.Module:
    shard(model, lambda model: [model.vit, model.projector])
    register_fsdp_forward_method(model.vit, "forward_features")
    return model


def mesh_2d():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def parallelize_mlp_stack(model: nn.Module) -> nn.Module:
    """Outputs stay sharded tensors between the layers, except the last."""
    mesh = mesh_2d()
    plan = {f"{i}.in_proj": ColwiseParallel(use_local_output=False) for i in range(3)}
    plan |= {f"{i}.out_proj": RowwiseParallel(use_local_output=i == 2) for i in range(3)}
    parallelize_module(model, mesh["tp"], plan)
    return shard(model, list, mesh=mesh["dp"])


def parallelize_transformer(model: Transformer, sequence: bool) -> nn.Module:
    mesh = mesh_2d()
    given = {"input_layouts": Shard(1)} if sequence else {}
    wanted = {"output_layouts": Shard(1)} if sequence else {}
    plan = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), **wanted),
        "pos_embeddings": RowwiseParallel(input_layouts=Replicate(), **({"output_layouts": Shard(0)} if sequence else {})),
        "output": ColwiseParallel(output_layouts=Replicate(), **given),
    }
    if sequence:
        plan["norm"] = SequenceParallel()
    for i in range(len(model.layers)):
        layer = f"layers.{i}."
        plan |= {layer + f"attention.w{name}": ColwiseParallel() for name in "qkv"}
        plan |= {
            layer + "attention.wo": RowwiseParallel(**wanted),
            layer + "feed_forward.w1": ColwiseParallel(**given),
            layer + "feed_forward.w2": RowwiseParallel(**wanted),
        }
        if sequence:
            plan |= {layer + "attention_norm": SequenceParallel(), layer + "ffn_norm": SequenceParallel()}
            plan[layer + "attention"] = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    parallelize_module(model, mesh["tp"], plan)
    model.output.weight = model.tok_embeddings.weight
    return shard(model, blocks, mesh=mesh["dp"])


def of_dp_rank(seed: int, rank: int) -> int:
    """The seed of the inputs: the ranks of one tensor-parallel pair draw the same."""
    return seed + rank // 2 + 1


def blocks(model: Transformer):
    return model.layers


def large_transformer() -> nn.Module:
    return Transformer(3, vocab=1024, length=64)


CASES = {
    "single_group_replicate_w2": Case(2, lambda: two_layers(16, 15, 8), replicate, normal(4, 16), 10),
    "single_group_shard_w2": Case(2, lambda: two_layers(16, 15, 8), shard, normal(4, 16), 10),
    "single_group_shard_uneven_w4": Case(4, lambda: two_layers(7, 15, 3), shard, normal(4, 7), 10),
    "replicate_net_sgd_w2": RowsOfOneBatch(),
    "multi_group_reshard_w2": Case(
        2, large_transformer, lambda model: shard(model, blocks), tokens(1024, 3, 64), 10, new_inputs=True
    ),
    "multi_group_keep_w2": Case(
        2, large_transformer, lambda model: shard(model, blocks, reshard_after_forward=False), tokens(1024, 3, 64), 10, new_inputs=True
    ),
    "activation_checkpoint_w2": Case(
        2, large_transformer, lambda model: shard(checkpoint_each(model, model.layers), blocks), tokens(1024, 3, 64), 10
    ),
    "shared_params_w4": Case(
        4, lambda: Transformer(3), lambda model: shard(model, blocks), tokens(8, 2, 16), 10, new_inputs=True
    ),
    "transformer_adamw_w2": Case(
        2, lambda: Transformer(8), lambda model: shard(model, blocks), tokens(8, 2, 8), 10,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    ),
    "multi_forward_w2": Case(
        2, MultiForwardModule, lambda model: shard(model, lambda model: [model.inner]), normal(32, 4), 10,
        input_seed=lambda seed, rank: seed + rank,
    ),
    "hsdp_w4": Case(4, lambda: norm_and_mlps(16), shard_on_2x2, normal(8, 16), 5, new_inputs=True),
    "hsdp_uneven_ac_w4": Case(
        4, lambda: norm_and_mlps(17), lambda model: shard_on_2x2(checkpoint_each(model, model), reshard_after_forward=False),
        normal(8, 17), 5, new_inputs=True,
    ),
    "accumulate_w4": Case(
        4, lambda: nn.Sequential(nn.Linear(32, 32), MLP(32), MLP(32), MLP(32)), lambda model: shard(model, lambda model: list(model)[1:]),
        normal(2, 32), 3, new_inputs=True, microbatches=3,
    ),
    "mlp_stack_2d_w4": Case(
        4, lambda: nn.Sequential(MLP(16, 3), MLP(16), MLP(16, 3)), parallelize_mlp_stack, normal(8, 16), 10, new_inputs=True,
        input_seed=of_dp_rank,
    ),
    "transformer_2d_w4": Case(
        4, lambda: Transformer(2), lambda model: parallelize_transformer(model, False), tokens(8, 3, 16), 5, input_seed=of_dp_rank
    ),
    "transformer_2d_seq_w4": Case(
        4, lambda: Transformer(2), lambda model: parallelize_transformer(model, True), tokens(8, 3, 16), 5, input_seed=of_dp_rank
    ),
    "conv_forward_method_w2": Case(
        2, ViT, shard_vit, normal(4, 3, 224, 224), 1, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-4)
    ),
    "composite_replicate_w2": Case(
        2, CompositeParamModel, replicate, normal(2, 100), 5, new_inputs=True,
        model_seed=lambda seed: 0, input_seed=lambda seed, rank: rank + 1,
    ),
}


ALL_CASES = CASES | FLAT_CASES

# ---- ranks, files ----


def rank_main(rank: int, name: str, seed: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    case = ALL_CASES[name]
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=case.world_size)
    found = case.run(seed, rank)
    with open(os.path.join(folder, f"{rank}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


def run_case(name: str, seed: int) -> dict:
    world_size = ALL_CASES[name].world_size
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(rank_main, args=(name, seed, folder), nprocs=world_size, start_method="fork")
        ranks = []
        for rank in range(world_size):
            with open(os.path.join(folder, f"{rank}.json"), encoding="utf-8") as file:
                ranks.append(json.load(file))
    for rank, found in enumerate(ranks):
        if any(found[key] != ranks[0][key] for key in found if key != "losses"):
            raise SystemExit(f"golden_torch: {name}: rank {rank} has other gradients, parameters or collectives than rank 0")
    row = dict(case=name, world_size=world_size, torch=torch.__version__.split("+")[0])
    row["losses_by_rank"] = [found["losses"] for found in ranks]
    return row | {key: value for key, value in ranks[0].items() if key != "losses"}


def distances(mine: dict, theirs: dict, sizes: dict[str, int]) -> tuple[float, float, float]:
    losses = 0.0
    for a, b in zip(mine["losses_by_rank"], theirs["losses_by_rank"], strict=True):
        losses = max(losses, max(abs(x - y) for x, y in zip(a, b, strict=True)) / max(map(abs, b)))
    first, third = 0.0, 0.0
    for key in ("grads_first", "params_last"):
        if key not in theirs:
            continue
        if sorted(mine[key]) != sorted(theirs[key]):
            raise SystemExit(f"golden_torch: {mine['case']}: {key} has other names than the file")
        for name, b in theirs[key].items():
            a = mine[key][name]
            first = max(first, abs(a[0] - b[0]) / b[1], abs(a[1] - b[1]) / b[1])
            third = max(third, abs(a[2] - b[2]) / (b[1] * sizes[name]))
    return losses, first, third


def compare(rows: list[dict], path: str) -> int:
    with open(path, encoding="utf-8") as file:
        stored = {row["case"]: row for row in json.load(file)}
    different = 0
    print(f"{'case':30} {'losses':>9} {'1st, 2nd':>9} {'3rd':>9}  collectives")
    for row in rows:
        theirs = stored[row["case"]]
        case = ALL_CASES[row["case"]]
        model = case.build() if hasattr(case, "build") else Net()
        figures = distances(row, theirs, {name: p.numel() for name, p in model.named_parameters()})
        same = "comm_first" not in theirs or row["comm_first"] == theirs["comm_first"]
        different += not same
        text = "the same" if same else f"{row['comm_first']}, stored {theirs['comm_first']}"
        print(f"{row['case']:30} " + " ".join(f"{figure:9.1e}" for figure in figures) + "  " + text)
    return 1 if different else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), help="cases, by name")
    parser.add_argument("--flat", action="store_true", help="the cases of flat sharding")
    parser.add_argument("--output", metavar="FILE", help="write the figures there")
    parser.add_argument("--against", metavar="FILE", help="compare with stored figures; exit code 1 where collectives differ")
    options = parser.parse_args(arguments)
    options.only = options.only or list(FLAT_CASES if options.flat else CASES)
    for name in options.only:
        if name not in ALL_CASES:
            parser.error(f"unknown case '{name}'; known are {', '.join(ALL_CASES)}")
    # The ranks run on this machine. Without an interface, gloo resolves the host name, which may fail.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    rows = [run_case(name, options.seed) for name in options.only]
    if options.output:
        text = json.dumps(rows, indent=1)
        text = re.sub(r"\[([^\[\]{}]*)\]", lambda match: "[" + " ".join(match[1].split()) + "]", text)
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return compare(rows, options.against) if options.against else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
