"""Compile before the coordinator waits: simulate the run on synthetic rows, with this site as the only node.

Otherwise the first query that needs a compiler would spend a round's deadline on it, at every site simultaneously. The
rehearsal uses the code of a real run: saved rows, queries as bytes, and the node's own choice of plain or compiled
code.
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
from tacitly.federation.flower.card import Card
from tacitly.federation.flower.coordinator import FlowerFederation
from tacitly.federation.flower.node import FEW, Node
from tacitly.federation.flower.population import FlowerPopulation, Patience
from tacitly.methods import REGISTRY
from tacitly.methods.registry import Method
from tacitly.privacy.ledger import Run

_ROWS, _FEWEST = 24, 8


def warm_up(node: Node, learns: Mapping[str, Any]) -> bool:
    """Let a node like this one answer all queries of such a run; return False if nothing needs compiling."""
    cohort, plain = node.cohort, node.plain
    method = REGISTRY.offered("serve").get(str(learns.get("method")))
    if method is None:
        raise ValueError(f"unknown method: {learns.get('method')!r}.")
    words = _believed(method, learns)
    if plain and not method.plain_compiles(words):
        return False
    count, rng = (_FEWEST if plain else FEW + 1), np.random.default_rng(0)
    X = rng.normal(size=(count * _ROWS, cohort.n_features)).astype(cohort.dtype)
    y = rng.integers(0, 2, size=len(X)).astype(cohort.dtype)
    synthetic = Cohort.from_offsets(X, y, np.arange(0, len(X) + 1, _ROWS))
    names = synthetic.feature_names
    # One column has another memory layout than several columns.
    rank = 2 if learns.get("several") is True and cohort.n_features > 1 else 1
    small = {**method.small(cohort.n_features, rank, words), **words}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the data are synthetic, so an uncertified run is no problem
        synthetic.save(Path(folder) / "cohort")
        here = Node("here", Cohort.open(Path(folder) / "cohort"), Path(folder), threads=1)
        card = Card(name="here", key="", mask_key="", users=count, features=names, target="y", rows=len(X))
        patience = Patience(deadline=math.inf, gather=0.0, poll=0.0)
        population = _Rehearsal(transport=_Here(here), roster={0: card}, patience=patience)
        # Without noise there are directions for whitening, with it there are none: different kernels are compiled.
        for epsilon in (math.inf, 1.0):
            method.load()(**small, engine=population, epsilon=epsilon).fit()
    return True


def _believed(method: Method, learns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that an invitation may set: words and switches that decide what is compiled, no sizes."""
    names = [option.name for option in method.options if option.compiles]
    return {name: learns[name] for name in names if isinstance(learns.get(name), str | bool)}


class _Here:
    """A transport to one node in this process."""

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
    """Sends queries without testing them first: the coordinator tests them, in forms that small nodes do not use."""

    def federation(self, run: Run, *, trust: str = "central", threads: int | None = None, **options: Any) -> Any:
        return _Unrehearsed(self, run, **options)


class _Unrehearsed(FlowerFederation):
    def _rehearse(self, query: Query, bound: float) -> None:
        pass
