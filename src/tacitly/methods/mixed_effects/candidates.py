"""Candidate predictions for users of classes or counts, and their mixture. Computed locally by users.

A candidate is judged by how well it predicts each row from the user's other rows; see
:mod:`~tacitly.methods.mixed_effects.loss_heads` and :mod:`~tacitly.methods.mixed_effects.other_law`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets
from tacitly.methods.mixed_effects.likelihoods import mean_response, propagated
from tacitly.methods.mixed_effects.posterior import Prior

LEAST = 1e-12
"""Smallest probability, or expected count, of a left-out row."""

_LARGEST_LOG = 300.0  # of a ratio of evidences


@dataclass(frozen=True)
class Candidate:
    """One candidate for several users; with several classes, covariances and freedoms are means over classes."""

    means: Array  # of weights: n×p, or n×K×p
    covariances: Array  # n×p×p
    freedoms: Array  # of the rows' degrees of freedom, how many the weights have spent
    left_out: Array  # for each row, the probability of its class, or the expected count, given the user's other rows
    usable: npt.NDArray[np.bool_]  # which users have rows that can be used
    evidence: Array  # log p(targets) up to a constant that does not depend on the prior; of two classes, and counts


def one_prior(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> Candidate:
    """Return users' posteriors under one prior, for two classes or counts."""
    found = propagated(design, targets, offsets, prior)
    if prior.loss == "poisson":
        left_out = mean_response(found.apart[:, 0], found.apart[:, 1], prior)
    else:
        left_out = np.minimum(np.exp(found.left_out), 1.0)
    return Candidate(
        means=prior.mean + found.means @ prior.root.T,
        covariances=np.asarray(prior.root @ found.covariances @ prior.root.T),
        freedoms=found.shares[:, 0],
        left_out=np.maximum(np.nan_to_num(left_out), LEAST),
        usable=found.rows > 0,
        evidence=found.evidence,
    )


class Mixture:
    """A weighted mean of candidates, with weights from each user's own rows.

    >>> from tacitly.methods.mixed_effects.posterior import Prior
    >>> rows, five = (np.ones((5, 1)), np.ones(5), np.array([0, 5])), np.array([0, 0, 0, 0, 0])
    >>> narrow, wide = (one_prior(*rows, Prior(np.zeros(1), np.eye(1) * size, 1.0, "logistic")) for size in (1, 3))
    >>> mixture = Mixture(narrow, five)
    >>> mixture.add(1.0, wide.evidence - narrow.evidence, wide)
    >>> mixture.mean().means.round(1), wide.means.round(1)  # five times yes: wide is likelier
    (array([[2.8]]), array([[3.4]]))
    """

    def __init__(self, usual: Candidate, owner: npt.NDArray[np.int64] | None = None) -> None:
        self._usual, self._owner, self._total, self._odds = usual, owner, np.ones(len(usual.usable)), 1.0
        self._means, self._covariances = usual.means.copy(), usual.covariances.copy()
        self._left_out = usual.left_out.copy()

    def add(self, odds: float, gains: Array, other: Candidate, users: npt.NDArray[np.bool_] | bool = True) -> None:
        """Add a candidate whose log odds grow by ``gains``; ``left_out`` is averaged only if owners are known."""
        known = self._usual.usable & other.usable & users
        share = np.where(known, odds * np.exp(np.clip(np.nan_to_num(gains), -_LARGEST_LOG, _LARGEST_LOG)), 0.0)
        self._total += share
        self._odds += odds
        self._means += share.reshape(-1, *[1] * (self._means.ndim - 1)) * other.means
        self._covariances += share[:, None, None] * other.covariances
        if self._owner is not None:
            self._left_out += share[self._owner] * other.left_out

    def mean(self) -> Candidate:
        """Return the mean of all candidates; its evidence is that of the mixture."""
        means = self._means / self._total.reshape(-1, *[1] * (self._means.ndim - 1))
        left_out = self._left_out if self._owner is None else self._left_out / self._total[self._owner]
        covariances = self._covariances / self._total[:, None, None]
        evidence = self._usual.evidence + np.log(self._total / self._odds)
        return replace(self._usual, means=means, covariances=covariances, left_out=left_out, evidence=evidence)
