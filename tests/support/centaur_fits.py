"""Data and a small CENTAUR model that several test files use."""

from __future__ import annotations

import numpy as np
import torch

from tacitly import neural

D = 7


def data(n: int = 60, m: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n * m, D))
    users = np.repeat(np.arange(n), m)
    y = (X[:, 0] + 0.3 * X[:, 1] * np.where(users % 2, 1, -1) > 0).astype(int)
    return X, y, users


def model(epsilon: float = 2.0, **settings: object) -> neural.Centaur:
    torch.manual_seed(0)
    body, head = neural.mlp(D, (6, 4), classes=2)
    chosen = {"rounds": 3, "head_steps": 2, "device": "cpu", **settings}
    return neural.Centaur(body, head, epsilon=epsilon, **chosen)  # type: ignore[arg-type]
