"""Ready networks, as a body and a head: the papers' LeNet and perceptron, and a linear one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def lenet(
    classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32), widths: tuple[int, int, int, int] = (64, 64, 384, 32)
) -> tuple[nn.Sequential, nn.Linear]:
    """Paper 000's network: two 5×5 convolutions, two hidden layers, ReLU, no normalisation. Rows are flat images.

    >>> body, head = lenet()
    >>> sum(p.numel() for p in body.parameters()), head
    (734432, Linear(in_features=32, out_features=10, bias=True))
    """
    channels, height, width = shape
    one, two, three, four = widths
    left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
    body = nn.Sequential(
        nn.Unflatten(1, shape),
        nn.Conv2d(channels, one, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(one, two, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(two * left[0] * left[1], three),
        nn.ReLU(),
        nn.Linear(three, four),
        nn.ReLU(),
    )
    return body, nn.Linear(four, classes)


def mlp(
    features: int = 784, widths: Sequence[int] = (256, 128, 16), classes: int = 10
) -> tuple[nn.Sequential, nn.Linear]:
    """Return a perceptron with ReLU: the paper's for EMNIST by default.

    >>> body, head = mlp()
    >>> [layer.out_features for layer in body if isinstance(layer, nn.Linear)]
    [256, 128, 16]
    """
    layers: list[nn.Module] = []
    for before, after in zip([features, *widths], widths, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers), nn.Linear(widths[-1], classes)


def linear(features: int, rank: int, outputs: int = 1) -> tuple[nn.Sequential, nn.Linear]:
    """Return a basis and a linear head.

    >>> linear(5, 2)[0]
    Sequential(
      (0): Linear(in_features=5, out_features=2, bias=False)
    )
    """
    return nn.Sequential(nn.Linear(features, rank, bias=False)), nn.Linear(rank, outputs)
