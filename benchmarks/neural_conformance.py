"""Compare one user's update computed alone with its row in a batch of users, on this device.

Results are relative distances ‖together − alone‖/‖alone‖ over users, in float64 and in float32 (TF32 off and on), for
CENTAUR's LeNet and the perceptron; and whether changing one user's rows (NaN, 1e30, other rows, fewer rows) changes any
bit of another user's update. Needs PyTorch and NumPy only.

    python -m benchmarks.neural_conformance [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.tables import keep, table
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.update import UserUpdate
from tacitly.neural.networks.architectures import lenet, mlp

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Network = Callable[[], tuple[nn.Module, nn.Module]]
Users = list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]


def synthetic(users: int, rows: int, width: int) -> Users:
    rng = np.random.default_rng(0)
    counts = rng.integers(2, rows + 1, size=users)
    drawn = [(rng.random(size=(m, width)), rng.integers(10, size=m)) for m in counts]
    return [(X.astype(np.float32), y.astype(np.float32)) for X, y in drawn]


def engine(make: Network, dtype: torch.dtype, tf32: bool, rows: int, chunk: int) -> Executor:
    torch.manual_seed(0)
    body, head = make()
    training = LocalTraining(local_steps=5, batch_rows=20, head_steps=3, rows=rows, local_rate=0.05)
    update = UserUpdate(body=Flat(body.to(dtype)), head=Flat(head.to(dtype)), training=training, classes=10)
    return Executor(update, device=DEVICE, chunk=chunk, tf32=tf32)


def distances(executor: Executor, users: Users) -> npt.NDArray[np.float64]:
    public = executor.update.body.start.cpu().double().numpy()
    together = executor.updates_in_chunk(public, users, len(users), 0)
    alone = np.array(executor.updates_alone(public, users, 0))
    if not (np.isfinite(together).all() and np.isfinite(alone).all()):
        raise RuntimeError("updates of ordinary rows are not finite and cannot be compared.")
    size, far = (np.linalg.norm(part, axis=1) for part in (alone, together - alone))
    # A user with two rows has one row, and so one class, in each half: the update is zero either way.
    if np.count_nonzero(size) < 0.9 * len(users):
        raise RuntimeError(f"{np.count_nonzero(size == 0)} of {len(users)} updates of ordinary rows are zero.")
    return np.asarray(np.where(size > 0, far / np.where(size > 0, size, 1.0), np.where(far > 0, np.inf, 0.0)))


def moved(executor: Executor, users: Users) -> int:
    """Return how many other users' updates change in any bit when the first user's rows are replaced."""
    public = executor.update.body.start.cpu().double().numpy()
    before = executor.updates_in_chunk(public, users, len(users), 0)[1:]
    X, y = users[0]
    others = [(np.full_like(X, np.nan), y), (np.full_like(X, 1e30), y), (X[::-1] + 1, y), (X[:1], y[:1])]
    return sum(
        int((before != executor.updates_in_chunk(public, [other, *users[1:]], len(users), 0)[1:]).any(1).sum())
        for other in others
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    many, rows = (3, 8) if quick else (64 if DEVICE == "cuda" else 8, 100)
    small: Network = lambda: lenet(widths=(4, 4, 12, 8))  # noqa: E731
    networks: dict[str, tuple[Network, int]] = {"LeNet": (small if quick else lenet, 3072), "MLP": (mlp, 784)}
    kinds = [("float64", torch.float64, False), ("float32", torch.float32, False)]
    if DEVICE == "cuda":
        kinds.append(("float32, TF32", torch.float32, True))
    found: list[dict[str, Any]] = []
    for name, (make, width) in networks.items():
        users = synthetic(many, rows, width)
        for kind, dtype, tf32 in kinds:
            executor = engine(make, dtype, tf32, rows, many)
            far = distances(executor, users)
            row = {
                "network": name,
                "type": kind,
                "users": many,
                "median": float(np.median(far)),
                "most": float(far.max()),
            }
            found.append({**row, "others_moved": moved(executor, users)})
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    keep(f"conformance_neural_{DEVICE}", {"rows": found, "device": name}, as_text(found), quick=quick)


def as_text(found: list[dict[str, Any]]) -> str:
    header = ["network", "arithmetic", "users", "median distance", "largest", "other users' updates changed"]
    return table(
        header, [[r["network"], r["type"], r["users"], r["median"], r["most"], r["others_moved"]] for r in found]
    )


if __name__ == "__main__":
    main()
