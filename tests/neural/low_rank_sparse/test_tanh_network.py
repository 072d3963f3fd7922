"""The tanh network: hand-written derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from tacitly.neural.low_rank_sparse.tanh_network import TanhNetwork

torch.set_num_threads(1)
D = 5


@pytest.mark.parametrize("hidden", [(4,), (4, 3), (3, 4, 2)])
def test_derivatives_by_hand_are_those_of_the_tape(hidden: tuple[int, ...]) -> None:
    network, rng = TanhNetwork(D, hidden), np.random.default_rng(0)
    vector, way = (torch.as_tensor(rng.normal(size=network.size)) for _ in range(2))
    X, y, weights = torch.randn(9, D).double(), torch.randn(9).double(), torch.ones(9).double()
    weights[7:] = 0.0
    passed = network.forward(vector, X)

    def half(v: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((network(v, X) - y).square() * weights).sum() / 7

    gradient, loss = network.gradient(passed, y, weights)
    torch.testing.assert_close(gradient, grad(half)(vector))
    torch.testing.assert_close(loss, half(vector))
    jacobian = vmap(grad(lambda v, x: network(v, x[None])[0]), in_dims=(None, 0))(vector, X)
    torch.testing.assert_close(network.jvp(passed, way), jacobian @ way)
    torch.testing.assert_close(network.curvature(passed, weights), jacobian[:7].square().mean(0))
