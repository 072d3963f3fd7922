"""A small tanh network with one output, as a function of one flat vector, and its derivatives by hand.

Paper 004's appendix B.2 writes a user's whole network as U w + b, so what is needed is a function of one vector and not
a module. There is no state that rows could change (no buffers, nothing random), and everything is float64, so that the
choice of the largest coordinates does not hang on how a sum was rounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TanhNetwork:
    """Layers of tanh units and a linear output; a vector holds each layer's matrix (units × inputs), then its levels.

    >>> TanhNetwork(50, (50,)).size, TanhNetwork(50, (50, 50)).size  # two and three layers: the paper's
    (2601, 5151)
    """

    features: int
    hidden: tuple[int, ...] = (50, 50)

    def __post_init__(self) -> None:
        if self.features < 1 or not self.hidden or any(units < 1 for units in self.hidden):
            raise ValueError(f"a network needs features and layers of units. Found {self.features}, {self.hidden!r}.")

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Units and inputs of each layer."""
        return tuple((after, before) for before, after in itertools.pairwise((self.features, *self.hidden, 1)))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(units * (inputs + 1) for units, inputs in self.shapes)

    @property
    def first_levels(self) -> slice:
        """Where the levels of the first layer are."""
        units, inputs = self.shapes[0]
        return slice(units * inputs, units * (inputs + 1))

    def start(self, rng: np.random.Generator) -> Array:
        """Return public random numbers to begin from: matrices of variance 1/inputs, levels zero."""
        layers = [
            (rng.normal(size=(units, inputs)) / np.sqrt(inputs), np.zeros(units)) for units, inputs in self.shapes
        ]
        return np.concatenate([np.append(matrix.ravel(), levels) for matrix, levels in layers])

    def __call__(self, vector: Tensor, rows: Tensor) -> Tensor:
        """Return the outputs for some rows."""
        return self._forward(vector, rows)[1]

    def _forward(self, vector: Tensor, rows: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Return each layer's matrix with its inputs, and the outputs."""
        layers, inputs = [], rows
        parts = torch.split(vector, [units * (size + 1) for units, size in self.shapes])
        for place, (part, (units, size)) in enumerate(zip(parts, self.shapes, strict=True)):
            matrix = part[: units * size].view(units, size)
            layers.append((matrix, inputs))
            sums = inputs @ matrix.T + part[units * size :]
            inputs = torch.tanh(sums) if place + 1 < len(parts) else sums
        return layers, inputs.squeeze(-1)

    def slope(self, vector: Tensor, rows: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of half the mean squared error, and how stiff it is.

        Stiffness is the mean squared length of a row's derivative: the trace of the Gauss–Newton matrix, and so no less
        than the curvature in any direction.
        """
        layers, outputs = self._forward(vector, rows)
        shares = weights / weights.sum().clamp_min(1.0)
        errors = ((outputs - targets) * shares)[:, None]
        pieces, stiffness = [], torch.zeros_like(shares)
        for inputs, back in self._backward(layers, torch.ones_like(errors)):
            pulled = back * errors
            pieces += [pulled.sum(0), (pulled.T @ inputs).reshape(-1)]
            stiffness = stiffness + ((inputs * inputs).sum(1) + 1.0) * (back * back).sum(1)
        return torch.cat(pieces[::-1]), (stiffness * shares).sum()

    def curvature(self, vector: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the diagonal of the Gauss–Newton matrix: mean squared derivatives by each parameter."""
        layers, outputs = self._forward(vector, rows)
        shares, pieces = (weights / weights.sum().clamp_min(1.0))[:, None], []
        for inputs, back in self._backward(layers, torch.ones_like(outputs)[:, None]):
            squares = back * back * shares
            pieces += [squares.sum(0), (squares.T @ (inputs * inputs)).reshape(-1)]
        return torch.cat(pieces[::-1])

    def _backward(self, layers: list[tuple[Tensor, Tensor]], back: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each layer's inputs and the output's derivatives by its sums, from the last to the first."""
        for place, (matrix, inputs) in reversed(list(enumerate(layers))):
            yield inputs, back
            if place:
                back = (back @ matrix) * (1.0 - inputs * inputs)
