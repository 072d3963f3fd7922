"""Posteriors of users whose targets are classes or counts, and predictions of new rows from them.

For any likelihood, in coordinates where the prior is standard normal, the posterior mean u = E[v | rows] is the score
of the population's weights and I − R = I − Cov[v | rows] their observed information; and E[u uᵀ] = E[I − R] if the
prior is correct, by the law of total variance. So everything that is learned from (u, J = I − R) for numbers can be
learned in the same way for classes and counts; only the posteriors differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, read_only
from tacitly.heads.losses import LARGEST_SCORE
from tacitly.methods.mixed_effects import propagation
from tacitly.methods.mixed_effects.posterior import Coordinates, Posteriors, Prior

CODES = {"logistic": propagation.LOGISTIC, "poisson": propagation.POISSON}

LARGEST_COUNT = 1e9
"""Counts beyond it are taken for it."""


def _normal_nodes(count: int) -> tuple[Array, Array]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


_NODES = _normal_nodes(21)


@dataclass(frozen=True)
class LossPosteriors(Posteriors):
    """Posteriors for classes or counts; with several classes ``means`` is n×K×p and matrices are means over classes."""

    expected: Array  # information as it is expected from features alone, n×p×p
    shares: Array  # trace of the information of each class, n×K
    noise_excess: Array  # of log rates: zero on average if the noise variance is right
    noise_information: Array  # how sensitive the excess is to it
    evidence: Array  # log p(targets) up to a constant that does not depend on the prior; the sum over classes
    left_out: Array  # the same for each row, given the user's other rows
    apart: Array  # mean and variance of each row's score, given the user's other rows; of the first class


def loss_posteriors(X: Rows, y: Rows, offsets: Offsets, units: Coordinates, prior: Prior) -> LossPosteriors:
    """Return the posteriors of several users under a public prior; a user without rows has the prior."""
    return propagated(units.design(X), np.asarray(y, dtype=np.float64), offsets, prior)


def propagated(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> LossPosteriors:
    """Return posteriors for classes or counts by expectation propagation; each of several classes against the rest.

    >>> prior = Prior(np.zeros(1), np.eye(1), 1.0, "logistic")
    >>> found = propagated(np.ones((2, 1)), np.array([1.0, 1.0]), np.array([0, 2]), prior)
    >>> found.means.round(2), found.covariances[0].round(2).tolist()
    (array([[0.7]]), [[0.72]])
    """
    parts = (_propagated(design, own, offsets, one) for own, one in class_by_class(targets, prior))
    whole = next(parts)
    if prior.mean.ndim == 1:
        return whole
    means, shares, rows, evidence = [whole.means], [whole.shares], whole.rows, whole.evidence
    left_out = whole.left_out
    for one in parts:  # vectors of each class are kept, matrices are added up
        means.append(one.means)
        shares.append(one.shares)
        rows, evidence = np.minimum(rows, one.rows), evidence + one.evidence
        left_out = left_out + one.left_out
        for total, matrices in zip(_matrices(whole), _matrices(one), strict=True):
            total += matrices
    for total in _matrices(whole):
        total /= len(means)
    stacked = np.stack(means, axis=1)
    return replace(whole, means=stacked, rows=rows, shares=np.hstack(shares), evidence=evidence, left_out=left_out)


def class_by_class(targets: Array, prior: Prior) -> Iterator[tuple[Array, Prior]]:
    """Yield targets and prior as posteriors take them: one pair, or for several classes each against the rest.

    >>> several = Prior(np.zeros((3, 1)), np.eye(1), 1.0, "logistic")
    >>> [own.tolist() for own, _ in class_by_class(np.array([0.0, 2.0]), several)]
    [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    """
    if prior.mean.ndim > 1:
        usable = np.isfinite(targets)
        for k, mean in enumerate(prior.mean):
            yield np.where(usable, targets == k, np.nan), replace(prior, mean=mean)
    elif prior.loss == "poisson":
        yield np.where(targets >= 0, np.minimum(targets, LARGEST_COUNT), np.nan), prior
    else:
        yield targets, prior


def _matrices(found: LossPosteriors) -> tuple[Array, Array, Array]:
    return found.covariances, found.information, found.expected


def _propagated(design: Array, targets: Array, offsets: Offsets, prior: Prior) -> LossPosteriors:
    code = CODES[prior.loss]
    count, size = len(offsets) - 1, len(prior.mean)
    means, extra = np.zeros((count, size)), np.zeros((count, 4))
    covariances, expected = np.zeros((count, size, size)), np.zeros((count, size, size))
    left_out, apart = np.zeros(len(targets)), np.zeros((len(targets), 2))
    propagation.propagate(
        read_only(np.ascontiguousarray(design)),
        read_only(np.ascontiguousarray(targets)),
        np.array(offsets, dtype=np.int64),
        np.array(prior.mean),
        np.array(prior.root, order="C"),
        prior.noise if code == propagation.POISSON else 0.0,
        code,
        means,
        covariances,
        expected,
        extra,
        left_out,
        apart,
    )
    information = np.eye(size) - covariances
    return LossPosteriors(
        means=means,
        covariances=covariances,
        information=information,
        residuals=np.zeros(count),
        rows=extra[:, 2],
        expected=np.eye(size) - expected,
        shares=np.einsum("nii->n", information)[:, None],
        noise_excess=extra[:, 0],
        noise_information=extra[:, 1],
        evidence=extra[:, 3],
        left_out=left_out,
        apart=apart,
    )


def mean_response(scores: Array, variances: Array, prior: Prior) -> Array:
    """Return the probability of class 1, or the expected count, where a row's score is N(score, variance).

    For classes by quadrature; for counts exp(score + (variance + s²)/2), the mean of a log-normal variable. Variances
    are capped at tr S, that of a typical row of a user without rows. In a row far out, the variance grows with the
    square of the distance, and the mean of such a wide log-normal variable would be dominated by unrealistic rates.

    >>> prior = Prior(np.zeros(1), np.eye(1), 1.0, "logistic")
    >>> mean_response(np.array([0.0, 2.0]), np.array([4.0, 0.0]), prior).round(3)
    array([0.5  , 0.881])
    """
    if prior.loss == "poisson":
        return np.asarray(np.exp(np.minimum(scores + _usual(variances, prior) / 2.0, LARGEST_SCORE)))
    return _mean_share(scores, variances)


def class_probabilities(scores: Array, variances: Array) -> Array:
    """Return one probability per class; several classes against the rest each, so these are normalised.

    >>> class_probabilities(np.zeros((1, 4)), np.ones(1))
    array([[0.25, 0.25, 0.25, 0.25]])
    """
    if scores.ndim == 1:
        yes = _mean_share(scores, variances)
        return np.column_stack([1.0 - yes, yes])
    shares = np.stack([_mean_share(column, variances) for column in scores.T], axis=1)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def count_deviation(scores: Array, variances: Array, prior: Prior) -> Array:
    """Return the standard deviation of a new count: Poisson's, and that of its log-normal rate."""
    mean = mean_response(scores, variances, prior)
    relative = np.expm1(np.minimum(_usual(variances, prior), LARGEST_SCORE))
    return np.asarray(np.sqrt(mean + np.square(mean) * relative))


def _usual(variances: Array, prior: Prior) -> Array:
    """Return variances of log rates, the noise included, up to that of a usual row."""
    return np.asarray(np.clip(variances, 0.0, float(np.trace(prior.covariance))) + prior.noise)


def _mean_share(scores: Array, variances: Array) -> Array:
    spread, total = np.sqrt(np.maximum(variances, 0.0)), np.zeros(len(scores))
    for node, weight in zip(*_NODES, strict=True):
        total += weight / (1.0 + np.exp(-np.clip(scores + node * spread, -500.0, 500.0)))
    return total
