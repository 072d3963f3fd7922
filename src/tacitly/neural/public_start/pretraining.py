"""Public initial values of a body: pretrained on synthetic images, so that they contain no data of any user.

:func:`contrast` trains a body to match two augmented views of one synthetic scene among many others (InfoNCE; Chen et
al. 2020; on procedural images, Baradad et al. 2021). :func:`public_directions` then returns the principal components of
its features over such scenes, scaled to unit variance: a fixed linear layer before the private one, so that noise is
distributed evenly over few parameters. Neither reads a private row, so neither costs any privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tacitly.neural.public_start.synthetic_images import synthetic_images


def contrast(
    body: nn.Module,
    *,
    steps: int = 3000,
    batch: int = 2048,
    scenes: int = 100_000,
    size: int = 32,
    channels: int = 3,
    temperature: float = 0.2,
    rate: float = 1e-3,
    seed: int = 0,
    device: str | torch.device = "cpu",
    on_step: Callable[[int, float], None] | None = None,
) -> nn.Module:
    """Train ``body`` (flat images → features) on synthetic scenes, in place; return it on the CPU, in evaluation mode.

    >>> from tacitly.neural import lenet
    >>> body = contrast(lenet(widths=(4, 4, 16, 8))[0], steps=2, batch=8, scenes=16)
    >>> body.training
    False
    """
    generator = torch.Generator(device=device).manual_seed(seed)
    pool = (synthetic_images(scenes, size=size, seed=seed + 1, device=device) * 255).byte()
    body.to(device).train()
    with torch.no_grad():
        width = body(_rows(pool[:2].float() / 255, channels)).shape[1]
    with torch.random.fork_rng(devices=[]):  # layers draw from the global generator, whose state is restored
        torch.manual_seed(seed)
        projector = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128)).to(device)
    parameters = [*body.parameters(), *projector.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-4)
    partner = torch.arange(2 * batch, device=device).roll(batch)
    half = torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.device(device).type == "cuda")
    for step in range(steps):
        done = step / steps
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, 20 * done + 0.01) * 0.5 * (1 + math.cos(math.pi * done))
        chosen = torch.randint(scenes, (batch,), generator=generator, device=device)
        images = pool[chosen].float() / 255
        with half:
            views = torch.cat([augmented(images, generator), augmented(images, generator)])
            projected = projector(body(_rows(views, channels)))
        projected = functional.normalize(projected.float(), dim=1)
        similarity = (projected @ projected.T / temperature).fill_diagonal_(-1e9)
        loss = functional.cross_entropy(similarity, partner)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if on_step is not None and step % 500 == 499:
            on_step(step + 1, float(loss.detach()))
    return body.to("cpu").eval()


class Strength(NamedTuple):
    """How far views differ: the smallest crop's area, how far crops exceed the image, light, colours, share in grey."""

    area: float = 0.3
    reach: float = 1.0
    light: float = 0.4
    colours: float = 0.15
    grey: float = 0.2


_USUAL = Strength()


def augmented(images: Tensor, generator: torch.Generator, strength: Strength = _USUAL) -> Tensor:
    """Return another view of each scene: a random crop, possibly mirrored, with other brightness and colours."""
    count = len(images)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=images.device)

    def around_one(by: float, *shape: int) -> Tensor:
        return 1.0 - by + 2.0 * by * uniform(*shape)

    zoom = (strength.area + (1.0 - strength.area) * uniform(count)).sqrt()
    turn = torch.zeros(count, 2, 3, device=images.device)
    turn[:, 0, 0] = zoom * torch.where(uniform(count) < 0.5, -1.0, 1.0)
    turn[:, 1, 1] = zoom
    turn[:, :, 2] = (2.0 * uniform(count, 2) - 1.0) * (strength.reach - zoom)[:, None]
    grid = functional.affine_grid(turn, list(images.shape), align_corners=False)
    view = functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    mean = view.mean((1, 2, 3), keepdim=True)
    light, sharp = around_one(strength.light, count, 1, 1, 1), around_one(strength.light, count, 1, 1, 1)
    view = ((view - mean) * sharp + mean * light) * around_one(strength.colours, count, 3, 1, 1)
    if strength.grey > 0.0:
        grey = view.mean(1, keepdim=True).expand_as(view)
        view = torch.where(uniform(count, 1, 1, 1) < strength.grey, grey, view)
    return view.clamp(0.0, 1.0)


def public_directions(
    features: nn.Module,
    components: int,
    *,
    images: int = 20_000,
    size: int = 32,
    channels: int = 3,
    seed: int = 0,
    floor: float = 0.01,
    device: str | torch.device = "cpu",
) -> nn.Linear:
    """Return a fixed layer: the leading principal components of ``features`` over synthetic scenes, at unit variance.

    Components are centred; those with less than ``floor`` of the largest variance are not scaled up further.

    >>> layer = public_directions(nn.Identity(), 4, images=50, size=4)
    >>> layer.weight.shape, layer.weight.requires_grad
    (torch.Size([4, 48]), False)
    """
    features.to(device).eval()
    with torch.no_grad():
        scenes = synthetic_images(images, size=size, seed=seed + 2, device=device)
        values = torch.cat([features(_rows(part, channels)) for part in torch.split(scenes, 2000)]).double()
        mean = values.mean(0)
        variances, vectors = torch.linalg.eigh(torch.cov((values - mean).T))
        variances, vectors = variances.flip(0)[:components], vectors.flip(1)[:, :components]
        weight = (vectors * (variances + floor * variances[0]).rsqrt()).T
        layer = nn.Linear(weight.shape[1], components)
        layer.weight.copy_(weight)
        layer.bias.copy_(-weight @ mean)
    features.to("cpu")
    return layer.requires_grad_(False).cpu()


def _rows(images: Tensor, channels: int) -> Tensor:
    """Return flat rows, in the form of users' images; a single channel is the mean of the three."""
    return (images if channels == images.shape[1] else images.mean(1, keepdim=True)).flatten(1)
