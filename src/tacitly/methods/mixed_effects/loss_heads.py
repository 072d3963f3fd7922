"""Heads for classes and counts: posteriors by expectation propagation. Users compute them locally; never released.

A head is the posterior mean of the user's p weights (p for each class where there are several), followed by the upper
triangle of their posterior covariance (the mean over classes), both in public coordinates.

Users do not follow a normal distribution: many more of them are far from the others than a normal distribution predicts
(members of a union who stay in it for life), and privacy noise adds error to S. So for classes, users apply a mixture
of priors with public odds: S multiplied by each of :data:`SCALES`. The evidence of each user's own rows determines the
weights, and the head contains the weighted means of the posterior means and of the covariances, so users far from the
population keep more of their own information. (The spread between the means is left out: probabilities saturate, and
with it, a user who always answers "yes" would get a smaller probability than under each of the posteriors.) If users do
follow the normal distribution, this costs a few thousandths of the log loss.

A share of users, which is learned, follows a different distribution (:mod:`~tacitly.methods.mixed_effects.other_law`).

Evidence cannot show that a prior is useless: it decreases with every direction in which a prior is wider, even if rows
are predicted better. So users with enough rows also include fits that nearly ignore the prior (:data:`WIDE`), weighted
by how well each row is predicted from the user's other rows; expectation propagation gives this at no extra cost. As in
:mod:`~tacitly.methods.mixed_effects.evidence`, a fit that uses f degrees of freedom on m rows is judged by m − 1 − f of
them. Such fits have large weights, and even a small share of them changes a mean considerably. So their odds are small,
and they need clearly better predictions of a few rows.

For counts, the rows show clearly how far a user is from the population under S itself. The alternative prior for counts
assumes only that users have levels: users whose rows are almost impossible under the population's prior fall back on
their own rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tacitly.arrays import Array, Offsets, Rows
from tacitly.heads.base import HeadWork
from tacitly.methods.mixed_effects.candidates import LEAST, Candidate, Mixture, one_prior
from tacitly.methods.mixed_effects.likelihoods import class_by_class
from tacitly.methods.mixed_effects.other_law import check_share, compared, with_other_law
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, users_at_once
from tacitly.methods.shared.batch import per_user

SCALES = {0.5: 0.27, 2.0: 0.33, 4.0: 0.15, 8.0: 0.07}
"""For classes: by what S is multiplied, and how often users are expected to be so, relative to S itself.

Public, and chosen before they were tried on any table.
"""

WIDE, TRIED, ENOUGH = (32.0, 128.0), 0.003, 8
"""For classes: by what S is multiplied for own fits, their odds, and from how many rows on (or p) they are tried."""

ALONE = 0.05
"""For counts: odds of a user who is predicted by nothing but the user's own level."""

OWN = {"logistic": 2.0, "poisson": 5.0}
"""Deviations of levels of users about whom nothing is known."""

_SLOPES = 0.25  # variance of a usual row's log odds due to slopes, added to what S says for own fits


@dataclass(frozen=True)
class LossPosteriorHeads(HeadWork):
    """Means and covariances of users' weights under a public prior for classes or counts.

    ``share``: share of users who follow the other distribution (:mod:`~tacitly.methods.mixed_effects.other_law`).
    """

    units: Coordinates
    prior: Prior
    share: float = 0.0

    def __post_init__(self) -> None:
        check_share(self.share)

    def __call__(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        """Return one head per user."""
        blocks = []
        size = users_at_once(self.units.size)
        for first in range(0, len(offsets) - 1, size):
            bounds = offsets[first : first + size + 1]
            rows = slice(int(bounds[0]), int(bounds[-1]))
            blocks.append(self._block(X[rows], y[rows], bounds - bounds[0]))
        return np.concatenate(blocks) if blocks else np.zeros((0, *self.shape))

    def own(self, X: Rows, y: Rows) -> Array:
        """Return one user's head."""
        return np.asarray(self._block(X, y, np.array([0, len(X)]))[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Weights and the upper triangle of their covariance."""
        size = self.units.size
        return (self.prior.mean.size + size * (size + 1) // 2,)

    def _block(self, X: Rows, y: Rows, offsets: Offsets) -> Array:
        design, targets = self.units.design(X), np.asarray(y, dtype=np.float64)
        weights, covariances = mixed_posteriors(design, targets, offsets, self.prior, self.share)
        upper = np.triu_indices(self.units.size)
        return np.hstack([weights.reshape(len(weights), -1), covariances[:, upper[0], upper[1]]])


def mixed_posteriors(
    design: Array, targets: Array, offsets: Offsets, prior: Prior, share: float = 0.0
) -> tuple[Array, Array]:
    """Return means (n×p, or n×K×p) and covariances (n×p×p) of users' weights; of the prior for no rows.

    >>> prior = Prior(np.zeros(1), np.eye(1), 1.0, "logistic")
    >>> ten, odds = np.array([0, 10]), np.ones((10, 1))
    >>> mixed_posteriors(odds, np.ones(10), ten, prior)[0].round(1)  # ten times yes: 1.7 under the prior alone
    array([[2.5]])
    >>> mixed_posteriors(odds, np.ones(10), ten, prior, 0.5)[0].round(1)  # where half of the people are always alike
    array([[3.]])
    >>> bool(abs(mixed_posteriors(odds, np.arange(10) % 2.0, ten, prior)[0][0, 0]) < 0.01)
    True
    """
    usual, counts = joined(design, targets, offsets, prior, by_evidence), np.diff(offsets)
    if prior.mean.ndim == 1 and share > 0:
        both = compared(usual, design, targets, offsets, prior)
        usual = with_other_law(both, share, np.repeat(np.arange(len(counts)), counts))
    # Users with few rows keep their places in all arrays: nobody's last bits depend on who has how many.
    enough = np.where(counts >= max(ENOUGH, len(prior.root)), counts, 0)
    if prior.loss != "logistic" or not enough.any():
        return usual.means, usual.covariances
    taken, bounds = np.repeat(enough > 0, counts), np.append(0, np.cumsum(enough))
    rows, own, expected, mixture = design[taken], targets[taken], np.log(usual.left_out[taken]), Mixture(usual)
    for scale in WIDE:
        other = joined(rows, own, bounds, wider(prior, scale), one_prior)
        judged = np.maximum(enough - 1.0 - other.freedoms, 0.0) / np.maximum(enough, 1.0)
        mixture.add(TRIED, judged * per_user(np.log(other.left_out) - expected, bounds), other, enough > 0)
    found = mixture.mean()
    return found.means, found.covariances


_Way = Callable[[Array, Array, Offsets, Prior], Candidate]


def joined(design: Array, targets: Array, offsets: Offsets, prior: Prior, way: _Way) -> Candidate:
    """Return the predictions of one candidate; for several classes, each against the rest, normalised."""
    pairs = class_by_class(targets, prior)
    own, one = next(pairs)
    first = way(design, own, offsets, one)
    if prior.mean.ndim == 1:
        return first
    means, covariances, freedoms, usable = [first.means], first.covariances.copy(), first.freedoms, first.usable
    right, every = _shares(first, own)
    for own, one in pairs:
        found = way(design, own, offsets, one)
        means.append(found.means)
        covariances += found.covariances
        freedoms, usable, more = freedoms + found.freedoms, usable & found.usable, _shares(found, own)
        right, every = right + more[0], every + more[1]
    left_out, count = right / every, len(means)
    return Candidate(np.stack(means, axis=1), covariances / count, freedoms / count, left_out, usable, first.evidence)


def _shares(found: Candidate, own: Array) -> tuple[Array, Array]:
    """Return the probability of a class in each row, where it is the row's (else zero), and wherever it is."""
    yes = own > 0.5
    return np.where(yes, found.left_out, 0.0), np.where(yes, found.left_out, 1.0 - found.left_out) + LEAST


def by_evidence(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> Candidate:
    """Return users' weights under the mixture of normal priors, for two classes or counts."""
    usual = one_prior(design, targets, offsets, prior)
    mixture = Mixture(usual, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    for odds, alternative in _others(prior):
        other = one_prior(design, targets, offsets, alternative)
        mixture.add(odds, other.evidence - usual.evidence, other)
    return mixture.mean()


def _others(prior: Prior) -> Iterator[tuple[float, Prior]]:
    """Yield the alternative priors that users compare by evidence, each with its odds relative to the population's."""
    if prior.loss == "logistic":
        for scale, odds in SCALES.items():
            yield odds, replace(prior, root=prior.root * math.sqrt(scale))
    else:
        size = len(prior.mean)
        own = np.append(OWN["poisson"], np.full(size - 1, 1e-3))
        yield ALONE, replace(prior, mean=np.zeros(size), root=np.diag(own))


def wider(prior: Prior, scale: float) -> Prior:
    """Return a wide prior, under which users with many rows nearly get their own fit; slopes vary even if S is zero."""
    size = len(prior.root)
    found = prior.doubted(np.diag(np.append(0.0, np.full(size - 1, _SLOPES / max(size - 1, 1)))))
    return replace(found, root=found.root * math.sqrt(scale))
