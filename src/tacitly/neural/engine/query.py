"""The release of a neural round: the sum of all users' clipped updates.

Release :class:`BodyUpdate`. Unit: the user. A contribution is a function of one user's rows and public values (body,
head, settings, number of the round). Clipping it to norm at most C, in float64, is the last operation on it. Zero-out
changes the sum by at most C and replace-one by at most 2C (an update and its opposite are both possible): one Gaussian
event.
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
    """One user's proposed change of the public vector; ``normalised`` scales every update to the clipping bound."""

    public: Array
    round_number: int
    executor: Executor = field(compare=False, repr=False)
    normalised: bool = False

    @property
    def coordinates(self) -> int:
        """Number of shared trainable parameters."""
        return self.executor.size

    def contribution(self, X: Rows, y: Rows) -> Array:
        """Return one user's update, of norm one if normalised."""
        update = self.executor.one_update(self.public, X, y, self.round_number)
        if not self.normalised:
            return update
        unit = self.executor.bounded_sum(torch.as_tensor(update)[None], 1.0, normalised=True)
        return np.asarray(unit.numpy())

    def norms(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return the norms of updates before clipping."""
        return self.executor.norms(self.public, X, y, offsets, self.round_number)

    def block_sum(self, X: Rows, y: Rows, offsets: Offsets, bound: float) -> Array:
        """Clip and sum a block of users, in chunks on a GPU or one by one on a CPU."""
        block = self.public, X, y, offsets, bound, self.round_number
        return self.executor.clipped_sum(*block, normalised=self.normalised)
