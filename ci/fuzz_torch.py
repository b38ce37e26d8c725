#!/usr/bin/env python3
"""Runs programs of `lockstep fuzz --peer` on PyTorch and compares losses, gradients and parameters.

    fuzz_torch.py FILE          one JSON line per program: {index, scenario, records}

`lockstep fuzz` has shown that the ranks of a program train as one model alone (the name `alone` in the scenario), in bits where they are
promised. Sharding, replication and tensor parallelism are defined to equal that plain model. So this interpreter of the scenario
language runs the plain model only: the steps on `alone`, with the inputs of all ranks, on PyTorch's own modules, autograd, clipping and
optimizers. Steps on `test` and `replicated` are left out, as are meshes, checkpoints and flags, which change no value. The seeds, and
with them the initial weights and inputs, are those of the scenario.

After each record PyTorch goes on with the gradients and parameters of Lockstep, so that a difference within the allowance does not grow:
Adam turns the rounding of a gradient that is zero (of a bias before a batch norm) into a step as large as any other.

A loss or gradient agrees if |a - b| <= 1e-3 |b| + 1e-3 max |b| over its tensor + 2e-5 max |b| over all tensors of the record. Where that
fails, PyTorch runs the program 8 times more, with every input and output of a module, and every gradient of one, changed by one rounding.
Gradients that cancel change much by that, and may differ by 4 times the largest change in the tensor. A parameter agrees if
|a - b| <= 1e-5 |b| + 1e-5 max |b| over its tensor. A program is left out if it computes or reduces in 16-bit types, where the order of
roundings is not PyTorch's. Prints each disagreement and a summary; exit code 1 where programs disagree.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path

import torch
import torch.nn as nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fuzz_torch_language import LOSSES, Expression, Unsupported, evaluate  # noqa: E402


def matching(model: nn.Module, path: str) -> list[nn.Parameter]:
    """The parameters below `alone.PATH.**`."""
    below = path.split(".", 1)[1].removesuffix("**")
    return [p for name, p in model.named_parameters() if name.startswith(below)]


class Rounded(torch.autograd.Function):
    """Changes each value, and each gradient, by one rounding of float32 up or down."""

    @staticmethod
    def change(x: torch.Tensor, directions: torch.Generator) -> torch.Tensor:
        return x * (1 + (2 * torch.randint(0, 2, x.shape, generator=directions) - 1) * 2.0**-23)

    @staticmethod
    def forward(context, x, directions):
        context.directions = directions
        return Rounded.change(x, directions)

    @staticmethod
    def backward(context, gradient):
        return Rounded.change(gradient, context.directions), None


class Run:
    """One program. The names `test` and `alone` are one model until the scenario copies it."""

    def __init__(self, scenario: dict, theirs: dict, seed: int | None = None):
        """`theirs`: the records of Lockstep. With `seed`, values within the model are changed by one rounding, up or down."""
        self.scenario = scenario
        self.theirs = theirs
        self.directions = None if seed is None else torch.Generator().manual_seed(seed)
        self.names: dict = {"parameters": self.parameters}
        self.records: dict = {}
        self.builders = {}
        for name, definition in scenario.get("models", {}).items():
            self.builders[name] = lambda *values, definition=definition: Expression(definition, *values)

    def run(self) -> dict:
        for step in self.scenario["steps"]:
            verb = next(iter(step))
            action = getattr(self, "verb_" + verb, None)
            if action:
                action(step[verb], step)
        return self.records

    @property
    def model(self) -> nn.Module:
        return self.names["model"]

    def verb_seed(self, value, step):
        if not isinstance(value, str):  # a seed per rank belongs to a step of the model under test
            torch.manual_seed(value)

    def verb_model(self, build, step):
        if step["as"] == "stale":
            self.names["stale"] = evaluate(build, self.builders)
            return
        if "model" in self.names:  # the model under test goes on under another parallel API, or a hook trains another one
            return
        self.names["model"] = evaluate(build, self.builders)
        if self.directions:
            for module in self.model.modules():
                module.register_forward_pre_hook(lambda _, inputs: tuple(self.rounded(x) for x in inputs))
                module.register_forward_hook(lambda _, inputs, output: self.rounded(output))

    def parameters(self, path: str) -> list[nn.Parameter]:
        return list(self.model.get_submodule(path.removeprefix("alone").removeprefix(".")).parameters())

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        return Rounded.apply(x, self.directions) if x.is_floating_point() else x

    def verb_set_parameter(self, arguments, step):
        """Ties a weight to another one; the copies of the model are this model."""
        if not arguments["parameter"].startswith("test."):
            return
        owner, _, slot = arguments["parameter"].removeprefix("test.").rpartition(".")
        setattr(self.model.get_submodule(owner), slot, self.model.get_parameter(arguments["to"].removeprefix("test.")))

    def verb_set_requires_grad(self, arguments, step):
        is_copied = "x_0" in self.names
        if arguments["parameters"].startswith("alone." if is_copied else "test."):
            for p in matching(self.model, arguments["parameters"]):
                p.requires_grad_(arguments["to"])

    def verb_optimizer(self, arguments, step):
        if step["as"] != "alone_optimizer":
            return
        options = {key: evaluate(value, {}) for key, value in arguments.items() if key not in ("type", "model", "groups", "fused")}
        groups = [{"params": list(self.model.parameters())}]
        if "groups" in arguments:
            own, rest = arguments["groups"]
            path = re.fullmatch(r"parameters\(alone\.(.*)\)", own["parameters"])[1] + "."
            named = list(self.model.named_parameters())
            groups = [
                {"params": [p for name, p in named if name.startswith(path)], "lr": float(own["lr"]), "weight_decay": float(own["weight_decay"])},
                {"params": [p for name, p in named if not name.startswith(path)]},
            ]
        self.names["optimizer"] = getattr(torch.optim, arguments["type"])(groups, **options)

    def verb_let(self, names, step):
        """Inputs, the step's number, changes of the plain model and averages of its parameters."""
        for name, value in names.items():
            if name.startswith("x_") or name == "now":
                self.names[name] = evaluate(value, {})
            elif name == "average_of_alone" or (name == "changed" and re.search(r"parameters\(alone\b", value)):
                with torch.no_grad():
                    result = evaluate(re.sub(r"parameters\(([\w.]+)\)", r"parameters('\1')", value), self.names)
                if name != "changed":
                    self.names[name] = result

    def verb_backward(self, loss, step):
        """Of a model that changes what its backward needs."""
        if "raises" not in step or loss != "lost_in_place":
            return
        self.records["refusals"] = [0.0]
        try:
            self.names["stale"](torch.randn(3, 4)).sum().backward()
        except RuntimeError as error:
            self.records["refusals"] = [float("modified by an inplace operation" in str(error))]

    def verb_hook(self, arguments, step):
        if arguments.get("optimizer") != "alone_optimizer":
            return

        def run(*_):
            for inner in step["steps"]:
                if evaluate(inner["when"], self.names):
                    self.verb_let(inner["let"], inner)

        optimizer = self.names["optimizer"]
        before = arguments["at"] == "before_step"
        (optimizer.register_step_pre_hook if before else optimizer.register_step_post_hook)(run)

    def verb_use(self, routine, step):
        """The mean over the ranks of their gradients; microbatches of one round share a reduction."""
        given = step["with"]
        if "computes_in" in given or "reduces_in" in given:
            raise Unsupported("16-bit types")
        inputs, seeds = self.names[given["inputs"]], evaluate(given.get("seeds", "[]"), {})
        loss_of = LOSSES[given.get("loss_kind", "squares")]
        parameters = list(self.model.parameters())
        total = [None if p.grad is None else p.grad.clone() for p in parameters]
        losses = [[] for _ in inputs]
        for rank, own in enumerate(inputs):
            for p in parameters:
                p.grad = None
            for k, x in enumerate(own):
                if seeds:
                    torch.manual_seed(seeds[k] + rank)
                loss = loss_of(self.model(x))
                loss.backward()
                losses[rank].append(loss.item())
            for i, p in enumerate(parameters):
                if p.grad is not None:
                    part = p.grad / len(inputs)
                    total[i] = part if total[i] is None else total[i] + part
        for p, gradient in zip(parameters, total):
            p.grad = gradient
        self.names["losses"] = losses

    def verb_clip_grad_norm(self, arguments, step):
        if arguments["model"] == "alone":
            norm = evaluate(arguments.get("norm", 2.0), {"inf": float("inf")})
            nn.utils.clip_grad_norm_(self.model.parameters(), float(arguments["max_norm"]), norm_type=float(norm))

    def verb_set_lr(self, arguments, step):
        if arguments["optimizer"] == "alone_optimizer":
            for group in self.names["optimizer"].param_groups:
                group["lr"] = float(arguments["to"])

    def verb_step(self, optimizer, step):
        if optimizer == "alone_optimizer":
            self.names["optimizer"].step()

    def verb_zero_grad(self, of, step):
        arguments = of if isinstance(of, dict) else {"of": of}
        if arguments["of"] == "alone_optimizer":
            self.names["optimizer"].zero_grad(set_to_none=arguments.get("set_to_none", True))

    def verb_record(self, names, step):
        """The names of records say what they hold: losses_0, inputs_0 (their gradients), gradients_0, parameters_0, averages."""
        for name in names:
            kind, _, index = name.partition("_")
            if kind == "losses":
                self.records[name] = copy.deepcopy(self.names["losses"])
                continue
            tensors = {
                "inputs": lambda: [torch.stack([x.grad for x in own]) for own in self.names["x_" + index]],
                "gradients": lambda: [p.grad for p in self.model.parameters() if p.grad is not None],
                "parameters": lambda: [p.detach() for p in self.model.parameters()],
                "averages": lambda: self.names["average_of_alone"],
            }[kind]()
            self.records[name] = [tensor.tolist() for tensor in tensors]
            take_values(tensors, self.theirs[name])


def take_values(tensors: list[torch.Tensor], values: list):
    """Writes recorded values into the tensors that have as many elements. The comparison reports the others."""
    for tensor, recorded in zip(tensors, values):
        numbers = flat(recorded)
        if len(numbers) == tensor.numel():
            tensor.copy_(torch.tensor(numbers, dtype=tensor.dtype).reshape(tensor.shape))


def flat(value) -> list[float]:
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [float(value)]


def difference(theirs, ours, allowed) -> str:
    """Empty where two records agree. `allowed(i, number, largest)`: the allowance of a number of tensor i, whose largest is given."""
    if len(theirs) != len(ours):
        return f"{len(theirs)} tensors here, {len(ours)} in PyTorch"
    for i, (a, b) in enumerate(zip(theirs, ours)):
        a, b = flat(a), flat(b)
        if len(a) != len(b):
            return f"tensor {i} has {len(a)} elements here, {len(b)} in PyTorch"
        largest = max(map(abs, b), default=0.0)
        for x, y in zip(a, b):
            if not abs(x - y) <= allowed(i, y, largest):
                return f"tensor {i}: {x} here, {y} in PyTorch; the largest is {largest}"
    return ""


def difference_of_parameters(theirs, ours) -> str:
    return difference(theirs, ours, lambda i, number, largest: 1e-5 * abs(number) + 1e-5 * largest)


def difference_of_computed(theirs, ours, changes=None) -> str:
    """Of losses or gradients. `changes`: by tensor, how much a number changes with roundings."""
    largest_of_all = max(map(abs, flat(ours)), default=0.0)
    changes = changes or [0.0] * len(ours)
    return difference(
        theirs, ours, lambda i, number, largest: 1e-3 * abs(number) + 1e-3 * largest + 2e-5 * largest_of_all + 4 * changes[i]
    )


def changes_with_roundings(scenario: dict, records: dict, name: str, ours) -> list[float]:
    changes = [0.0] * len(ours)
    for seed in range(8):
        rounded = Run(scenario, records, seed).run()[name]
        for i, (a, b) in enumerate(zip(rounded, ours)):
            changes[i] = max([changes[i]] + [abs(x - y) for x, y in zip(flat(a), flat(b))])
    return changes


def disagreement(program: dict) -> str:
    scenario, records = program["scenario"], program["records"]
    found = Run(scenario, records).run()
    if not found:
        return "nothing was recorded"
    records["refusals"] = [1.0]  # each expected failure of a backward has failed
    for name, ours in found.items():
        if name.startswith(("parameters", "averages")):
            text = difference_of_parameters(records[name], ours)
        else:
            text = difference_of_computed(records[name], ours)
            if text:
                text = difference_of_computed(records[name], ours, changes_with_roundings(scenario, records, name, ours))
        if text:
            return f"{name}: {text}"
    return ""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    torch.set_num_threads(1)
    compared, different, left_out = 0, 0, {}
    with open(arguments[0], encoding="utf-8") as file:
        for line in file:
            program = json.loads(line)
            try:
                text = disagreement(program)
            except Unsupported as reason:
                left_out[str(reason)] = left_out.get(str(reason), 0) + 1
                continue
            compared += 1
            if text:
                different += 1
                print(f"DISAGREES  program {program['index']} with PyTorch: {text}")
    reasons = ", ".join(f"{count} for {reason}" for reason, count in sorted(left_out.items()))
    print(f"PyTorch {torch.__version__.split('+')[0]}: {compared} programs compared, {different} disagree; left out: {reasons or 'none'}")
    return 1 if different or not compared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
