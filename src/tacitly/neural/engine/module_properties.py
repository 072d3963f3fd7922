"""Public properties of a module: its number type, the width of its output, a fingerprint of its start."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from tacitly.neural.engine.layers import fresh


def outputs(head: nn.Module) -> int:
    """How many numbers a head gives: those of its last layer.

    >>> outputs(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    2
    """
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise ValueError("the head must end in a linear layer. Found none.")
    return layers[-1].out_features


def width_after(module: nn.Module, width: int) -> int:
    """How many numbers a module makes of a row of so many."""
    with torch.no_grad():
        return int(fresh(module)(torch.zeros(1, width, dtype=type_of(module))).shape[1])


def type_of(module: nn.Module) -> torch.dtype:
    """Return the type of a module's numbers; float32 where it has none."""
    values = itertools.chain(module.parameters(), module.buffers())
    return next((value.dtype for value in values if value.is_floating_point()), torch.float32)


def describe(module: nn.Module) -> str:
    """Return a module's structure and public numbers as a hash: a resumed run must begin from the same ones."""
    digest = hashlib.sha256(repr(module).encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    trained: Sequence[str] = [name for name, value in module.named_parameters() if value.requires_grad]
    digest.update(repr(trained).encode())
    return digest.hexdigest()
