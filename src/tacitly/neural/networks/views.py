"""Other views of images, for heads: a mirror image and shifts. Heads cost no privacy, so augmenting does not either."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Views:
    """Views of flat images for ``augment``: the mirror image, and shifts of both, one set after another.

    A function of its input without state. ``shift`` is in pixels, diagonally in all four directions; the border is
    repeated. 0 means no shifts.

    >>> views = Views((1, 3, 3), shift=1)
    >>> views(torch.arange(9.0)[None])[0]
    tensor([2., 1., 0., 5., 4., 3., 8., 7., 6.])
    >>> views(torch.zeros(2, 9)).shape
    torch.Size([10, 9])
    """

    shape: tuple[int, int, int]
    mirror: bool = True
    shift: int = 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Return all views of all rows: views × rows, flat."""
        images = rows.reshape(rows.shape[0], *self.shape)
        found = [images.flip(-1)] if self.mirror else []
        for number, (down, right) in enumerate(((1, 1), (1, -1), (-1, 1), (-1, -1)) if self.shift else ()):
            seen = images.flip(-1) if self.mirror and number % 2 else images
            found.append(_moved(_moved(seen, -2, down * self.shift), -1, right * self.shift))
        return torch.cat(found).flatten(1)


def _moved(images: Tensor, dim: int, by: int) -> Tensor:
    places = torch.arange(images.shape[dim], device=images.device) - by
    return images.index_select(dim, places.clamp(0, images.shape[dim] - 1))
