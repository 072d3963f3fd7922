"""Forward passes of one user's rows through a public module, in windows of a public number of rows."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacitly.neural.engine.device import deterministic, device_failures
from tacitly.neural.engine.layers import custom_layers, evaluation_copy
from tacitly.neural.engine.module_properties import dtype_of


class ForwardPass:
    """Forward pass of one user's rows through a copy of a public module that is never published.

    Rows pass in windows of a public size (None: all at once, up to 2048), so that a row's arithmetic depends on its own
    user only. If the module contains custom layers, every user gets a copy of it.
    """

    def __init__(self, module: nn.Module, device: torch.device, window: int | None = None) -> None:
        self._device, self._window = device, window
        self._custom_layers = bool(custom_layers(module))
        self._module = evaluation_copy(module).to(device)

    def __call__(self, X: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the module's output for one user's rows, or raise."""
        module = copy.deepcopy(self._module) if self._custom_layers else self._module
        with torch.no_grad(), deterministic(), device_failures():
            return in_windows(module, X, self._window or min(2048, max(1, len(X))), self._device)

    def or_none(self, X: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Return the output, or None if the user's values make it fail: whose values do is private."""
        try:
            return self(X)
        except MemoryError:
            raise
        except Exception:
            return None


def in_windows(module: nn.Module, X: npt.NDArray[Any], size: int, device: torch.device) -> npt.NDArray[Any]:
    """Return a module's output for one user's rows, in windows of ``size`` rows padded with zeros."""
    outputs = []
    for start in range(0, max(1, len(X)), size):
        mine = X[start : start + size]
        window = torch.zeros((size, X.shape[1]), dtype=dtype_of(module))
        with np.errstate(all="ignore"):
            window.numpy()[: len(mine)] = mine
        outputs.append(module(window.to(device))[: len(mine)].cpu().numpy())
    return np.concatenate(outputs)
