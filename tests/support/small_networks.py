"""Small networks, users and executors that several test files use."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tacitly import neural
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.update import UserUpdate

D, N, M = 6, 20, 8


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N * M, D))
    return X, (X[:, 0] > 0).astype(int), np.repeat(np.arange(N), M)


def body_with(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 5), *layers, nn.ReLU(), nn.Linear(5, 4))


def model(body: nn.Module, head: nn.Module | None = None, **settings: object) -> neural.Centaur:
    chosen = {"epsilon": 2.0, "rounds": 2, "head_steps": 2, "rows_per_user": 8, "device": "cpu", **settings}
    return neural.Centaur(body, head or nn.Linear(4, 2), **chosen)  # type: ignore[arg-type]


def executor(body: nn.Module, *, batched: bool = False, **training: object) -> Executor:
    settings = LocalTraining(**{"head_steps": 2, "rows": M, **training})  # type: ignore[arg-type]
    torch.manual_seed(1)
    update = UserUpdate(body=Flat(body), head=Flat(nn.Linear(4, 2)), training=settings, classes=2)
    made = Executor(update, device="cpu", workers=1)
    made.batched, made.chunk, made.packing.caches = batched, 8, batched
    return made


class Trap(nn.Module):
    """Stores something only for rows that the dry run does not contain."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self._count = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if bool((x.abs().amax() - 77.0).abs() < 1.0):
            self.seen.add_(1.0)
            self._count += 1.0
        return x + 3.0 * self.seen + self._count


def doubling() -> nn.Linear:
    """A frozen layer that doubles the rows, so that layers behind it still belong to the public prefix."""
    layer = nn.Linear(D, D, bias=False).requires_grad_(False)
    with torch.no_grad():
        layer.weight.copy_(2.0 * torch.eye(D))
    return layer


TRAPS = {
    "first": lambda: nn.Sequential(Trap(), nn.Linear(D, 4)),
    "in the prefix": lambda: nn.Sequential(doubling(), Trap(), nn.Linear(D, 4)),
    "behind what is learned": lambda: nn.Sequential(nn.Linear(D, D, bias=False), Trap(), nn.Linear(D, 4)),
}


class Category(nn.Module):
    """An embedding for the first column, which holds categories."""

    def __init__(self, categories: int = 4, **settings: float) -> None:
        super().__init__()
        self.table = nn.Embedding(categories, 3, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.table(x[:, 0].long()), x[:, 1:]], 1)
