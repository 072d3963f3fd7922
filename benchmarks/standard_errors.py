"""Do 95 % confidence intervals of population coefficients cover? 500 synthetic populations at ε = 1.

``python -m benchmarks.standard_errors`` (twenty minutes on one core; ``--quick`` for a smoke test). Users have an
intercept and slopes with a covariance drawn separately for each population, features in random units and offsets, and a
Poisson number of rows. Some features are constant within users, like age or a school's size; slopes on these are common
to all users, because rows of one user cannot distinguish a personal slope from the intercept. Rare features are levels
with a declared range: one for two users in a hundred, zero for the others. Every fit finds units privately, draws fresh
noise and is certified.

For classes and counts, the same distribution gives log odds and log rates, with standardised features: with random
offsets, an intercept would be the log odds of a row that is far from all others. Counts have overdispersion: the
variance of log rates between rows of a user is 0.09.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np

import tacitly
from benchmarks.tables import keep, table
from tacitly.arrays import Array

SHAPES = (
    ("squared", 1000, 6, 4, 0, 0, 500),
    ("squared", 1000, 6, 5, 0, 1, 200),
    ("squared", 600, 8, 3, 0, 0, 200),
    ("squared", 3000, 5, 8, 0, 0, 200),
    ("squared", 2000, 8, 8, 2, 0, 200),
    ("squared", 2000, 8, 9, 2, 1, 200),
    ("squared", 600, 8, 5, 2, 0, 200),
    ("logistic", 1000, 6, 3, 0, 0, 200),
    ("logistic", 1000, 2, 3, 0, 0, 200),
    ("logistic", 3000, 5, 8, 2, 0, 200),
    ("poisson", 1000, 6, 3, 0, 0, 200),
    ("poisson", 600, 8, 5, 2, 0, 200),
)
"""Loss, users, mean number of rows, features, how many are constant within users, how many are rare, populations."""

TARGETS = {"squared": "a number", "logistic": "two classes", "poisson": "a count"}
SCALES = {"squared": 1.0, "logistic": 1.0, "poisson": 0.5}
"""Deviations of log odds and log rates, in those of numbers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three populations; nothing is kept")
    quick = parser.parse_args().quick
    rows, data = [], []
    for loss, users, size, features, constant, rare, runs in (("squared", 300, 6, 3, 1, 1, 3),) if quick else SHAPES:
        errors, stated = measured(loss, users, size, features, constant, rare, runs)
        covered = np.abs(errors) <= 1.959963984540054 * stated
        ratio = float(np.sqrt(np.mean(np.square(errors / stated))))
        fixed = f"{covered[:, 1 : 1 + constant].mean():.3f}" if constant else "–"
        seldom = f"{covered[:, covered.shape[1] - rare :].mean():.3f}" if rare else "–"
        width = float(np.median(stated[:, 1 + constant : 1 + features - rare]))
        rows.append(
            [
                TARGETS[loss],
                f"{users:,} × {size}, {features}",
                constant,
                rare,
                runs,
                f"{covered.mean():.3f}",
                f"{covered[:, 0].mean():.3f}",
                fixed,
                seldom,
                f"{ratio:.3f}",
                f"{width:.3f}",
            ]
        )
        data.append(
            {
                "loss": loss,
                "users": users,
                "rows": size,
                "features": features,
                "constant": constant,
                "rare": rare,
                "runs": runs,
                "covered": float(covered.mean()),
                "covered each": covered.mean(axis=0).tolist(),
            }
        )
    header = [
        "target",
        "users × rows, features",
        "of these constant within users",
        "rare",
        "populations",
        "95 % intervals cover",
        "of intercepts",
        "of constant features",
        "of rare features",
        "error ÷ standard error, rms",
        "median standard error of other features",
    ]
    keep("standard_errors", {"shapes": data}, table(header, rows), quick=quick)


def measured(
    loss: str, users: int, size: int, features: int, constant: int, rare: int, runs: int
) -> tuple[Array, Array]:
    """Return errors of the population's coefficients and their stated standard errors, one row per population."""
    errors, stated = [], []
    levels = {f"x{column}": {"range": [0, 1]} for column in range(features - rare, features)}
    for run in range(runs):
        X, y, ids, truth = population(loss, users, size, features, constant, rare, run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = tacitly.MixedEffects(epsilon=1.0, loss=loss, schema=levels or None).fit(X, y, ids)
        errors.append(np.append(model.intercept_, model.coef_) - truth)
        stated.append(np.append(model.intercept_std_, model.coef_std_))
    return np.array(errors), np.array(stated)


def population(
    loss: str, users: int, size: int, features: int, constant: int, rare: int, seed: int
) -> tuple[Array, Array, Array, Array]:
    """Return rows, targets, ids and the true coefficients; the first ``constant`` features are, the last are rare."""
    rng = np.random.default_rng(seed)
    truth = 0.7 * SCALES[loss] * rng.normal(size=features + 1)
    spreads = SCALES[loss] * np.append(1.0, 0.3 * rng.random(features))
    spreads[1 : 1 + constant] = 0.0
    spreads[1 + features - rare :] = 0.0
    mixing = np.eye(features + 1) + 0.5 / math.sqrt(features + 1) * rng.normal(size=(features + 1, features + 1))
    weights = truth + rng.normal(size=(users, features + 1)) @ mixing * spreads
    ids = np.repeat(np.arange(users), 1 + rng.poisson(size - 1, size=users))
    X = rng.normal(size=(len(ids), features))
    if loss == "squared":
        X = X * np.exp(rng.normal(size=features)) + rng.normal(size=features)
    X[:, :constant] = X[np.searchsorted(ids, ids), :constant]
    X[:, features - rare :] = rng.permuted(np.tile(np.arange(users)[:, None] < 0.02 * users, rare), axis=0)[ids]
    middle = weights[ids, 0] + np.einsum("ij,ij->i", X, weights[ids, 1:])
    return X, targets(loss, middle, rng), ids, truth


def targets(loss: str, middle: Array, rng: np.random.Generator) -> Array:
    """Return numbers, classes or counts about a linear predictor."""
    if loss == "logistic":
        return (rng.random(len(middle)) < 1.0 / (1.0 + np.exp(-middle))) * 1.0
    if loss == "poisson":
        return rng.poisson(np.exp(middle + 0.3 * rng.normal(size=len(middle)))).astype(np.float64)
    return np.asarray(middle + 0.7 * rng.normal(size=len(middle)))


if __name__ == "__main__":
    main()
