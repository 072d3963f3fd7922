"""The loss of one user: squared error, or log-loss among the classes that the user has.

Rows have weights: 0 marks padding. Which classes a user has is private and never leaves the user. Labels are integers
from 0; values outside of the range are mapped to the nearest class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_ABSENT = -1e9  # logit of a class the user does not have: probability zero, gradient zero, and finite


@dataclass(frozen=True)
class UserLoss:
    """A loss by its ``kind`` ("squares" or "classes") and the number of classes."""

    kind: str
    classes: int

    def goals(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the desired outputs: the targets, or a one-hot row per label; zeros for padding."""
        if self.kind == "squares":
            return targets
        classes = torch.arange(self.classes, device=targets.device)
        return (labels(targets, self.classes)[:, None] == classes).to(targets.dtype) * weights[:, None]

    def held_classes(self, goals: Tensor, *, by_value: bool) -> Tensor | None:
        """Return which classes the user has; None for squared loss, or if the user has all classes.

        The second case applies only with ``by_value``: under ``vmap``, control flow cannot depend on values.
        """
        if self.kind == "squares":
            return None
        held = goals.amax(0) > 0
        return None if by_value and bool(held.all()) else held

    def mean(self, goals: Tensor, weights: Tensor, held: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the mean loss over some of a user's rows and the user's classes, as a function of outputs."""
        count = weights.sum().clamp_min(1.0)
        if self.kind == "squares":
            shares = weights / (2.0 * count)
            return lambda output: ((output.squeeze(-1) - goals).square() * shares).sum()
        shares = goals / -count
        if held is None:
            return lambda output: (torch.log_softmax(output, -1) * shares).sum()
        return lambda output: (torch.log_softmax(torch.where(held, output, _ABSENT), -1) * shares).sum()

    def gradient(self, goals: Tensor, weights: Tensor, held: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the gradient of :meth:`mean` in the outputs."""
        shares = (weights / weights.sum().clamp_min(1.0))[:, None]
        if self.kind == "squares":
            return lambda output: (output - goals[:, None]) * shares
        if held is None:
            return lambda output: (torch.softmax(output, -1) - goals).mul_(shares)
        return lambda output: (torch.softmax(torch.where(held, output, _ABSENT), -1) - goals).mul_(shares)


def labels(targets: Tensor, classes: int) -> Tensor:
    """Return class numbers: every target rounded to the nearest class."""
    return torch.nan_to_num(targets).round().clamp(0, classes - 1).long()
