"""A public start from a labelled public data set: a body trained to tell the classes of CIFAR-100 apart.

CIFAR-100 and CIFAR-10 have no class in common. Images are seen zoomed, moved, mirrored, in other colours, and mixed in
pairs (Zhang et al. 2018); the classifier on top is thrown away. The data set is read from ``TACITLY_CIFAR100``, or from
``cifar100`` in the benchmarks' data folder.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks import images
from tacitly.neural.public_start.pretraining import Strength, augmented

IMAGES, BATCH, RATE = 30_000, 512, 2e-3
MILD = Strength(area=0.6, reach=1.12, light=0.2, colours=0.08, grey=0.0)


def train(body: nn.Module, epochs: int, device: str) -> nn.Module:
    """Train ``body`` (flat images → features) on 30,000 training images; return it on the CPU, in evaluation mode."""
    data = images.cifar100()
    chosen = np.random.default_rng(0).permutation(len(data.y))[:IMAGES]
    X, y = (torch.as_tensor(part[chosen]).to(device) for part in (data.X, data.y))
    generator, mixing = torch.Generator(device=device).manual_seed(0), np.random.default_rng(0)
    body.to(device).train()
    with torch.no_grad():
        width = body(X[:2].flatten(1).float()).shape[1]
    top = nn.Linear(width, 100).to(device)
    steps = epochs * (len(X) // BATCH)
    optimizer = torch.optim.AdamW([*body.parameters(), *top.parameters()], lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        rows = torch.randint(len(X), (BATCH,), generator=generator, device=device)
        partners = torch.randperm(BATCH, generator=generator, device=device)
        share = float(mixing.beta(0.2, 0.2))
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=device == "cuda"):
            view = augmented(X[rows].float() / 255, generator, MILD)
            view = share * view + (1 - share) * view[partners]
            scores = top(functional.dropout(body(view.flatten(1)), 0.2)).float()
        first, second = (functional.cross_entropy(scores, y[r], label_smoothing=0.1) for r in (rows, rows[partners]))
        optimizer.zero_grad()
        (share * first + (1 - share) * second).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return body.to("cpu").eval()
