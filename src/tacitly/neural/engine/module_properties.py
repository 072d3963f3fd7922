"""Public properties of a module: its number type, the width of its output, a fingerprint of its initial values."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import torch
from torch import nn

from tacitly.neural.engine.layers import evaluation_copy


def dtype_of(module: nn.Module) -> torch.dtype:
    """Return the number type of a module's parameters and buffers; float32 if it has none."""
    values = itertools.chain(module.parameters(), module.buffers())
    return next((value.dtype for value in values if value.is_floating_point()), torch.float32)


def output_width(module: nn.Module, width: int) -> int:
    """Return the number of features a module returns for a row of ``width`` features."""
    with torch.no_grad():
        return int(evaluation_copy(module)(torch.zeros(1, width, dtype=dtype_of(module))).shape[1])


def n_outputs(head: nn.Module) -> int:
    """Return the number of outputs of a head, that is of its last linear layer.

    >>> n_outputs(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    2
    """
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise ValueError("the head must end in a linear layer. Found none.")
    return layers[-1].out_features


def fingerprint(module: nn.Module) -> str:
    """Return a hash of a module's structure and values, because a resumed run must start from the same module."""
    digest = hashlib.sha256(repr(module).encode())
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    trained = [name for name, value in module.named_parameters() if value.requires_grad]
    digest.update(repr(trained).encode())
    return digest.hexdigest()
