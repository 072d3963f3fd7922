"""What a neural round releases: the sum of everybody's clipped updates.

Release :class:`BodyUpdate`. Unit: the user. A contribution is a function of one user's rows and public numbers (body,
head, settings, number of the round), brought to norm at most C by the last thing done to it, in float64. Zero-out moves
the sum by at most C and replace-one by at most 2C (an update and its opposite are both possible): one Gaussian event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from tacitly.arrays import Array, Offsets, Rows
from tacitly.federation.base import Query
from tacitly.neural.engine.executor import Executor


@dataclass(frozen=True)
class BodyUpdate(Query):
    """How one user asks the public vector to move; ``normalised`` brings everybody to norm one instead of clipping."""

    public: Array
    number: int
    executor: Executor = field(compare=False, repr=False)
    normalised: bool = False

    @property
    def coordinates(self) -> int:
        """Trainable parameters that are shared."""
        return self.executor.size

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return one user's update, of norm one if normalised."""
        update = self.executor.one(self.public, X, y, self.number)
        if not self.normalised:
            return update
        unit = self.executor.bounded_sum(torch.as_tensor(update)[None], 1.0, normalised=True)
        return np.asarray(unit.numpy())

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return norms of updates before the clip."""
        return self.executor.norms(self.public, X, y, offsets, self.number)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip and add a block of users, in chunks on a GPU or one by one on a CPU."""
        return self.executor.clipped_sum(self.public, X, y, offsets, bound, self.number, normalised=self.normalised)
