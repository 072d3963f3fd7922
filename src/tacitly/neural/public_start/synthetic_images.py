"""Synthetic images by the "dead leaves" model: the simplest scenes with the statistics of natural images.

Discs, bars and boxes with power-law sizes occlude each other until the image is full; each has a colour (channels
correlated as in natural images), a brightness gradient, some a grating, and a soft edge. A body trained to tell such
scenes apart has learned edges, corners, colours and textures without any data: it is public.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SMALLEST, _LARGEST = 0.05, 0.6  # size of a leaf relative to the image side; density ∝ size⁻³


def synthetic_images(
    count: int,
    *,
    size: int = 32,
    leaves: int = 80,
    seed: int = 0,
    device: str | torch.device = "cpu",
    batch: int = 4000,
) -> Tensor:
    """Return ``count`` colour images (count × 3 × size × size) with values from 0 to 1.

    >>> synthetic_images(2, size=8, leaves=5).shape
    torch.Size([2, 3, 8, 8])
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    parts = [_scenes(min(batch, count - i), size, leaves, generator) for i in range(0, count, batch)]
    return torch.cat(parts)


def _scenes(count: int, size: int, leaves: int, generator: torch.Generator) -> Tensor:
    device = generator.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    ticks = torch.linspace(0.0, 1.0, size, device=device)
    down, right = torch.meshgrid(ticks, ticks, indexing="ij")
    scene = torch.zeros(count, 3, size, size, device=device)
    for _ in range(leaves):
        radius = (_SMALLEST**-2 + (_LARGEST**-2 - _SMALLEST**-2) * uniform(count, 1, 1)).rsqrt()
        across, along = right - (1.2 * uniform(count, 1, 1) - 0.1), down - (1.2 * uniform(count, 1, 1) - 0.1)
        angle, narrow = math.pi * uniform(count, 1, 1), 0.35 + 0.65 * uniform(count, 1, 1)
        u = (across * angle.cos() + along * angle.sin()) / radius
        v = (along * angle.cos() - across * angle.sin()) / (radius * narrow)
        round_ = uniform(count, 1, 1) < 0.5
        distance = torch.where(round_, (u * u + v * v).sqrt(), torch.maximum(u.abs(), v.abs()))
        softness = (1.5 / size) * (0.3 + 1.5 * uniform(count, 1, 1))
        cover = torch.sigmoid(2.0 * (1.0 - distance) * radius / softness)[:, None]
        colour = 0.45 + 0.25 * normal(count, 1, 1, 1) + 0.11 * normal(count, 3, 1, 1)
        shade = 1.0 + 0.3 * normal(count, 1, 1) * u.clamp(-1.0, 1.0)
        waves = torch.sin(radius * (10.0 + 60.0 * uniform(count, 1, 1)) * u + 6.3 * uniform(count, 1, 1))
        shade = shade + 0.25 * torch.where(uniform(count, 1, 1) < 0.3, waves, torch.zeros_like(waves))
        scene = scene * (1.0 - cover) + cover * colour * shade[:, None]
    return scene.clamp(0.0, 1.0)
