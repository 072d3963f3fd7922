"""A small tanh network with one output, as a function of one flat vector, with hand-written derivatives.

AMHT-LRS (Pal et al. 2024), appendix B.2, writes a user's whole network as U w + b, so the network is a function of one
vector and not a module. It has no state that rows could change (no buffers, no randomness). Everything is float64, so
that the selection of the largest coordinates does not depend on rounding of a sum.
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


class Activations(NamedTuple):
    """The result of a forward pass: each layer's weight matrix with its inputs, and the outputs."""

    layers: list[tuple[Tensor, Tensor]]
    outputs: Tensor


@dataclass(frozen=True)
class TanhNetwork:
    """Layers of tanh units and a linear output; a vector holds each layer's weights (units × inputs), then its biases.

    >>> TanhNetwork(50, (50,)).size, TanhNetwork(50, (50, 50)).size  # two and three layers, as in AMHT-LRS
    (2601, 5151)
    """

    features: int
    hidden: tuple[int, ...] = (50, 50)

    def __post_init__(self) -> None:
        if self.features < 1 or not self.hidden or any(units < 1 for units in self.hidden):
            raise ValueError(
                "a network needs at least one feature and hidden layers of at least one unit. "
                f"Found {self.features} features, hidden={self.hidden!r}."
            )

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Units and inputs of each layer."""
        return tuple((after, before) for before, after in itertools.pairwise((self.features, *self.hidden, 1)))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(units * (inputs + 1) for units, inputs in self.shapes)

    @property
    def first_biases(self) -> slice:
        """Position of the first layer's biases."""
        units, inputs = self.shapes[0]
        return slice(units * inputs, units * (inputs + 1))

    def start(self, rng: np.random.Generator) -> Array:
        """Return a public random start: weights of variance 1/inputs, biases zero."""
        layers = [
            (rng.normal(size=(units, inputs)) / np.sqrt(inputs), np.zeros(units)) for units, inputs in self.shapes
        ]
        return np.concatenate([np.append(matrix.ravel(), biases) for matrix, biases in layers])

    def __call__(self, vector: Tensor, rows: Tensor) -> Tensor:
        """Return the output for each row."""
        return self.forward(vector, rows).outputs

    def forward(self, vector: Tensor, rows: Tensor) -> Activations:
        """Run the forward pass and keep the values that derivatives need."""
        layers, inputs = [], rows
        for depth, (matrix, biases) in enumerate(self._layers(vector)):
            layers.append((matrix, inputs))
            sums = inputs @ matrix.T + biases
            inputs = torch.tanh(sums) if depth < len(self.hidden) else sums
        return Activations(layers, inputs.squeeze(-1))

    def gradient(self, passed: Activations, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of half the mean squared error, and that loss."""
        residuals, shares = passed.outputs - targets, row_shares(weights)
        errors, pieces = (residuals * shares)[:, None], []
        for inputs, derivatives in self._backward(passed, torch.ones_like(errors)):
            deltas = derivatives * errors
            pieces += [deltas.sum(0), (deltas.T @ inputs).reshape(-1)]
        return torch.cat(pieces[::-1]), half_mean_square(residuals, weights)

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return half the mean squared error."""
        return half_mean_square(outputs - targets, weights)

    def bend(self, passed: Activations, changes: Tensor, weights: Tensor) -> Tensor:
        """Return the second derivative of the loss along these changes of the outputs: their mean square."""
        return 2.0 * half_mean_square(changes, weights)

    def jvp(self, passed: Activations, direction: Tensor) -> Tensor:
        """Return the Jacobian-vector product: each output's derivative along a direction of the parameters."""
        moved = torch.zeros_like(passed.layers[0][1])
        for depth, (matrix_change, bias_change) in enumerate(self._layers(direction)):
            matrix, inputs = passed.layers[depth]
            moved = moved @ matrix.T + inputs @ matrix_change.T + bias_change
            if depth < len(self.hidden):
                after = passed.layers[depth + 1][1]
                moved = moved * (1.0 - after * after)
        return moved.squeeze(-1)

    def curvature(self, passed: Activations, weights: Tensor) -> Tensor:
        """Return the diagonal of the Gauss–Newton matrix: mean squared derivatives in each parameter."""
        shares, pieces = row_shares(weights)[:, None], []
        for inputs, derivatives in self._backward(passed, torch.ones_like(shares)):
            squares = derivatives * derivatives * shares
            pieces += [squares.sum(0), (squares.T @ (inputs * inputs)).reshape(-1)]
        return torch.cat(pieces[::-1])

    def answers(self, outputs: Tensor) -> Tensor:
        """Return predictions: the outputs."""
        return outputs

    def _layers(self, vector: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each layer's weights and biases."""
        parts = torch.split(vector, [units * (inputs + 1) for units, inputs in self.shapes])
        for part, (units, inputs) in zip(parts, self.shapes, strict=True):
            yield part[: units * inputs].view(units, inputs), part[units * inputs :]

    def _backward(self, passed: Activations, derivatives: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each layer's inputs and the output's derivatives in its pre-activations, from the last to the first."""
        for depth, (matrix, inputs) in reversed(list(enumerate(passed.layers))):
            yield inputs, derivatives
            if depth:
                derivatives = (derivatives @ matrix) * (1.0 - inputs * inputs)


def half_mean_square(residuals: Tensor, weights: Tensor) -> Tensor:
    """Return half the mean square of residuals, without padding."""
    return 0.5 * (residuals * residuals * row_shares(weights)).sum()


def row_shares(weights: Tensor) -> Tensor:
    """Return the share of each row in a mean without padding."""
    return weights / weights.sum().clamp_min(1.0)
