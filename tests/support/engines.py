"""Every method's small configurations, on small users, for any engine."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

import tacitly
from tacitly.federation.engine import Engine
from tacitly.methods import REGISTRY
from tacitly.methods.base import PrivateModel
from tacitly.methods.registry import Method, Trial

EVERY: dict[str, tuple[Method, Trial]] = {
    trial.name: (method, trial) for method in REGISTRY.values() for trial in method.trials
}
"""Configurations by name, as the methods describe them."""

ROUGH = {name: trial.tolerance for name, (_, trial) in EVERY.items()}
"""Largest difference allowed between models of two engines."""

FEW = tuple(name for name, (_, trial) in EVERY.items() if trial.one_by_one)
"""Configurations that query each user separately: one message per user and step."""

REFUSED = {name: trial.refused for name, (_, trial) in EVERY.items() if trial.refused}
"""Why a configuration is refused where nodes add the noise."""


def users(n: int, seed: int = 0, name: str = "") -> tacitly.Cohort:
    """Return ragged users with a shared subspace of two directions; rows and targets suit ``name``."""
    trial = EVERY[name][1] if name else Trial(name="", parameters={})
    rng = np.random.default_rng(seed)
    counts = rng.integers(6, 16, size=n)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X = rng.normal(size=(offsets[-1], 6)) * [3, 2, 1, 1, 1, 1]
    weights = rng.normal(size=(n, 2)) @ np.linalg.qr(rng.normal(size=(6, 2)))[0].T
    y = np.einsum("ij,ij->i", X, np.repeat(weights, counts, axis=0)) + 0.1 * rng.normal(size=offsets[-1])
    if trial.noisy:
        y = y + 3.0 * rng.normal(size=len(y))
    if trial.labels:
        y = np.minimum(np.digitize(y, [0.0, 1.5]), trial.labels - 1)
    if trial.shifted:
        X, y = X + 5.0, y + 5.0
    if trial.tasks:
        X[:, 0] = rng.integers(0, 3, size=len(X))
    return tacitly.Cohort.from_offsets(X, y, offsets)


def fit(name: str, source: Any, engine: Engine | None = None, **options: Any) -> PrivateModel:
    """Fit without noise, unless ``options`` set another ε."""
    method, trial = EVERY[name]
    model: PrivateModel = method.load()(**{"epsilon": math.inf, "engine": engine, **trial.parameters} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacitly.UncertifiedWarning)
        model.fit(source)  # type: ignore[attr-defined]
    return model


def distance(one: PrivateModel, other: PrivateModel) -> float:
    """Largest difference between two billboards, and between heads where there are any."""
    first, second = one.public_arrays() | one.private_arrays(), other.public_arrays() | other.private_arrays()
    shared = [name for name in first if name in second]
    assert set(one.public_arrays()) <= set(shared)
    return max(float(np.nanmax(np.abs(first[name] - second[name]), initial=0.0)) for name in shared)


def promised(model: PrivateModel) -> list[Any]:
    """Return a model's releases as recorded in the ledger, except for clips derived from noisy releases."""
    rows = model.certificate_.releases
    return [(row.name, *_cost(row.event), row.noise, row.coordinates) for row in rows]


def _cost(event: Any) -> tuple[Any, ...]:
    if not hasattr(event, "sigma"):
        return (event,)
    # One ratio is what a release costs; the clip may follow what was released before.
    return round(event.sigma / event.sensitivity.zero_out, 9), event.sensitivity.unit, event.sampling_rate
