"""Predefined networks, as body and head: CENTAUR's LeNet and perceptron, a convolutional body, a linear model.

For a network that works with few users and needs no data for pretraining, see :mod:`tacitly.neural.networks.images`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FlatToImage(nn.Module):
    """Reshape flat rows of values from 0 to 1 into images, standardised with public constants that suit most images.

    >>> FlatToImage((1, 2, 2))(torch.zeros(3, 4)).shape
    torch.Size([3, 1, 2, 2])
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows × channels × height × width."""
        return ((rows - 0.45) / 0.25).reshape(rows.shape[0], *self.shape)

    def extra_repr(self) -> str:
        """Return the image shape for ``repr``."""
        return str(self.shape)


class InRange(nn.Module):
    """Clip columns to a public range and map it to [lowest, 1].

    >>> InRange(0.0, 255.0)(torch.tensor([[0.0, 255.0, 300.0]]))
    tensor([[-1.,  1.,  1.]])
    """

    def __init__(self, low: float, high: float, lowest: float = -1.0) -> None:
        super().__init__()
        self.low, self.high, self.lowest = low, high, lowest

    def forward(self, rows: Tensor) -> Tensor:
        """Return the columns on the new range."""
        share = (rows.clamp(self.low, self.high) - self.low) / (self.high - self.low)
        return self.lowest + (1.0 - self.lowest) * share

    def extra_repr(self) -> str:
        """Return the range for ``repr``."""
        return f"{self.low:g}, {self.high:g}"


class LinearWithSkip(nn.Module):
    """A linear layer that also passes on its first ``kept`` inputs, appended to its outputs.

    This is the recommended private layer of a body. Heads get ``outputs`` learned features, which start at zero, and
    the first ``kept`` of the public directions from which these are learned.

    >>> LinearWithSkip(4, outputs=2, kept=1)(torch.ones(1, 4)).tolist()
    [[0.0, 0.0, 1.0]]
    """

    def __init__(self, directions: int, outputs: int, kept: int) -> None:
        super().__init__()
        self.learned = nn.Linear(directions, outputs)
        self.kept = kept
        nn.init.zeros_(self.learned.weight)
        nn.init.zeros_(self.learned.bias)

    def forward(self, directions: Tensor) -> Tensor:
        """Return the learned features, then the public ones."""
        return torch.cat([self.learned(directions), directions[:, : self.kept]], dim=1)


def conv_features(shape: tuple[int, int, int] = (3, 32, 32), width: int = 64) -> nn.Sequential:
    """Return five 3×3 convolutions with group normalisation: a body for a public start, with 16·width features.

    >>> conv_features((3, 8, 8), width=8)(torch.zeros(2, 192)).shape
    torch.Size([2, 128])
    """
    layers: list[nn.Module] = [FlatToImage(shape)]
    before = shape[0]
    for after, stride in ((width, 1), (2 * width, 2), (2 * width, 1), (4 * width, 2), (4 * width, 1)):
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(8, after), nn.ReLU()]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


def identity_head(outputs: int, classes: int) -> nn.Linear:
    """Return a head whose score of class c is feature c; users' heads start from it and are shrunk towards it.

    >>> identity_head(3, 2).weight
    Parameter containing:
    tensor([[1., 0., 0.],
            [0., 1., 0.]], requires_grad=True)
    """
    head = nn.Linear(outputs, classes)
    with torch.no_grad():
        head.weight.copy_(torch.eye(classes, outputs))
        head.bias.zero_()
    return head


def lenet(
    classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32), widths: tuple[int, int, int, int] = (64, 64, 384, 32)
) -> tuple[nn.Sequential, nn.Linear]:
    """Return CENTAUR's LeNet: two 5×5 convolutions, two hidden layers, ReLU, no normalisation. Rows are flat images.

    >>> body, head = lenet()
    >>> sum(p.numel() for p in body.parameters()), head
    (734432, Linear(in_features=32, out_features=10, bias=True))
    """
    channels, height, width = shape
    one, two, three, four = widths
    sides = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    body = nn.Sequential(
        FlatToImage(shape),
        nn.Conv2d(channels, one, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(one, two, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(two * sides[0] * sides[1], three),
        nn.ReLU(),
        nn.Linear(three, four),
        nn.ReLU(),
    )
    return body, nn.Linear(four, classes)


def mlp(
    features: int = 784, widths: Sequence[int] = (256, 128, 16), classes: int = 10
) -> tuple[nn.Sequential, nn.Linear]:
    """Return a multilayer perceptron with ReLU: by default CENTAUR's for EMNIST.

    >>> body, head = mlp()
    >>> [layer.out_features for layer in body if isinstance(layer, nn.Linear)]
    [256, 128, 16]
    """
    layers: list[nn.Module] = []
    for before, after in zip([features, *widths], widths, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers), nn.Linear(widths[-1], classes)


def linear(features: int, rank: int, outputs: int = 1) -> tuple[nn.Sequential, nn.Linear]:
    """Return a linear body (a basis) and a linear head.

    >>> linear(5, 2)[0]
    Sequential(
      (0): Linear(in_features=5, out_features=2, bias=False)
    )
    """
    return nn.Sequential(nn.Linear(features, rank, bias=False)), nn.Linear(rank, outputs)
