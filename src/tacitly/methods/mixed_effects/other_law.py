"""A second distribution of users besides N(w̄, S), for users whom the normal distribution describes badly.

Classes: the user's probability of yes does not depend on the features (:func:`own_chance`). Far more people give nearly
always the same answer than a normal distribution of log odds predicts.

Counts: the user's rate is the population's rate for these features times a factor, estimated by credibility theory
(:func:`own_factor`): the best linear estimate given means and variances, for any distribution. A posterior of log rates
assumes that these are normal. If a few rows are very large (doctor visits, patents), it mistakes chance for a level,
and personal slopes extrapolate badly.

Each user's own rows decide which distribution the user follows, by the gain in evidence, given the share of users who
follow the second one. This share is a property of the population: it is zero for schools and fights among their pupils,
and one half for people and union membership. So the server learns it by a release:
:class:`~tacitly.methods.mixed_effects.loss_queries.OtherLaw`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Offsets, per_user, row_products, rows_times
from tacitly.heads.losses import LARGEST_SCORE
from tacitly.methods.mixed_effects.candidates import LEAST, Candidate, Mixture
from tacitly.methods.mixed_effects.likelihoods import mean_response
from tacitly.methods.mixed_effects.posterior import Prior

_RAREST = 1e-3  # share of a class
_MOST_VARIANCE = 5.0  # of a log rate: beyond it moments of the rate say nothing
_LEAST_VARIANCE = 1e-6


def own_chance(targets: Array, offsets: Offsets, prior: Prior) -> Candidate:
    """Return predictions from a user's own share of yes, with the prior Beta(q, 1 − q) for the probability of yes.

    So the population's share q of yes in a typical row counts as much as one row of the user.
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
        left_out=np.clip(np.nan_to_num(np.where(targets > 0.5, left, 1.0 - left)), LEAST, 1.0),
        usable=counts > 0,
        evidence=evidence - math.lgamma(share) - math.lgamma(1.0 - share),
    )


def own_factor(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> Candidate:
    """Return predictions for users whose rate is the population's times a factor with mean 1 and variance τ².

    Let μ be the population's expected counts, with variances μ + φμ² of rows. The factor is (1 + τ²Σκy)/(1 + τ²Σκμ)
    with κ = 1/(1 + φμ), so that one huge row does not decide alone (Bühlmann and Straub 1970).

    >>> prior = Prior(np.zeros(1), np.eye(1) * 0.5, 0.1, "poisson")
    >>> found = own_factor(np.ones((3, 1)), np.array([9.0, 7.0, 8.0]), np.array([0, 3]), prior)
    >>> np.exp(found.means + 0.05).round(1)  # the population expects 1.2
    array([[4.4]])
    """
    counts = np.diff(offsets)
    owner, rows = np.repeat(np.arange(len(counts)), counts), np.maximum(counts, 1.0)
    # To the last bit a row's own: counts may be a billion.
    scores = rows_times(design, np.column_stack([prior.mean, prior.covariance]))
    spread = np.minimum(row_products(scores[:, 1:], design), np.trace(prior.covariance))
    typical = np.minimum(per_user(spread, offsets) / rows, _MOST_VARIANCE)  # of log rates in the user's rows
    variance, noise = np.expm1(typical), min(prior.noise, _MOST_VARIANCE)
    expected = np.exp(np.minimum(scores[:, 0] + (typical[owner] + noise) / 2.0, LARGEST_SCORE))
    weight = 1.0 / (1.0 + math.expm1(noise) * (1.0 + variance[owner]) * expected)
    parts = variance[owner][:, None] * weight[:, None] * np.stack([targets, expected], axis=1)
    sums = per_user(parts, offsets)
    left_out = expected * _factor(sums[owner] - parts)
    levels = np.log(_factor(sums)) + typical / 2.0
    means = np.tile(prior.mean, (len(counts), 1))
    means[:, 0] += np.nan_to_num(levels)
    return Candidate(
        means=means,
        covariances=np.zeros((len(counts), len(prior.mean), len(prior.mean))),
        freedoms=np.ones(len(counts)),
        left_out=np.maximum(np.nan_to_num(left_out), LEAST),
        usable=(counts > 0) & np.isfinite(levels),
        evidence=np.zeros(len(counts)),
    )


def _factor(sums: Array) -> Array:
    """Return the factors that follow from τ²Σκy and τ²Σκμ."""
    seen, expected = np.maximum(sums, 0.0).T
    return np.asarray((1.0 + seen) / (1.0 + expected))


@dataclass(frozen=True)
class Compared:
    """Predictions for several users under both distributions, and the gain in log evidence of the second one."""

    usual: Candidate
    other: Candidate
    gains: Array


def compared(usual: Candidate, design: Array, targets: Array, offsets: Offsets, prior: Prior) -> Compared:
    """Compare the other distribution with ``usual``, for two classes or counts.

    Classes are compared by evidence. Counts are compared by left-out rows under a negative binomial distribution with
    the same variance for both, so that only expected counts matter.
    """
    if prior.loss == "logistic":
        other = own_chance(targets, offsets, prior)
        return Compared(usual, other, other.evidence - usual.evidence)
    other = own_factor(design, targets, offsets, prior)
    excess = max(math.expm1(min(prior.noise, _MOST_VARIANCE)), _LEAST_VARIANCE)
    better = _log_probability(targets, other.left_out, excess) - _log_probability(targets, usual.left_out, excess)
    return Compared(usual, other, per_user(better, offsets))


def _log_probability(counts: Array, expected: Array, excess: float) -> Array:
    """Return the log probability of counts with these means m and variances m + excess·m², up to a constant."""
    return np.asarray(counts * np.log(expected) - (counts + 1.0 / excess) * np.log1p(excess * expected))


def with_other_law(found: Compared, share: float, owner: npt.NDArray[np.int64]) -> Candidate:
    """Return the mixture in which a share of users follows the other distribution."""
    mixture = Mixture(found.usual, owner)
    mixture.add(share / (1.0 - share), found.gains, found.other)
    return mixture.mean()


def _log_gamma(values: Array) -> Array:
    """Return log Γ, number by number."""
    return np.array([math.lgamma(value) for value in values.tolist()])


def check_share(share: float) -> None:
    """Raise unless this is a valid share of users."""
    if not 0.0 <= share < 1.0:
        raise ValueError(f"share must be at least 0 and below 1. Found {share!r}.")
