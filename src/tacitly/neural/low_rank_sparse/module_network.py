"""Any module of known layers as a function of one flat vector, for low rank plus sparse: derivatives by torch.func.

It provides the functions that :class:`~tacitly.neural.low_rank_sparse.tanh_network.TanhNetwork` implements by hand, for
one output and squared error or for several outputs and the cross entropy of classes. Everything is float64. Curvatures
are those of Gauss and Newton: JᵀHJ, where H is the second derivative of the loss in the outputs, which is diag(p) − ppᵀ
for classes with probabilities p.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, jacrev, jvp, vmap

from tacitly.arrays import Array
from tacitly.neural.engine.flat import Flat
from tacitly.neural.engine.layers import evaluation_copy
from tacitly.neural.engine.user_loss import labels
from tacitly.neural.low_rank_sparse.tanh_network import half_mean_square, row_shares


class Passed(NamedTuple):
    """A forward pass: the parameters and rows of the pass, and its outputs."""

    vector: Tensor
    rows: Tensor
    outputs: Tensor


class ModuleNetwork:
    """A module for rows of ``features`` columns with ``classes`` outputs, or one number if ``classes`` is None.

    >>> network = ModuleNetwork(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 4)), 3, 4)
    >>> network.size, network(torch.zeros(20).double(), torch.zeros(5, 3).double()).shape
    (20, torch.Size([5, 4]))
    """

    def __init__(self, module: nn.Module, features: int, classes: int | None) -> None:
        self.flat, self.features, self.classes = Flat(evaluation_copy(module).double()), features, classes
        found = tuple(self(self.flat.start, torch.zeros(2, features, dtype=torch.float64)).shape[1:])
        expected = () if classes is None else (classes,)
        if found != expected:
            asked = "one number" if classes is None else f"{classes} class scores"
            raise ValueError(f"module must return {asked} for a row of {features} features. Found shape {found}.")

    @property
    def size(self) -> int:
        """Number of trainable parameters."""
        return self.flat.size

    def start(self, rng: np.random.Generator) -> Array:
        """Return the module's own parameters, which are public."""
        return np.asarray(self.flat.start.numpy(), dtype=np.float64)

    def __call__(self, vector: Tensor, rows: Tensor) -> Tensor:
        """Return the output for each row."""
        outputs = self.flat(vector, rows)
        return outputs.squeeze(-1) if self.classes is None and outputs.ndim == 2 and outputs.shape[1] == 1 else outputs

    def forward(self, vector: Tensor, rows: Tensor) -> Passed:
        """Run the forward pass."""
        return Passed(vector, rows, self(vector, rows))

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return half the mean squared error, or the mean cross entropy."""
        if self.classes is None:
            return half_mean_square(outputs - targets, weights)
        numbers = labels(targets, self.classes)
        right = outputs.log_softmax(dim=-1).gather(-1, numbers[:, None]).squeeze(-1)
        return -(torch.where(weights > 0, right, 0.0) * row_shares(weights)).sum()

    def gradient(self, passed: Passed, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the loss, and the loss."""
        found = grad_and_value(lambda vector: self.loss(self(vector, passed.rows), targets, weights))(passed.vector)
        return found[0], found[1]

    def jvp(self, passed: Passed, direction: Tensor) -> Tensor:
        """Return each output's derivative along a direction of the parameters."""
        moved: Tensor = jvp(lambda vector: self(vector, passed.rows), (passed.vector,), (direction,))[1]
        return moved

    def bend(self, passed: Passed, changes: Tensor, weights: Tensor) -> Tensor:
        """Return the second derivative of the loss along these changes of the outputs."""
        if self.classes is None:
            return 2.0 * half_mean_square(changes, weights)
        return (self._spread(passed.outputs.softmax(dim=-1), changes[..., None])[:, 0] * row_shares(weights)).sum()

    def curvature(self, passed: Passed, weights: Tensor) -> Tensor:
        """Return the diagonal of the Gauss–Newton matrix."""
        jacobian = vmap(jacrev(lambda vector, row: self(vector, row[None])[0]), in_dims=(None, 0))
        slopes = jacobian(passed.vector, passed.rows)
        each = slopes.square() if self.classes is None else self._spread(passed.outputs.softmax(dim=-1), slopes)
        return (each * row_shares(weights)[:, None]).sum(0)

    def answers(self, outputs: Tensor) -> Tensor:
        """Return predictions: numbers, or class numbers."""
        return outputs if self.classes is None else outputs.argmax(dim=-1)

    @staticmethod
    def _spread(chances: Tensor, slopes: Tensor) -> Tensor:
        """Return sᵀ(diag(p) − ppᵀ)s for every row and last index of slopes (rows × classes × …)."""
        p = chances[..., None]
        return (p * (slopes - (p * slopes).sum(dim=1, keepdim=True)).square()).sum(dim=1)
