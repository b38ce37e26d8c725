"""The trainings of torch_values.py: two branches, of which some steps use one, and gradients that are removed or zeroed.

A training of `world_size` ranks is one process that averages the losses of all ranks, in float64.
"""

from __future__ import annotations

import torch
import torch.nn as nn

# The branches that each step uses. `nothing` is a step of the optimizer without a forward.
BRANCHES = ["left", "right", "right", "both", "nothing", "left", "both", "right"]
# Weights have these options, biases half the rate and no decay.
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "decayed_momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.75, weight_decay=0.25),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.1, betas=(0.75, 0.875)),
    "decayed_adam": lambda groups: torch.optim.Adam(groups, lr=0.1, weight_decay=0.25),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.5, 0.75), eps=0.0625, weight_decay=0.01),
}
CLEARED = ["removed", "zeroed", "left_zeroed"]
STORED = [1, 4, 7]  # the steps whose values are written


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(5, 2)

    def forward(self, x, branch):
        hidden = torch.relu(self.first(x))
        if branch == "both":
            return self.left(hidden) + self.right(hidden)
        return self.left(hidden) if branch == "left" else self.right(hidden)


def numbers(count: int, shift: int) -> torch.Tensor:
    """Multiples of 1/8 from -6/8 to 6/8 that repeat after 13 elements."""
    return torch.tensor([((5 * i + 3 * shift) % 13 - 6) / 8 for i in range(count)], dtype=torch.float64)


def clear(model: Branches, optimizer: torch.optim.Optimizer, how: str) -> None:
    if how == "left_zeroed":
        model.left.zero_grad(set_to_none=False)
        model.first.zero_grad()
        model.right.zero_grad()
    else:
        optimizer.zero_grad(set_to_none=how == "removed")


def flat(tensors) -> list[float]:
    return torch.cat([t.detach().flatten() for t in tensors]).tolist()


def train(optimizer_name: str, cleared: str, world_size: int) -> dict:
    """`start` and `steps` hold all parameters one after the other; `state` has one entry per parameter with state."""
    model = Branches().double()
    with torch.no_grad():
        for shift, p in enumerate(model.parameters()):
            p.copy_(numbers(p.numel(), shift).view_as(p))
    start = flat(model.parameters())
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    optimizer = OPTIMIZERS[optimizer_name]([{"params": weights}, {"params": biases, "lr": 0.05, "weight_decay": 0.0}])
    steps = []
    for i, branch in enumerate(BRANCHES):
        clear(model, optimizer, cleared)
        if branch != "nothing":
            losses = [model(numbers(6, 2 * i + rank + 1).view(2, 3), branch).square().sum() for rank in range(world_size)]
            (sum(losses) / world_size).backward()
        optimizer.step()
        if i in STORED:
            steps.append(flat(model.parameters()))
    state = {
        f"{name}.{key}": int(value) if key == "step" else flat([value])
        for name, p in model.named_parameters()
        for key, value in optimizer.state.get(p, {}).items()
        if value is not None
    }
    return dict(optimizer=optimizer_name, cleared=cleared, world_size=world_size, start=start, steps=steps, state=state)


def trainings() -> list[dict]:
    return [train(name, cleared, size) for name in OPTIMIZERS for cleared in CLEARED for size in (1, 3)]
