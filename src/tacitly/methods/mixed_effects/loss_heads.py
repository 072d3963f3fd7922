"""Heads for classes and counts: posteriors by expectation propagation. Computed at home, never released.

A head is the posterior mean of the user's p weights (p for each class where there are several), followed by the upper
triangle of their posterior covariance (the mean over classes), both in public coordinates.

People are not drawn from a normal law: many more than it says are far from everybody else (members of a union who stay
in it for life), and privacy noise blurs S besides. So for classes the prior at home is a mixture, with public odds: S
multiplied by one of :data:`SCALES`, or, of two classes, a chance that features say nothing about (:func:`own_level`).
Each user's own rows weigh them by their evidence under each, and the head has the means of means and covariances: those
who are far off keep more of what is their own. (The spread between the means is left out: probabilities saturate, and
with it a user who always answers "yes" would be given less than each of the posteriors says.) Where users do follow the
normal law this costs a few thousandths of the log loss.

Evidence cannot tell that a prior is of no use: it falls with every direction in which a prior is wider, though rows may
be predicted better. So users with rows enough also try nearly their own fits (:data:`WIDE`), by how well each row is
predicted from the user's others: expectation propagation says that for nothing. As in
:mod:`~tacitly.methods.mixed_effects.evidence`, a fit that spends f degrees of freedom on m rows is judged by m − 1 − f
of them. Own fits have large weights, of which a small part moves a mean far; so their odds are small, and a few rows'
worth of better predictions is needed to try them.

Counts say clearly how far off a user is under S itself. There the other prior knows nothing but that people have
levels: users whose rows the population's prior would all but exclude fall back on their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, Rows
from tacitly.heads.base import HeadWork
from tacitly.methods.mixed_effects.heads import users_at_once
from tacitly.methods.mixed_effects.likelihoods import class_by_class, mean_response, propagated
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior
from tacitly.methods.shared.batch import per_user

SCALES = {0.5: 0.27, 2.0: 0.33, 4.0: 0.15, 8.0: 0.07}
"""For classes: by what S is multiplied, and how often users are expected to be so, relative to S itself.

Public, and chosen before they were tried on any table.
"""

LEVEL = 1.0
"""For classes: odds of a user whose classes do not depend on the features, see :func:`own_level`.

Chosen on union membership and five public tables (answers to job applications, obesity, immunisation, anger, ketchup):
more helps where features say little and costs where they say much.
"""

WIDE, TRIED, ENOUGH = (32.0, 128.0), 0.003, 8
"""For classes: by what S is multiplied for own fits, their odds, and from how many rows on (or p) they are tried."""

ALONE = 0.05
"""For counts: odds of a user who is predicted by nothing but the user's own level."""

OWN = {"logistic": 2.0, "poisson": 5.0}
"""Deviations of levels of users about whom nothing is known."""

_LARGEST = 300.0  # logarithm of a ratio of evidences
_LEAST, _RAREST = 1e-12, 1e-3  # probability of a left-out row; share of a class
_SLOPES = 0.25  # variance of a usual row's log odds due to slopes, added to what S says for own fits


@dataclass(frozen=True)
class LossPosteriorHeads(HeadWork):
    """Means and covariances of users' weights under a public prior for classes or counts."""

    units: Coordinates
    prior: Prior

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
        weights, covariances = mixed_posteriors(design, targets, offsets, self.prior)
        upper = np.triu_indices(self.units.size)
        return np.hstack([weights.reshape(len(weights), -1), covariances[:, upper[0], upper[1]]])


def mixed_posteriors(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> tuple[Array, Array]:
    """Return means (n×p, or n×K×p) and covariances (n×p×p) of users' weights; of the prior for no rows.

    >>> prior = Prior(np.zeros(1), np.eye(1), 1.0, "logistic")
    >>> ten, odds = np.array([0, 10]), np.ones((10, 1))
    >>> mixed_posteriors(odds, np.ones(10), ten, prior)[0].round(1)  # ten times yes: 1.7 under the prior alone
    array([[2.9]])
    >>> bool(abs(mixed_posteriors(odds, np.arange(10) % 2.0, ten, prior)[0][0, 0]) < 0.01)
    True
    """
    way = by_evidence if prior.mean.ndim == 1 else partial(by_evidence, level=0.0)
    usual, counts = joined(design, targets, offsets, prior, way), np.diff(offsets)
    # Users with few rows keep their places in all arrays: nobody's last bits depend on who has how many.
    compared = np.where(counts >= max(ENOUGH, len(prior.root)), counts, 0)
    if prior.loss != "logistic" or not compared.any():
        return usual.means, usual.covariances
    taken, bounds = np.repeat(compared > 0, counts), np.append(0, np.cumsum(compared))
    rows, own, expected, mixture = design[taken], targets[taken], np.log(usual.left_out[taken]), _Mixture(usual)
    for scale in WIDE:
        other = joined(rows, own, bounds, wider(prior, scale), one_prior)
        judged = np.maximum(compared - 1.0 - other.freedoms, 0.0) / np.maximum(compared, 1.0)
        mixture.add(TRIED, judged * per_user(np.log(other.left_out) - expected, bounds), other, compared > 0)
    found = mixture.mean()
    return found.means, found.covariances


@dataclass(frozen=True)
class Candidate:
    """One way to predict each of several users; with several classes covariances and freedoms are means over them."""

    means: Array  # of weights: n×p, or n×K×p
    covariances: Array  # n×p×p
    freedoms: Array  # of the rows' degrees of freedom, how many the weights have spent
    left_out: Array  # for each row, the probability of its target given the user's other rows
    usable: npt.NDArray[np.bool_]  # which users have rows that can be used
    evidence: Array  # log p(targets) up to a constant that does not depend on the prior; of two classes, and counts


_Way = Callable[[Array, Array, Offsets, Prior], Candidate]


def joined(design: Array, targets: Array, offsets: Offsets, prior: Prior, way: _Way) -> Candidate:
    """Return what one way to predict says of the targets; of several classes against the rest each, normalised."""
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
    return np.where(yes, found.left_out, 0.0), np.where(yes, found.left_out, 1.0 - found.left_out) + _LEAST


def by_evidence(design: Array, targets: Array, offsets: Offsets, prior: Prior, level: float = LEVEL) -> Candidate:
    """Return users' weights under the mixture of priors, for two classes or counts; ``level``: odds of own levels."""
    usual = one_prior(design, targets, offsets, prior)
    mixture = _Mixture(usual, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)))
    for odds, other in others(design, targets, offsets, prior, level):
        mixture.add(odds, other.evidence - usual.evidence, other)
    return mixture.mean()


def one_prior(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> Candidate:
    """Return users' posteriors under one prior, for two classes or counts."""
    found = propagated(design, targets, offsets, prior)
    return Candidate(
        means=prior.mean + found.means @ prior.root.T,
        covariances=np.asarray(prior.root @ found.covariances @ prior.root.T),
        freedoms=found.shares[:, 0],
        left_out=np.clip(np.nan_to_num(np.exp(found.left_out)), _LEAST, 1.0),
        usable=found.rows > 0,
        evidence=found.evidence,
    )


def others(
    design: Array, targets: Array, offsets: Offsets, prior: Prior, level: float
) -> Iterator[tuple[float, Candidate]]:
    """Yield what users weigh against the posterior by evidence, each with its odds relative to it."""
    if prior.loss == "logistic":
        for scale, odds in SCALES.items():
            other = replace(prior, root=prior.root * math.sqrt(scale))
            yield odds, one_prior(design, targets, offsets, other)
        if level > 0:
            yield level, own_level(targets, offsets, prior)
    else:
        size = len(prior.mean)
        own = np.append(OWN["poisson"], np.full(size - 1, 1e-3))
        yield ALONE, one_prior(design, targets, offsets, replace(prior, mean=np.zeros(size), root=np.diag(own)))


def own_level(targets: Array, offsets: Offsets, prior: Prior) -> Candidate:
    """Return what users expect who only know how often they answered yes: with a chance of yes ~ Beta(q, 1 − q).

    The population's share q of yes in a typical row then counts as one row beside the user's own. Far more users than
    under a normal law of log odds answer nearly always alike.
    """
    size, counts = len(prior.mean), np.diff(offsets).astype(np.float64)
    typical = float(mean_response(prior.mean[:1], prior.covariance[:1, 0], prior)[0])
    share, owner = min(max(typical, _RAREST), 1.0 - _RAREST), np.repeat(np.arange(len(counts)), np.diff(offsets))
    yes = np.clip(np.nan_to_num(per_user(targets, offsets)), 0.0, counts)
    chance, means = (yes + share) / (counts + 1.0), np.zeros((len(counts), size))
    means[:, 0] = np.log(chance) - np.log1p(-chance)
    left = (yes[owner] - targets + share) / counts[owner]
    evidence = _log_gamma(yes + share) + _log_gamma(counts - yes + 1.0 - share) - _log_gamma(counts + 1.0)
    return Candidate(
        means=means,
        covariances=np.zeros((len(counts), size, size)),
        freedoms=np.ones(len(counts)),
        left_out=np.clip(np.nan_to_num(np.where(targets > 0.5, left, 1.0 - left)), _LEAST, 1.0),
        usable=counts > 0,
        evidence=evidence - math.lgamma(share) - math.lgamma(1.0 - share),
    )


def wider(prior: Prior, scale: float) -> Prior:
    """Return a prior under which users with many rows have nearly their own fit; slopes vary, whatever S says."""
    size = len(prior.root)
    found = prior.doubted(np.diag(np.append(0.0, np.full(size - 1, _SLOPES / max(size - 1, 1)))))
    return replace(found, root=found.root * math.sqrt(scale))


class _Mixture:
    """A mean of candidates, each with the weight that a user's own rows give it."""

    def __init__(self, usual: Candidate, owner: npt.NDArray[np.int64] | None = None) -> None:
        self._usual, self._owner, self._total = usual, owner, np.ones(len(usual.usable))
        self._means, self._covariances = usual.means.copy(), usual.covariances.copy()
        self._left_out = usual.left_out.copy()

    def add(self, odds: float, gains: Array, other: Candidate, users: npt.NDArray[np.bool_] | bool = True) -> None:
        """Add a candidate whose odds grow by ``gains``, differences of logarithms; of ``left_out`` with owners only."""
        known = self._usual.usable & other.usable & users
        share = np.where(known, odds * np.exp(np.clip(np.nan_to_num(gains), -_LARGEST, _LARGEST)), 0.0)
        self._total += share
        self._means += share.reshape(-1, *[1] * (self._means.ndim - 1)) * other.means
        self._covariances += share[:, None, None] * other.covariances
        if self._owner is not None:
            self._left_out += share[self._owner] * other.left_out

    def mean(self) -> Candidate:
        """Return the mean of all candidates."""
        means = self._means / self._total.reshape(-1, *[1] * (self._means.ndim - 1))
        left_out = self._left_out if self._owner is None else self._left_out / self._total[self._owner]
        covariances = self._covariances / self._total[:, None, None]
        return replace(self._usual, means=means, covariances=covariances, left_out=left_out)


def _log_gamma(values: Array) -> Array:
    """Return log Γ, number by number."""
    return np.array([math.lgamma(value) for value in values.tolist()])
