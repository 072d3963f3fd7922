"""Compile before the coordinator waits: a run like the real one, on synthetic rows, with this site as the only node.

Otherwise the first question that needs a compiler would spend a round's deadline on it, at every site at once. The
rehearsal takes the real path: saved rows, questions as bytes, the node's own choice of plain or compiled form.
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
    """Let a node like this one answer everything that such a run asks; return False if nothing needs compiling."""
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
    # One column lies in memory in another way than several.
    rank = 2 if learns.get("several") is True and cohort.n_features > 1 else 1
    small = {**method.small(cohort.n_features, rank, words), **words}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nobody's data are used, so an uncertified run is no problem
        synthetic.save(Path(folder) / "cohort")
        here = Node("here", Cohort.open(Path(folder) / "cohort"), Path(folder), threads=1)
        card = Card(name="here", key="", mask_key="", users=count, features=names, target="y", rows=len(X))
        patience = Patience(deadline=math.inf, gather=0.0, poll=0.0)
        population = _Rehearsal(transport=_Here(here), roster={0: card}, patience=patience)
        # Without noise there are directions to whiten along, with it none: the two compile different kernels.
        for epsilon in (math.inf, 1.0):
            method.load()(**small, engine=population, epsilon=epsilon).fit()
    return True


def _believed(method: Method, learns: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an invitation may set: parameters that decide what is compiled, words and switches, no sizes."""
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
    """Sends questions without trying them out first: the coordinator does that, in forms that no small node needs."""

    def federation(self, run: Run, *, trust: str = "central", threads: int | None = None, **options: Any) -> Any:
        return _Unrehearsed(self, run, **options)


class _Unrehearsed(FlowerFederation):
    def _rehearse(self, query: Query, bound: float) -> None:
        pass
