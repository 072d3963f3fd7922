"""The interface that low rank plus sparse needs from a network: a function of one flat vector, with derivatives."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch import Tensor

from tacitly.arrays import Array


class Network(Protocol):
    """Outputs, loss, gradient and curvature; ``passed`` is the return value of :meth:`forward`."""

    @property
    def size(self) -> int:
        """Number of parameters."""

    def start(self, rng: np.random.Generator) -> Array:
        """Return public initial parameters."""

    def __call__(self, vector: Tensor, rows: Tensor) -> Tensor:
        """Return the outputs."""

    def forward(self, vector: Tensor, rows: Tensor) -> Any:
        """Run the forward pass and keep the values that derivatives need."""

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the mean loss."""

    def gradient(self, passed: Any, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of the mean loss, and the loss."""

    def jvp(self, passed: Any, direction: Tensor) -> Tensor:
        """Return each output's derivative along a direction of the parameters."""

    def bend(self, passed: Any, changes: Tensor, weights: Tensor) -> Tensor:
        """Return the second derivative of the loss along these changes of the outputs."""

    def curvature(self, passed: Any, weights: Tensor) -> Tensor:
        """Return the diagonal of the Gauss–Newton matrix."""

    def answers(self, outputs: Tensor) -> Tensor:
        """Return predictions."""
