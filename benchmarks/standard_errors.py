"""Do 95 % confidence intervals of population coefficients cover? 500 synthetic populations at ε = 1.

``python -m benchmarks.standard_errors`` (twenty minutes on one core; ``--quick`` for a smoke test). Users have an
intercept and slopes with a covariance drawn separately for each population, features in random units and offsets, and a
Poisson number of rows. Some features are constant within users, like age or a school's size; slopes on these are common
to all users, because rows of one user cannot distinguish a personal slope from the intercept. Every fit finds units
privately, draws fresh noise and is certified.

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
    ("squared", 1000, 6, 4, 0, 500),
    ("squared", 600, 8, 3, 0, 200),
    ("squared", 3000, 5, 8, 0, 200),
    ("squared", 2000, 8, 8, 2, 200),
    ("squared", 600, 8, 5, 2, 200),
    ("logistic", 1000, 6, 3, 0, 200),
    ("logistic", 1000, 2, 3, 0, 200),
    ("logistic", 3000, 5, 8, 2, 200),
    ("poisson", 1000, 6, 3, 0, 200),
    ("poisson", 600, 8, 5, 2, 200),
)
"""Loss, users, mean number of rows, features, how many of them are constant within users, populations."""

TARGETS = {"squared": "a number", "logistic": "two classes", "poisson": "a count"}
SCALES = {"squared": 1.0, "logistic": 1.0, "poisson": 0.5}
"""Deviations of log odds and log rates, in those of numbers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three populations; nothing is kept")
    quick = parser.parse_args().quick
    rows, data = [], []
    for loss, users, size, features, constant, runs in (("squared", 300, 6, 2, 1, 3),) if quick else SHAPES:
        errors, stated = measured(loss, users, size, features, constant, runs)
        covered = np.abs(errors) <= 1.959963984540054 * stated
        ratio = float(np.sqrt(np.mean(np.square(errors / stated))))
        fixed = f"{covered[:, 1 : 1 + constant].mean():.3f}" if constant else "–"
        rows.append(
            [
                TARGETS[loss],
                f"{users:,} × {size}, {features}",
                constant,
                runs,
                f"{covered.mean():.3f}",
                f"{covered[:, 0].mean():.3f}",
                fixed,
                f"{ratio:.3f}",
            ]
        )
        data.append(
            {
                "loss": loss,
                "users": users,
                "rows": size,
                "features": features,
                "constant": constant,
                "runs": runs,
                "covered": float(covered.mean()),
                "covered each": covered.mean(axis=0).tolist(),
            }
        )
    header = [
        "target",
        "users × rows, features",
        "of these constant within users",
        "populations",
        "95 % intervals cover",
        "of intercepts",
        "of constant features",
        "error ÷ standard error, rms",
    ]
    keep("standard_errors", {"shapes": data}, table(header, rows), quick=quick)


def measured(loss: str, users: int, size: int, features: int, constant: int, runs: int) -> tuple[Array, Array]:
    """Return errors of the population's coefficients and their stated standard errors, one row per population."""
    errors, stated = [], []
    for run in range(runs):
        X, y, ids, truth = population(loss, users, size, features, constant, run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = tacitly.MixedEffects(epsilon=1.0, loss=loss).fit(X, y, ids)
        errors.append(np.append(model.intercept_, model.coef_) - truth)
        stated.append(np.append(model.intercept_std_, model.coef_std_))
    return np.array(errors), np.array(stated)


def population(
    loss: str, users: int, size: int, features: int, constant: int, seed: int
) -> tuple[Array, Array, Array, Array]:
    """Return rows, targets, ids and the true population coefficients; the first ``constant`` features are."""
    rng = np.random.default_rng(seed)
    truth = 0.7 * SCALES[loss] * rng.normal(size=features + 1)
    spreads = SCALES[loss] * np.append(1.0, 0.3 * rng.random(features))
    spreads[1 : 1 + constant] = 0.0
    mixing = np.eye(features + 1) + 0.5 / math.sqrt(features + 1) * rng.normal(size=(features + 1, features + 1))
    weights = truth + rng.normal(size=(users, features + 1)) @ mixing * spreads
    ids = np.repeat(np.arange(users), 1 + rng.poisson(size - 1, size=users))
    X = rng.normal(size=(len(ids), features))
    if loss == "squared":
        X = X * np.exp(rng.normal(size=features)) + rng.normal(size=features)
    X[:, :constant] = X[np.searchsorted(ids, ids), :constant]
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
