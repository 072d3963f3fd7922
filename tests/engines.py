"""Every algorithm there is, on small users, for whichever engine."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import tacit
from tacit.estimators.base import PrivateModel
from tacit.federation.base import Engine

EVERY: dict[str, Callable[..., PrivateModel]] = {
    "fedrep": lambda **o: tacit.PrivateFedRep(rank=2, rounds=4, **o),
    "fedrep, intercepts": lambda **o: tacit.PrivateFedRep(rank=2, rounds=3, fit_intercept=True, **o),
    "fedrep, as printed": lambda **o: tacit.PrivateFedRep(rank=2, mode="paper", **o),
    "altmin": lambda **o: tacit.PrivateAltMin(rank=2, **o),
    "gram": lambda **o: tacit.FedPower(2, route="gram", center=True, **o),
    "gram of rows": lambda **o: tacit.FedPower(2, unit="row", route="gram", **o),
    "power": lambda **o: tacit.FedPower(2, route="power", rounds=3, random_state=0, **o),
    "power, in turns": lambda **o: tacit.FedPower(2, route="power", rounds=2, participants=40, random_state=0, **o),
    "device": lambda **o: tacit.FedPower(2, route="device", local_steps=2, rounds=3, random_state=0, **o),
    "local noise": lambda **o: tacit.FedPower(
        2, unit="row", route="local-noise", trust="local", local_steps=2, rounds=1, random_state=0, **o
    ),
}
FEW = ("local noise",)
"""Algorithms that ask every user alone: a message a user and step."""


def users(n: int, seed: int = 0) -> tacit.Cohort:
    """Ragged users with a shared subspace of two directions."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(6, 16, size=n)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X = rng.normal(size=(offsets[-1], 6)) * [3, 2, 1, 1, 1, 1]
    weights = rng.normal(size=(n, 2)) @ np.linalg.qr(rng.normal(size=(6, 2)))[0].T
    y = np.einsum("ij,ij->i", X, np.repeat(weights, counts, axis=0)) + 0.1 * rng.normal(size=offsets[-1])
    return tacit.Cohort.from_offsets(X, y, offsets)


def fit(name: str, source: Any, engine: Engine | None = None, **options: Any) -> PrivateModel:
    """Fit without noise (or with the noise that ``options`` ask for)."""
    model = EVERY[name](**{"epsilon": math.inf, "engine": engine} | options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tacit.UncertifiedWarning)
        model.fit(source)  # type: ignore[attr-defined]
    return model


def distance(one: PrivateModel, other: PrivateModel) -> float:
    """Largest difference between two billboards, and between heads where there are any."""
    first, second = one.public_arrays() | one.private_arrays(), other.public_arrays() | other.private_arrays()
    shared = [name for name in first if name in second]
    assert {"basis", "components"} & set(shared)
    return max(float(np.nanmax(np.abs(first[name] - second[name]), initial=0.0)) for name in shared)


def costs(model: PrivateModel) -> list[Any]:
    """What the ledger says of a model's releases."""
    return [(row.name, row.event, row.noise, row.grid, row.coordinates) for row in model.certificate_.releases]
