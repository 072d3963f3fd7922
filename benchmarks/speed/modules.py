"""Does it pay to batch users whose network is a transformer or has residual blocks? Loop and batch in one run.

    python -m benchmarks.speed.modules [--quick]

500 users with 20 rows each, one round of ``head_steps`` and one step on the body, on a GPU (or a few users on a CPU).
Custom layers are a subclass of a known block, which has to be vouched for. Results: ``speed_modules_cuda``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.tables import keep, table
from tacitly.neural.engine.executor import Executor
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.local_training import LocalTraining
from tacitly.neural.engine.rehearsal import rehearse
from tacitly.neural.engine.update import UserUpdate, public_start
from tacitly.neural.networks.blocks import SelfAttention, residual_network, transformer

ROWS = 20


class OwnAttention(SelfAttention):
    """A custom layer: not among the known ones, because it could do more."""


def own_transformer() -> tuple[nn.Module, nn.Module]:
    """Return a transformer with custom layers."""
    body, head = transformer(1000, 16, classes=2)
    for layer in body.modules():
        if type(layer) is SelfAttention:
            layer.__class__ = OwnAttention
    return body, head


NETWORKS: dict[str, tuple[Callable[[], tuple[nn.Module, nn.Module]], int]] = {
    "transformer, 2 layers": (lambda: transformer(1000, 16, classes=2), 16),
    "transformer, custom attention": (own_transformer, 16),
    "residual network, 3 blocks": (lambda: residual_network(classes=2), 3072),
}


def measure(name: str, users: int, repeats: int = 3) -> list[dict[str, Any]]:
    """Return users per second of the loop and of the batch, and how far their sums are apart."""
    torch.manual_seed(0)
    make, width = NETWORKS[name]
    body, head = make()
    training = LocalTraining(local_steps=1, head_steps=5, rows=ROWS)
    update = UserUpdate(body=Flat(body), head=Flat(head), training=training, classes=2)
    rng = np.random.default_rng(0)
    X = rng.integers(1000, size=(users * ROWS, width)) if width == 16 else rng.uniform(size=(users * ROWS, width))
    X, y = X.astype(np.float32), rng.integers(2, size=users * ROWS).astype(np.float32)
    given = public_start(update), X, y, np.arange(0, users * ROWS + 1, ROWS), 1.0, 0
    found, sums = [], {}
    for kind in ("loop over users", "batch"):
        executor = Executor(update, device="auto", chunk=None if torch.cuda.is_available() else 4)
        executor.batched = kind == "batch"
        if executor.batched:
            rehearse(executor, given[0], width, users)
        count = users if executor.batched else max(1, users // 5)
        asked = *given[:3], given[3][: count + 1], *given[4:]
        executor.clipped_sum(*asked, normalised=True)
        times = []
        for _ in range(repeats if executor.batched else 1):
            started = time.perf_counter()
            total = executor.clipped_sum(*asked, normalised=True)
            times.append(time.perf_counter() - started)
        few = *given[:3], given[3][:11], *given[4:]
        sums[kind] = executor.clipped_sum(*few, normalised=True)
        assert np.isfinite(total).all()
        found.append({"network": name, "method": kind, "users_per_second": count / min(times)})
    apart = float(np.linalg.norm(sums["batch"] - sums["loop over users"]) / np.linalg.norm(sums["batch"]))
    loop = found[0]["users_per_second"]
    return [{**row, "ratio": row["users_per_second"] / loop, "apart": apart} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    names = list(NETWORKS)[:1] if options.quick else list(NETWORKS)
    rows = [row for name in names for row in measure(name, 500 if cuda else 2 if options.quick else 10)]
    lines = [[r["network"], r["method"], f"{r['users_per_second']:.3g}", f"{r['ratio']:.3g}"] for r in rows]
    text = table(["network", "method", "users/s", "ratio"], lines)
    device = torch.cuda.get_device_name() if cuda else "CPU"
    keep(f"speed_modules_{'cuda' if cuda else 'cpu'}", {"rows": rows, "device": device}, text, quick=options.quick)


if __name__ == "__main__":
    main()
