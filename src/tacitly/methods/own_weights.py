"""Own weights beside a shared basis, where users are too few for the privacy noise: user i's weights are U vᵢ + bᵢ.

A head on a basis that is mostly noise predicts worse than a model of the user alone. So where the noise hides how heads
are spread (``prior_`` is None), users weigh the basis against a model of their own by rows that they leave out
(:mod:`tacitly.heads.own_weights`). Whether they do is decided by public numbers; what they find stays with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array
from tacitly.heads.base import HeadWork
from tacitly.heads.own_weights import HeadsWithOwnWeights
from tacitly.methods.personal import Positions
from tacitly.methods.shared_basis import Head, SharedBasisModel

_MOST_FEATURES = 512  # with which a user's fit takes milliseconds


class WithOwnWeights(SharedBasisModel):
    """A model with a shared basis whose users have own weights, ``own_weights_``, where they are few."""

    own_weights_: Array

    def head_work(self) -> HeadWork:
        """Return what fits a head: data, so that it can travel to users."""
        return HeadsWithOwnWeights(self.basis_) if self._keeps_own else super().head_work()

    def take_public_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what is public; no user has a head yet."""
        super().take_public_arrays(arrays)
        self.own_weights_ = np.zeros((0, len(self.basis_)))

    def private_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return heads, intercepts and own weights; nothing where they stayed with their users."""
        arrays = super().private_arrays()
        return arrays | {"own_weights": self.own_weights_} if arrays and len(self.own_weights_) else arrays

    def take_private_arrays(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set what :meth:`private_arrays` returned: without own weights where users keep none."""
        super().take_private_arrays(arrays)
        self.own_weights_ = arrays.get("own_weights", self.own_weights_)
        expected = (len(self.heads_), len(self.basis_))
        if len(self.own_weights_) and self.own_weights_.shape != expected:
            raise ValueError(f"own weights must have the shape {expected}. Found {self.own_weights_.shape}.")

    @property
    def _keeps_own(self) -> bool:
        """Whether users have own weights, from public numbers. An intercept has a prior of its own: not with one."""
        plain = self.loss == "squared" and self.mode != "paper" and not self.fit_intercept
        return plain and self.prior_ is None and len(self.basis_) <= _MOST_FEATURES

    def _take_heads(self, heads: Array) -> None:
        d, k = self.basis_.shape
        own = self._keeps_own and heads.shape[1:] == (k + 1 + d,)
        super()._take_heads(heads[:, : k + 1] if own else heads)
        self.own_weights_ = heads[:, k + 1 :] if own else np.zeros((0, d))

    def _scores(self, rows: npt.NDArray[Any], positions: Positions) -> Array:
        scores = super()._scores(rows, positions)
        if len(self.own_weights_):
            # Contiguous, so that a table with its columns in another order has the same predictions to the last bit.
            scores += np.einsum("nd,nd->n", np.ascontiguousarray(rows), self.own_weights_[positions])
        return scores

    def _personal_model(self, rows: npt.NDArray[Any], targets: Array) -> Head:
        if not self._keeps_own:
            return super()._personal_model(rows, targets)
        fitted, (d, k) = self.head_work().own(rows, targets), self.basis_.shape
        return Head(fitted[:k], 0.0, self.basis_, indices=np.arange(d), values=fitted[k + 1 :])
