"""A whitening that nearly removes a direction: the norm by gains cancels, and a contribution exceeds the clip."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacitly.federation.bounds import fused_agrees
from tacitly.federation.cuda.forms import Context
from tacitly.federation.cuda.shard import OnDevice
from tacitly.linalg import orthonormal
from tacitly.methods.fedrep.queries import BasisStep
from tacitly.methods.shared.whitening import Whitening

D, ROWS, N = 5, 12, 2000


@pytest.mark.parametrize("left", [1e-5, 1e-6, 1e-8])
def test_nobody_exceeds_the_clip_where_whitening_nearly_removes_a_direction(left: float) -> None:
    rng = np.random.default_rng(0)
    turned = orthonormal(rng.normal(size=(D, D)))[0]
    try:
        whitening = Whitening(np.ones(D), turned[:, :1], np.array([-1.0 + left]))
    except ValueError:
        return  # refused: also fine
    query = BasisStep(turned[:, 1:3], np.eye(2), 1.0, whitening)
    form = OnDevice(query, Context(torch.device("cpu"), True, 0))
    if not fused_agrees(query, D, 1.0, form):
        return  # the definition runs, which clips whatever it gets
    X, y = np.empty((N, ROWS, D)), np.empty((N, ROWS))
    for user in range(N):
        z, inside = rng.normal(size=ROWS), rng.normal(size=(ROWS, 2))
        rest = z + 0.1 * rng.normal(size=ROWS)
        rest -= inside @ np.linalg.lstsq(inside, rest, rcond=None)[0]
        size = 10.0 ** rng.uniform(-2, 10)
        X[user] = (np.outer(z, turned[:, 0]) + size * inside @ turned[:, 1:3].T) * (10 / max(1.0, size))
        y[user] = rest + 10.0 ** rng.uniform(-13, 2) * inside.sum(axis=1)
    sums = form.block_sums(X.reshape(-1, D), y.ravel(), np.arange(N + 1) * ROWS, 1.0, 1)
    assert np.linalg.norm(sums, axis=1).max() <= 1.0
