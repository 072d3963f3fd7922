"""A network for images that needs no public data and few users: fixed random filters, few learned parameters.

With n users and ε = 1, a body of p learned parameters gets noise of 3.7·√p/n of the largest possible signal
(:mod:`tacitly.neural.centaur.noise_warning`), so learning a whole body needs n of ten thousands. The following works
with hundreds of users: fixed features that need no data (random convolutions; their principal directions over synthetic
images), and one learned layer on top, with one unit per class. Heads get the learned units and the leading directions,
and start as the classifier that the learned units form.
"""

from __future__ import annotations

import torch
from torch import nn

from tacitly.neural.networks.architectures import FlatToImage, LinearWithSkip, identity_head
from tacitly.neural.public_start.pretraining import public_directions


def image_network(
    classes: int = 10,
    shape: tuple[int, int, int] = (1, 28, 28),
    *,
    filters: int = 64,
    directions: int = 128,
    kept: int | None = None,
    seed: int = 0,
) -> tuple[nn.Sequential, nn.Linear]:
    """Return a body of fixed random filters with one learned layer, and its head. Rows are flat images from 0 to 1.

    ``classes · (directions + 1)`` parameters of the body are learned. Heads get them and the first ``kept`` (half, by
    default) directions.

    >>> body, head = image_network(classes=3, shape=(1, 12, 12), filters=8, directions=16)
    >>> sum(p.numel() for p in body.parameters() if p.requires_grad), head.in_features
    (51, 11)
    """
    body, head = image_architecture(classes, shape, filters=filters, directions=directions, kept=kept, seed=seed)
    *features, _, learned = body
    filtered = nn.Sequential(*features)
    layer = public_directions(filtered, directions, images=4_000, size=shape[1], channels=shape[0], seed=seed)
    return nn.Sequential(*features, layer, learned), head


def image_architecture(
    classes: int = 10,
    shape: tuple[int, int, int] = (1, 28, 28),
    *,
    filters: int = 64,
    directions: int = 128,
    kept: int | None = None,
    seed: int = 0,
) -> tuple[nn.Sequential, nn.Linear]:
    """Return the same network with directions that are not computed, for weights that are loaded from a file."""
    kept = directions // 2 if kept is None else kept
    features = random_filters(shape, filters, seed=seed)
    layer = nn.Linear(32 * filters, directions).requires_grad_(False)
    body = nn.Sequential(*features, layer, LinearWithSkip(directions, classes, kept))
    return body, identity_head(classes + kept, classes)


def random_filters(shape: tuple[int, int, int], filters: int, *, size: int = 5, seed: int = 0) -> nn.Sequential:
    """Return fixed random filters, rectified in both directions and pooled in a 4 × 4 grid: 32·filters features.

    >>> random_filters((1, 12, 12), 8)(torch.zeros(2, 144)).shape
    torch.Size([2, 256])
    """
    if len(shape) != 3:
        raise ValueError(f"shape must be that of an image: channels, height, width. Found {shape}.")
    if shape[1] != shape[2]:
        raise ValueError(f"images must be square. Found {shape[1]} × {shape[2]}.")
    generator = torch.Generator().manual_seed(seed)
    convolution = nn.Conv2d(shape[0], 2 * filters, size, padding=size // 2)
    with torch.no_grad():
        weight = torch.randn(filters, shape[0], size, size, generator=generator)
        weight = weight - weight.mean((1, 2, 3), keepdim=True)  # no response to a uniform area
        weight = weight / weight.flatten(1).norm(dim=1)[:, None, None, None]
        convolution.weight.copy_(torch.cat([weight, -weight]))
        convolution.bias = nn.Parameter(torch.zeros(2 * filters))
    layers = FlatToImage(shape), convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    return nn.Sequential(*layers).requires_grad_(False).eval()
