"""Personal linear heads."""

from __future__ import annotations

import numpy as np
import torch

from tacitly.neural.centaur.linear_heads import fit_classes, fit_linear

torch.set_num_threads(1)


def test_heads_follow_the_public_head_where_own_rows_say_little() -> None:
    rng = np.random.default_rng(0)
    public = np.array([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0]])
    z = rng.normal(size=(8, 3))
    weights, _ = fit_classes(z, (z[:, 0] < 0).astype(int), public)
    assert np.argmax(np.abs(weights[0] - weights[1])) == 0
    flat, level = fit_linear(np.zeros((3, 2)), np.ones((3, 1)), np.zeros((1, 2)))
    assert (flat == 0).all()
    assert level[0] == 1.0
