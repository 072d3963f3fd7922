"""A small tanh network with one output, as a function of one flat vector, and its derivatives by hand.

Paper 004's appendix B.2 writes a user's whole network as U w + b, so what is needed is a function of one vector and not
a module. There is no state that rows could change (no buffers, nothing random), and everything is float64, so that the
choice of the largest coordinates does not hang on how a sum was rounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacitly.arrays import Array


class Pass(NamedTuple):
    """Each layer's matrix with its inputs, and the outputs."""

    layers: list[tuple[Tensor, Tensor]]
    outputs: Tensor


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
        return self.forward(vector, rows).outputs

    def forward(self, vector: Tensor, rows: Tensor) -> Pass:
        """Send rows through, and keep what derivatives need."""
        layers, inputs = [], rows
        for place, (matrix, levels) in enumerate(self._layers(vector)):
            layers.append((matrix, inputs))
            sums = inputs @ matrix.T + levels
            inputs = torch.tanh(sums) if place < len(self.hidden) else sums
        return Pass(layers, inputs.squeeze(-1))

    def slope(self, seen: Pass, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of half the mean squared error, and that half mean."""
        left, shares = seen.outputs - targets, _shares(weights)
        errors, pieces = (left * shares)[:, None], []
        for inputs, back in self._backward(seen, torch.ones_like(errors)):
            pulled = back * errors
            pieces += [pulled.sum(0), (pulled.T @ inputs).reshape(-1)]
        return torch.cat(pieces[::-1]), half_mean_square(left, weights)

    def push(self, seen: Pass, direction: Tensor) -> Tensor:
        """Return how fast each row's output moves as the parameters move that way."""
        moved = torch.zeros_like(seen.layers[0][1])
        for place, (turned, raised) in enumerate(self._layers(direction)):
            matrix, inputs = seen.layers[place]
            moved = moved @ matrix.T + inputs @ turned.T + raised
            if place < len(self.hidden):
                after = seen.layers[place + 1][1]
                moved = moved * (1.0 - after * after)
        return moved.squeeze(-1)

    def curvature(self, seen: Pass, weights: Tensor) -> Tensor:
        """Return the diagonal of the Gauss–Newton matrix: mean squared derivatives by each parameter."""
        shares, pieces = _shares(weights)[:, None], []
        for inputs, back in self._backward(seen, torch.ones_like(shares)):
            squares = back * back * shares
            pieces += [squares.sum(0), (squares.T @ (inputs * inputs)).reshape(-1)]
        return torch.cat(pieces[::-1])

    def _layers(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each layer's matrix and levels."""
        parts = torch.split(vector, [units * (inputs + 1) for units, inputs in self.shapes])
        for part, (units, inputs) in zip(parts, self.shapes, strict=True):
            yield part[: units * inputs].view(units, inputs), part[units * inputs :]

    def _backward(self, seen: Pass, back: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each layer's inputs and the output's derivatives by its sums, from the last to the first."""
        for place, (matrix, inputs) in reversed(list(enumerate(seen.layers))):
            yield inputs, back
            if place:
                back = (back @ matrix) * (1.0 - inputs * inputs)


def half_mean_square(left: Tensor, weights: Tensor) -> Tensor:
    """Return half the mean square of what is left of the targets; padding does not count."""
    return 0.5 * (left * left * _shares(weights)).sum()


def _shares(weights: Tensor) -> Tensor:
    return weights / weights.sum().clamp_min(1.0)
