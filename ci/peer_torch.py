#!/usr/bin/env python3
"""Runs the measurements of `lockstep bench` on PyTorch, with gloo or NCCL, and prints the same JSON lines.

    peer_torch.py collectives [--rounds N] [--bytes 1024,65536] [--only all_reduce]
    peer_torch.py steps [--rounds N] [--models tiny,small,medium] [--only replicate]
    peer_torch.py steps --world-size 4 --only fully_shard_tensor_parallel
    peer_torch.py checkpoint [--rounds N] [--only save,load]
    peer_torch.py steps --device cuda --world-size 1      with NCCL, a GPU per rank
    peer_torch.py steps --like FILE         only the measurements in a file of `lockstep bench --json` lines

World size 2 (--world-size), one process with one thread per rank, float32 without TF32. A measurement lasts from the moment the last rank enters to the
moment the last rank leaves (all processes of a machine share the clock), after warm-up; median, low and high are the
50th, 10th and 90th percentile. Buffers are written before each call and used in turn, so that none is in a cache only because it was just used. `bytes` is the larger of a rank's input and output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn as nn
import torch.nn.functional as functional

SIZES = [1 << 10, 64 << 10, 4 << 20, 32 << 20]
NUM_BUFFERS = 4
device = torch.device("cpu")  # of this rank


def wait_for_device() -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def barrier() -> None:
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


MODELS = {
    "tiny": dict(dim=16, layers=3, heads=4, vocab=1024, length=64, batch=3),
    "small": dict(dim=256, layers=4, heads=8, vocab=1024, length=128, batch=4),
    "medium": dict(dim=768, layers=4, heads=12, vocab=8192, length=256, batch=2),
}

# Suffix of the names, tensors, rows, columns: those of `lockstep bench checkpoint`.
CHECKPOINTS = [("", 8, 4096, 4096), (", small tensors", 2048, 64, 256)]


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.head_dim = dim // heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            linear(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for linear in (self.wq, self.wk, self.wv)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(dim), Attention(dim, heads)
        self.ffn_norm = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(nn.Module):
    """Learned positions, pre-norm blocks, and an output tied to the token embedding."""

    def __init__(self, dim: int, layers: int, heads: int, vocab: int, length: int, batch: int):
        super().__init__()
        self.tok_embeddings, self.pos_embeddings = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.output = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)
        self.output.weight = self.tok_embeddings.weight
        self.tokens = (batch, length)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tok_embeddings(tokens) + self.pos_embeddings(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.output(self.norm(hidden)).float()


def build(name: str) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """The model, and a function that draws an input for it."""
    if name in MODELS:
        shape = MODELS[name]
        size = (shape["batch"], shape["length"])
        return Transformer(**shape).to(device), lambda: torch.randint(0, shape["vocab"], size, device=device)
    raise SystemExit(f"peer_torch: unknown model '{name}'; known are {', '.join(MODELS)}")


def collective(name: str, size: int, rank: int) -> tuple[list[torch.Tensor], Callable[[int], object]]:
    """The buffers to write, and the call on the i-th of them; in place if PyTorch's own call is."""
    whole, part = size // 4, size // 4 // dist.get_world_size()
    wholes = [torch.empty(whole, device=device) for _ in range(NUM_BUFFERS)]
    if name == "all_reduce":
        return wholes, lambda i: dist.all_reduce(wholes[i])
    if name == "broadcast":
        return wholes, lambda i: dist.broadcast(wholes[i], src=0)
    if name == "all_gather":
        parts = [torch.empty(part, device=device) for _ in range(NUM_BUFFERS)]
        return parts + wholes, lambda i: dist.all_gather_into_tensor(wholes[i], parts[i])
    if name == "reduce_scatter":
        parts = [torch.empty(part, device=device) for _ in range(NUM_BUFFERS)]
        return parts + wholes, lambda i: dist.reduce_scatter_tensor(parts[i], wholes[i])
    if name == "all_to_all":
        outputs = [torch.empty(whole, device=device) for _ in range(NUM_BUFFERS)]
        return outputs + wholes, lambda i: dist.all_to_all_single(outputs[i], wholes[i])
    raise SystemExit(f"peer_torch: unknown collective '{name}'; known are {', '.join(COLLECTIVES)}")


COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]
STEPS = ["alone", "replicate", "fully_shard", "flat_shard", "tensor_parallel", "fully_shard_tensor_parallel"]


def shard(model: nn.Module, mesh) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def make_tensor_parallel(model: nn.Module, mesh) -> None:
    """The plan of scenarios/lib/parallelize_transformer.yaml without sequence parallelism."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {f"{name}_embeddings": RowwiseParallel(input_layouts=Replicate()) for name in ("tok", "pos")}
    plan["output"] = ColwiseParallel(output_layouts=Replicate())
    for i in range(len(model.layers)):
        plan |= {f"layers.{i}.attention.w{name}": ColwiseParallel() for name in "qkv"}
        plan |= {f"layers.{i}.attention.wo": RowwiseParallel()}
        plan |= {f"layers.{i}.feed_forward.0": ColwiseParallel(), f"layers.{i}.feed_forward.2": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    model.output.weight = model.tok_embeddings.weight


def make_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """One fused Adam for the plain parameters and one for the sharded ones: a fused step takes no mixture."""
    kinds: dict[type, list[torch.Tensor]] = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    return [torch.optim.Adam(parameters, lr=1e-3, fused=True) for parameters in kinds.values()]


def parallelize(model: nn.Module, name: str, world_size: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    if name == "replicate":
        return nn.parallel.DistributedDataParallel(model)
    if name == "fully_shard":
        shard(model, init_device_mesh(device.type, (world_size,)))
    elif name == "flat_shard":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({type(model.layers[0])})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=device)
    elif name == "tensor_parallel":
        make_tensor_parallel(model, init_device_mesh(device.type, (world_size,)))
    elif name == "fully_shard_tensor_parallel":
        mesh = init_device_mesh(device.type, (world_size // 2, 2), mesh_dim_names=("dp", "tp"))
        make_tensor_parallel(model, mesh["tp"])
        shard(model, mesh["dp"])
    elif name != "alone":
        raise SystemExit(f"peer_torch: unknown step '{name}'; known are {', '.join(STEPS)}")
    return model


def time_calls(call: Callable[[int], object], prepare: Callable[[int], None], rounds: int, warm_up: int, together: bool) -> list[float]:
    """Seconds of each call, from the last entry to the last exit; the same list on every rank if `together`."""
    spans = torch.empty(rounds, 2, dtype=torch.float64)  # on the CPU, over gloo
    for i in range(-warm_up, rounds):
        prepare(i)
        wait_for_device()
        if together:
            barrier()
            wait_for_device()
        start = time.perf_counter()
        call(i % NUM_BUFFERS)
        wait_for_device()
        end = time.perf_counter()
        if i >= 0:
            spans[i, 0], spans[i, 1] = start, end
    if together:
        dist.all_reduce(spans, op=dist.ReduceOp.MAX)
    return (spans[:, 1] - spans[:, 0]).tolist()


def on_device() -> dict:
    return {} if device.type == "cpu" else {"device": device.type}


def line(group: str, name: str, params: dict, unit: str, seconds: list[float]) -> str:
    scale = {"us": 1e6, "ms": 1e3}[unit]
    ordered = sorted(second * scale for second in seconds)
    at = lambda share: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)  # noqa: E731
    row = dict(kind="bench", group=group, name=name, params=params, unit=unit)
    row |= dict(median=at(0.5), low=at(0.1), high=at(0.9), rounds=len(ordered))
    return json.dumps(row)


def run_collectives(rank: int, options: argparse.Namespace, say: Callable[[str], None]) -> None:
    for name in options.only or COLLECTIVES:
        for size in options.bytes:
            buffers, call = collective(name, size, rank)

            def dirty(i: int) -> None:
                for buffer in buffers[i % NUM_BUFFERS :: NUM_BUFFERS]:
                    buffer.fill_(float(rank + 1))

            rounds = options.rounds or (400 if size <= 1 << 20 else 30)
            seconds = time_calls(call, dirty, rounds, max(4, rounds // 10), together=True)
            params = {"bytes": size, "world_size": options.world_size} | on_device()
            say(line("collectives", name, params, "us", seconds))


def run_steps(rank: int, options: argparse.Namespace, say: Callable[[str], None]) -> None:
    for model_name in options.models:
        for name in options.only or STEPS[: None if options.world_size >= 4 else -1]:
            if options.world_size == 1 and name not in ("alone", "fully_shard"):
                continue
            if name == "alone" and rank != 0:
                barrier()  # one rank measures while the other is idle
                continue
            torch.manual_seed(42)
            model, draw_input = build(model_name)
            model = parallelize(model, name, options.world_size)
            optimizers = make_optimizers(model)
            # Ranks of one tensor-parallel group train on the same input.
            group = rank // {"tensor_parallel": options.world_size, "fully_shard_tensor_parallel": 2}.get(name, 1)
            torch.manual_seed(42 + group + 1)
            inputs = [draw_input() for _ in range(NUM_BUFFERS)]

            def step(i: int) -> None:
                for optimizer in optimizers:
                    optimizer.zero_grad()
                model(inputs[i]).sum().backward()
                for optimizer in optimizers:
                    optimizer.step()

            rounds = options.rounds or {"tiny": 200, "small": 40, "medium": 12}[model_name]
            seconds = time_calls(step, lambda i: None, rounds, max(3, rounds // 10), together=name != "alone")
            if name == "alone":
                barrier()
            world_size = 1 if name == "alone" else options.world_size
            params = {"model": model_name, "world_size": world_size} | on_device()
            say(line("steps", name, params, "ms", seconds))


def checkpoint_state(mesh, dim: int, count: int, rows: int, columns: int) -> dict[str, torch.Tensor]:
    from torch.distributed.tensor import DTensor, Shard

    local = (rows // mesh.size(), columns) if dim == 0 else (rows, columns // mesh.size())
    return {f"tensor_{i}": DTensor.from_local(torch.rand(*local), mesh, [Shard(dim)]) for i in range(count)}


def run_checkpoint(rank: int, options: argparse.Namespace, say: Callable[[str], None]) -> None:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (options.world_size,))
    folder = os.path.join(options.folder, "saved")
    for suffix, count, rows, columns in CHECKPOINTS:
        by_rows, by_columns = (checkpoint_state(mesh, dim, count, rows, columns) for dim in (0, 1))
        calls = {
            "save": lambda i: checkpoint.save(by_rows, checkpoint_id=folder),
            "load": lambda i: checkpoint.load(by_rows, checkpoint_id=folder),
            "load columns": lambda i: checkpoint.load(by_columns, checkpoint_id=folder),
        }
        for name, call in calls.items():
            if options.only and name not in options.only:
                continue
            seconds = time_calls(call, lambda i: None, options.rounds or 5, 1, together=True)
            params = {"world_size": options.world_size, "bytes": count * rows * columns * 4}
            say(line("checkpoint", name + suffix, params, "ms", seconds))


def rank_main(rank: int, options: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    global device
    backend = "gloo"
    if options.device == "cuda":
        device, backend = torch.device("cuda", rank), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=options.world_size)

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    {"collectives": run_collectives, "steps": run_steps, "checkpoint": run_checkpoint}[options.what](rank, options, say)
    dist.destroy_process_group()


def take_from(options: argparse.Namespace) -> None:
    """Sets names, sizes and models to those of the lines of --like that PyTorch can measure too."""
    with open(options.like, encoding="utf-8") as file:
        rows = [row for row in map(json.loads, filter(str.strip, file)) if row.get("group") == options.what]
    known = {"collectives": COLLECTIVES, "steps": STEPS, "checkpoint": ["save", "load", "load columns"]}[options.what]
    distinct = lambda values: list(dict.fromkeys(values))  # noqa: E731
    options.only = distinct(row["name"] for row in rows if row["name"] in known)
    options.bytes = distinct(row["params"]["bytes"] for row in rows if "bytes" in row["params"])
    models = distinct(row["params"].get("model") for row in rows)
    options.models = [name for name in models if name in MODELS]


def main(arguments: list[str]) -> int:
    words = lambda text: text.split(",")  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collectives", "steps", "checkpoint"])
    parser.add_argument("--rounds", type=int, default=0, help="calls measured (default: by size)")
    parser.add_argument("--bytes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES)
    parser.add_argument("--models", type=words, default=list(MODELS))
    parser.add_argument("--only", type=words, default=[])
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--like", metavar="FILE", help="lines of `lockstep bench --json`")
    options = parser.parse_args(arguments)
    if options.like:
        take_from(options)
        if not options.only:
            return 0
    if options.device == "cuda" and options.what == "checkpoint":
        parser.error("checkpoints are measured on the CPU")
    # All ranks run on this machine. Without an interface, gloo resolves the host name, which may fail.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        options.folder = folder
        multiprocessing.spawn(rank_main, args=(options, os.path.join(folder, "store")), nprocs=options.world_size)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
