"""Every algorithm with small test parameters, for any engine."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import tacitly
from tacitly.federation.engine import Engine
from tacitly.methods.base import PrivateModel

EVERY: dict[str, Callable[..., PrivateModel]] = {
    "fedrep": lambda **o: tacitly.PrivateFedRep(rank=2, rounds=4, **o),
    "fedrep, intercepts": lambda **o: tacitly.PrivateFedRep(rank=2, rounds=3, fit_intercept=True, **o),
    "fedrep, as printed": lambda **o: tacitly.PrivateFedRep(rank=2, mode="paper", **o),
    "altmin": lambda **o: tacitly.PrivateAltMin(rank=2, **o),
    "logistic": lambda **o: tacitly.PrivateFedRep(rank=2, rounds=3, loss="logistic", fit_intercept=True, **o),
    "three classes": lambda **o: tacitly.PrivateFedRep(rank=2, rounds=2, loss="logistic", classes=(0, 1, 2), **o),
    "hinge": lambda **o: tacitly.PrivateFedRep(rank=2, rounds=2, loss="hinge", **o),
    "poisson": lambda **o: tacitly.PrivateFedRep(rank=2, rounds=2, loss="poisson", **o),
    "sparse": lambda **o: tacitly.LowRankSparse(2, 1, rounds=3, fit_intercept=True, **o),
    "sparse, chosen": lambda **o: tacitly.LowRankSparse(2, "auto", rounds=2, **o),
    "sparse, equations": lambda **o: tacitly.LowRankSparse(2, 1, route="equations", rounds=2, **o),
    "sparse, central": lambda **o: tacitly.LowRankSparse(1, 1, shared_weight=True, rounds=3, **o),
    "sparse, as printed": lambda **o: tacitly.LowRankSparse(
        2, 1, mode="paper", clips=(5, 5, 5, 2, 8), start="moments", rounds=2, **o
    ),
    "margin, cover": lambda **o: tacitly.MarginClassifier(1, mode="cover", dimension=2, **o),
    "margin, search": lambda **o: tacitly.MarginClassifier(
        2, mode="search", dimension=4, choices=3, candidates=40, heads="second half", **o
    ),
    "margin, gradient": lambda **o: tacitly.MarginClassifier(
        2, mode="gradient", dimension=4, fit_intercept=True, **{"delta": 1e-6} | o
    ),
    "trace of rows": lambda **o: tacitly.TraceRegression(1, shape=(2, 3), steps=3, random_state=0, **o),
    "trace of rows, powers": lambda **o: tacitly.TraceRegression(1, shape=(2, 3), start="power", random_state=0, **o),
    "trace of users": lambda **o: tacitly.TraceRegression(1, shape=(2, 3), unit="user", steps=3, random_state=0, **o),
    "trace of users, rank one": lambda **o: tacitly.TraceRegression(
        1, shape=(3, 3), design="rank-one", unit="user", steps=2, random_state=0, **o
    ),
    "trace of rows, tasks": lambda **o: tacitly.TraceRegression(
        1, shape=(3, 5), design="tasks", steps=2, random_state=0, **o
    ),
    "trace of rows, off centre": lambda **o: tacitly.TraceRegression(1, shape=(2, 3), steps=3, random_state=0, **o),
    "trace of rows, tasks, off centre": lambda **o: tacitly.TraceRegression(
        1, shape=(3, 5), design="tasks", steps=2, random_state=0, **o
    ),
    "trace of rows, as printed": lambda **o: tacitly.TraceRegression(
        1, shape=(2, 3), mode="paper", sensitivities=(1.0, 1.0, 1.0), steps=1, random_state=0, **o
    ),
    "gram": lambda **o: tacitly.FedPower(2, route="gram", center=True, **o),
    "gram of rows": lambda **o: tacitly.FedPower(2, unit="row", route="gram", **o),
    "power": lambda **o: tacitly.FedPower(2, route="power", rounds=3, random_state=0, **o),
    "power, in turns": lambda **o: tacitly.FedPower(2, route="power", rounds=2, participants=40, random_state=0, **o),
    "device": lambda **o: tacitly.FedPower(2, route="device", local_steps=2, rounds=3, random_state=0, **o),
    "local noise": lambda **o: tacitly.FedPower(
        2, unit="row", route="local-noise", trust="local", local_steps=2, rounds=1, random_state=0, **o
    ),
}
CODED = {"logistic": 2, "hinge": 2, "three classes": 3, "poisson": 3} | {
    name: 2 for name in EVERY if name.startswith("margin")
}
"""Algorithms for classes or counts, and the number of classes."""

ROUGH = {"trace of rows, as printed": 1e-5}
"""Tolerances other than 1e-10: unprotected sums have a clip of 2^30 and are rounded to its grid."""

FEW = ("local noise",)
"""Algorithms that query each user separately: one message per user and step."""


def users(n: int, seed: int = 0, name: str = "") -> tacitly.Cohort:
    """Return ragged users with a shared subspace of two directions; targets suit the algorithm ``name``."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(6, 16, size=n)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X = rng.normal(size=(offsets[-1], 6)) * [3, 2, 1, 1, 1, 1]
    weights = rng.normal(size=(n, 2)) @ np.linalg.qr(rng.normal(size=(6, 2)))[0].T
    y = np.einsum("ij,ij->i", X, np.repeat(weights, counts, axis=0)) + 0.1 * rng.normal(size=offsets[-1])
    if name in CODED:
        y = np.minimum(np.digitize(y, [0.0, 1.5]), CODED[name] - 1)
    if "off centre" in name:
        X, y = X + 5.0, y + 5.0
    if "tasks" in name:
        X[:, 0] = rng.integers(0, 3, size=len(X))
    return tacitly.Cohort.from_offsets(X, y, offsets)


def fit(name: str, source: Any, engine: Engine | None = None, **options: Any) -> PrivateModel:
    """Fit without noise, unless ``options`` set another ε."""
    model = EVERY[name](**{"epsilon": math.inf, "engine": engine} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        model.fit(source)  # type: ignore[attr-defined]
    return model


def distance(one: PrivateModel, other: PrivateModel) -> float:
    """Return the largest difference between two billboards, and between their heads if they have any."""
    first, second = one.public_arrays() | one.private_arrays(), other.public_arrays() | other.private_arrays()
    shared = [name for name in first if name in second]
    assert {"basis", "components", "left"} & set(shared)
    return max(float(np.nanmax(np.abs(first[name] - second[name]), initial=0.0)) for name in shared)


def promised(model: PrivateModel) -> list[Any]:
    """Return a model's releases as recorded in the ledger, except for clips derived from noisy releases."""
    rows = model.certificate_.releases
    return [(row.name, *_cost(row.event), row.noise, row.coordinates) for row in rows]


def _cost(event: Any) -> tuple[Any, ...]:
    if not hasattr(event, "sigma"):
        return (event,)
    # The ratio determines the cost of a release; the clip may depend on earlier releases.
    return round(event.sigma / event.sensitivity.zero_out, 9), event.sensitivity.unit, event.sampling_rate
