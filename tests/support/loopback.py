"""Flower nodes in this process: messages are encoded and checked as on the wire, without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tacitly
from tacitly.federation.flower.card import Card
from tacitly.federation.flower.masks import new_key
from tacitly.federation.flower.node import Node
from tacitly.federation.flower.population import FlowerPopulation, Patience

QUICK = Patience(deadline=2.0, gather=1.0, again=0.5, poll=0.005)


class Loopback:
    """A transport whose nodes answer at once. ``meddle`` may change, drop or add answers."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.meddle: Callable[[int, bytes], Iterable[tuple[Any, Any]]] = lambda node, data: [(node, data)]
        self.asked: list[tuple[int, bytes]] = []
        self._arrived: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        self._arrived.clear()

    def online(self) -> Iterable[int]:
        return list(self.nodes)

    def send(self, messages: Mapping[int, bytes]) -> None:
        for node, data in messages.items():
            self.asked.append((node, data))
            self._arrived += self.meddle(node, self.nodes[node].answer(data))

    def receive(self) -> Iterable[tuple[Any, Any]]:
        arrived, self._arrived = self._arrived, []
        return arrived


def loopback(
    cohort: tacitly.Cohort, folder: Path, nodes: int = 3, *, trust: str = "central", rows: bool = False, **options: Any
) -> FlowerPopulation:
    """Spread a cohort over nodes that keep their state under ``folder``."""
    edges = np.linspace(0, cohort.n_users, nodes + 1).astype(int)
    keys = [new_key() for _ in range(nodes)]
    publics = {f"node{i}": public for i, (_, public) in enumerate(keys)}
    made, roster = {}, {}
    for i in range(nodes):
        part = cohort.take(np.arange(edges[i], edges[i + 1]))
        name = f"node{i}"
        peers = {other: key for other, key in publics.items() if other != name}
        (folder / name).mkdir(exist_ok=True)
        made[10 + i] = Node(
            name, part, folder / name, trust=trust, mask_key=keys[i][0], peers=peers, threads=1, **options
        )
        roster[10 + i] = Card(
            name=name,
            key=f"key{i}",
            mask_key=publics[name].hex(),
            users=part.n_users,
            features=part.feature_names,
            target=part.target_name,
            rows=part.n_rows if rows else None,
        )
    return FlowerPopulation(transport=Loopback(made), roster=roster, how=trust, patience=QUICK)
