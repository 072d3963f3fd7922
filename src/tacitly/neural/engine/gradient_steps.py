"""Gradients and steps on a tuple of parameters, in two versions: under ``vmap``, and for one user at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tacitly.neural.engine.flat import Parts


def autograd_gradient(function: Callable[[Parts], Tensor]) -> Callable[[Parts], Parts]:
    """Return the gradient by ordinary autograd, which is faster than ``torch.func.grad`` for one user at a time."""

    def gradient(at: Parts) -> Parts:
        with torch.enable_grad():
            points = tuple(part.detach().requires_grad_(True) for part in at)
            return torch.autograd.grad(function(points), points, allow_unused=True, materialize_grads=True)

    return gradient


def decayed(gradients: Parts, parts: Parts, decay: float) -> Parts:
    """Return the gradients of the loss plus ½·decay·‖parameters‖²."""
    if not decay:
        return gradients
    return tuple(torch.add(gradient, part, alpha=decay) for gradient, part in zip(gradients, parts, strict=True))


def vmap_step(parts: Parts, gradients: Parts, rate: float) -> Parts:
    """Take a gradient step, in operations that vmap supports."""
    return tuple(torch.add(part, gradient, alpha=-rate) for part, gradient in zip(parts, gradients, strict=True))


def foreach_step(parts: Parts, gradients: Parts, rate: float) -> Parts:
    """Take a gradient step in one call, so that workers contend for the interpreter less often."""
    return tuple(torch._foreach_add(parts, gradients, alpha=-rate))
