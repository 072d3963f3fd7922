"""Compile before the coordinator waits: a run like the real one, on made-up rows, with this site as its only node.

A question that needs a compiler would otherwise spend a round's deadline on it, at every site at once. Everything goes
the way it will go: saved rows, questions as bytes, the node's own choice between plain and compiled forms.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacitly.data.cohort import Cohort
from tacitly.federation.base import Query
from tacitly.federation.flower.coordinator import FlowerFederation, FlowerPopulation, Patience
from tacitly.federation.flower.node import FEW, Card, Node
from tacitly.privacy.ledger import Run

TOLD = ("loss", "sparsity", "design", "unit", "route", "start", "mode", "shared_weight", "fit_intercept")
"""Parameters that decide what is compiled. Of an invitation only words and yes or no are believed, no sizes."""

_ROWS, _FEWEST = 24, 8


def warm_up(node: Node, told: Mapping[str, Any]) -> bool:
    """Let a node like this one answer everything that a run like this asks; False where there is nothing to compile."""
    cohort, plain = node.cohort, node.plain
    method = told.get("method")
    if plain and (method in ("altmin", "svd") or (method == "fedrep" and told.get("loss", "squared") == "squared")):
        return False
    count, rng = (_FEWEST if plain else FEW + 1), np.random.default_rng(0)
    X = rng.normal(size=(count * _ROWS, cohort.n_features)).astype(cohort.dtype)
    y = rng.integers(0, 2, size=len(X)).astype(cohort.dtype)
    made = Cohort.from_offsets(X, y, np.arange(0, len(X) + 1, _ROWS))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it protects nobody: there is nobody
        made.save(Path(folder) / "cohort")
        own = Node("here", Cohort.open(Path(folder) / "cohort"), Path(folder), threads=1)
        card = Card(name="here", key="", mask_key="", users=count, features=made.feature_names, target="y", rows=len(X))
        patience = Patience(deadline=math.inf, gather=0.0, poll=0.0)
        population = _Rehearsal(transport=_Here(own), roster={0: card}, patience=patience)
        # Without noise features have directions to be whitened along, with it none: both are compiled apart.
        for epsilon in (math.inf, 1.0):
            _small(str(method), told, cohort.n_features, engine=population, epsilon=epsilon).fit()
    return True


def _small(method: str, told: Mapping[str, Any], d: int, **rest: Any) -> Any:
    """Return an estimator that asks what the run will ask, as little of it as there can be."""
    from tacitly import methods as estimators

    words = {name: told[name] for name in TOLD if isinstance(told.get(name), str | bool)}
    shared = {**words, **rest}
    rank = 2 if told.get("several") is True and d > 1 else 1  # one column lies in memory otherwise than several
    if method == "fedrep":
        return estimators.PrivateFedRep(rank, rounds=1, **shared)
    if method == "altmin":
        return estimators.PrivateAltMin(rank, **shared)
    if method == "low-rank-sparse":
        return estimators.LowRankSparse(rank, rounds=1, **{"sparsity": 1, **shared})
    if method == "margin":
        return estimators.MarginClassifier(rank, dimension=2 * rank, candidates=4, choices=1, radius=0.5, **shared)
    if method == "trace":
        shape = {"entries": (2, 2), "tasks": (2, d - 1), "rank-one": (1, d - 1)}.get(str(told.get("design")), (1, d))
        return estimators.TraceRegression(1, shape=shape, steps=1, random_state=0, **shared)
    if method == "svd":
        return estimators.FedPower(rank, **shared)
    raise ValueError(f"an unknown method: {method!r}.")


class _Here:
    """Carries bytes to a node in this process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._arrived: list[tuple[int, bytes]] = []

    def begin(self) -> None:
        self._arrived.clear()

    def online(self) -> Iterable[int]:
        return [0]

    def send(self, messages: Mapping[int, bytes]) -> None:
        self._arrived += [(number, self._node.answer(data)) for number, data in messages.items()]

    def receive(self) -> Iterable[tuple[Any, Any]]:
        arrived, self._arrived = self._arrived, []
        return arrived


class _Rehearsal(FlowerPopulation):
    """Asks without trying questions out first: the coordinator does that, in forms that a small node never needs."""

    def federation(self, run: Run, *, trust: str = "central", threads: int | None = None, **options: Any) -> Any:
        return _Unrehearsed(self, run, **options)


class _Unrehearsed(FlowerFederation):
    def _rehearse(self, query: Query) -> None:
        pass
