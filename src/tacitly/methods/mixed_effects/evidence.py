"""How much each user trusts the prior: decided from the user's own rows, locally and at no privacy cost.

Candidates for a user's weights are posteriors with the noise variance multiplied by :data:`SCALES` (from nearly the
user's own fit to nearly the population) and the user's own mean. Each candidate predicts every row of the user from the
user's other rows. If its mean squared error over m rows is eₖ, candidate k gets the weight oddsₖ·(eₖ/e)^(−(m − 1 −
fₖ)/2), where e is the error of the posterior itself. This is the evidence of m − 1 − fₖ independent errors of unknown
variance: a candidate that uses fₖ degrees of freedom on m rows leaves only that many to judge it. (With m − 1 instead,
a user with as many rows as weights sometimes got a fit through all rows, whose left-out errors happened to be small.)
The odds are public and favour the posterior. So a few rows overrule it only if it is far off, because the user is an
outlier or because privacy noise has spoilt the prior. If rows are equal by chance, as answers on a scale of three often
are, a candidate may have no error at all: :data:`CHANCE` keeps this from counting as certainty.
"""

from __future__ import annotations

import numpy as np

from tacitly.arrays import Array, Offsets, Rows, rows_times
from tacitly.methods.mixed_effects.own_noise import factors
from tacitly.methods.mixed_effects.posterior import Coordinates, Prior, moments
from tacitly.methods.shared.batch import per_user

SCALES = (0.01, 0.1, 1.0, 10.0)
TRUSTED = (0.005, 0.02, 0.95, 0.015, 0.01)
"""Odds of the candidates, the user's own mean last, where the prior helps the users on the whole."""

ALONE = (0.0, 0.0, 0.0, 0.0, 1.0)
"""Odds where it does not: every user's own mean."""

CHANCE = 0.3
"""Added to each sum of squared left-out errors, in noise variances.

Without it, predictions of answers 0, 1 and 2 by two or three rows were 8 % worse than one model for all. It was chosen
among 0.3, 1, 2 and 4 on public panels: targets without ties hardly notice, and a larger one takes more from the few who
are right to trust their own rows.
"""

_POSTERIOR = SCALES.index(1.0)


def personal_weights(
    X: Rows, y: Rows, offsets: Offsets, units: Coordinates, prior: Prior, odds: Array
) -> tuple[Array, Array, Array]:
    """Return weights (n×p), the covariance of their error (n×p×p) and the factor of the user's own noise, per user.

    A user without rows gets those of the prior. The left-out errors of the other candidates, by their weights, also
    determine the noise factor: a user far from the population need not be noisy.

    >>> units = Coordinates(np.zeros(0), np.zeros(0), 0.0, 1.0)
    >>> level = Prior(np.zeros(1), np.eye(1), 1.0)
    >>> rows, far = np.zeros((4, 0)), np.array([50.0, 50.1, 49.9, 50.0])
    >>> weights, _, noise = personal_weights(rows, far, np.array([0, 4]), units, level, np.array(TRUSTED))
    >>> bool(weights[0, 0] > 49.5), bool(noise[0] < 1.0)  # the posterior alone would say 40, give or take 20
    (True, True)
    """
    grams, _, _, rows = moments(X, y, offsets, units)
    design, targets = units.design(X), units.targets(y)
    owner = np.repeat(np.arange(len(rows)), np.diff(offsets))
    usable = rows > 0
    with np.errstate(over="ignore", invalid="ignore"):
        along = rows_times(design, np.column_stack([prior.mean, prior.root]))  # to the last bit a row's own
        residuals = np.where(usable[owner], targets - along[:, 0], 0.0)
        values, vectors = np.linalg.eigh(prior.root.T @ grams @ prior.root)
        values = np.maximum(values, 0.0)
        turned = np.einsum("ri,rij->rj", along[:, 1:], vectors[owner])
        rights = per_user(turned * residuals[:, None], offsets)
        weights, errors, freedoms, squared = [], [], [], np.square(turned)
        misfits = per_user(np.square(residuals), offsets) - np.square(rights / np.sqrt(values + prior.noise)).sum(
            axis=1
        )
        for scale in SCALES:
            inverse = 1.0 / (values + scale * prior.noise)
            moved = rights * inverse
            free = np.maximum(1.0 - np.einsum("ri,ri->r", squared, inverse[owner]), 1e-9)
            left = (residuals - np.einsum("ri,ri->r", turned, moved[owner])) / free
            weights.append(prior.mean + np.einsum("nij,nj->ni", vectors, moved) @ prior.root.T)
            errors.append(per_user(np.square(left), offsets))
            freedoms.append((values * inverse).sum(axis=1))
        count = np.maximum(rows, 1.0)
        means = np.where(usable, per_user(np.where(usable[owner], targets, 0.0), offsets) / count, prior.mean[0])
        alone = (targets - means[owner]) * (count / np.maximum(count - 1.0, 1.0))[owner]
        errors.append(per_user(np.where(usable[owner], np.square(alone), 0.0), offsets))
        weights.append(np.concatenate([means[:, None], np.zeros((len(rows), units.size - 1))], axis=1))
        freedoms.append(np.ones(len(rows)))
    candidates = np.stack(weights)
    left_out = np.stack(errors)
    shares = shares_of((left_out + CHANCE * prior.noise) / count, np.stack(freedoms), rows, odds)
    noise = own_noise(shares, left_out / prior.noise, misfits / prior.noise, rows)
    mixed = np.einsum("kn,kni->ni", shares, candidates)
    between = candidates - mixed
    # Both parts of the covariance are sums of squares: one product of what is squared.
    within = (prior.root @ vectors) * np.sqrt(prior.noise / (values + prior.noise))[:, None, :]
    parts = np.concatenate([within, (np.sqrt(shares)[:, :, None] * between).transpose(1, 2, 0)], axis=2)
    covariance = parts @ parts.transpose(0, 2, 1)
    return np.where(usable[:, None], mixed, prior.mean), covariance, noise


def own_noise(shares: Array, errors: Array, misfits: Array, rows: Array) -> Array:
    """Return the factor of each user's own noise: the inverse of the mean of 1/τ over candidates.

    ``errors`` are sums of squared left-out errors of candidates (first axis), ``misfits`` the posterior's Q, both in
    noise variances.
    """
    with np.errstate(invalid="ignore"):
        sizes = np.where(np.arange(len(shares))[:, None] == _POSTERIOR, np.maximum(misfits, 0.0), errors)
        found = 1.0 / np.where(shares > 0, shares / factors(sizes, rows), 0.0).sum(axis=0)
    return np.where((rows > 0) & np.isfinite(found), found, 1.0)


def shares_of(errors: Array, freedoms: Array, rows: Array, odds: Array) -> Array:
    """Return the weight of each candidate (first axis) for each user.

    >>> one = np.array([[0.01], [0.1], [1.0], [1.0], [0.1]])  # left-out errors of a user with 5 rows
    >>> used = np.array([[4.0], [3.0], [2.0], [1.0], [1.0]])  # degrees of freedom
    >>> shares_of(one, used, np.array([5.0]), np.array(TRUSTED))[:, 0].round(3)
    array([0.004, 0.047, 0.704, 0.011, 0.234])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        judged = np.maximum(rows - 1.0 - freedoms, 0.0) / 2.0
        usual = np.where(np.isfinite(errors[_POSTERIOR]), errors[_POSTERIOR], 1.0)
        logarithms = np.log(np.asarray(odds))[:, None] - judged * np.log(errors / usual)
    logarithms = np.where(np.isfinite(logarithms), logarithms, -np.inf)
    shares = np.exp(logarithms - logarithms.max(axis=0))
    if odds[_POSTERIOR] > 0:  # a single row says nothing about how to predict it from others
        single = np.eye(len(odds))[_POSTERIOR][:, None]
        shares = np.where(rows > 1, shares, single)
    return np.asarray(shares / shares.sum(axis=0))
