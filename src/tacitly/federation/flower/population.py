"""The registered nodes as a population: their identity, public facts about them, and deadlines.

Trust models (``how``), and what the coordinator sees in each:

* ``central``: nodes send exact sums of clipped contributions, and the coordinator adds the noise.
* ``node``: every node adds the full noise to its sum before sending it. The coordinator may be curious.
* ``secure``: every node adds a share of the noise to its sum and hides it behind a mask, and only the sum of a group's
  masks can be removed (:mod:`tacitly.federation.flower.masks`). The coordinator may be curious; accuracy is close to
  ``central``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tacitly.data.validation import DataError
from tacitly.federation.flower.card import Card
from tacitly.federation.flower.coordinator import FlowerFederation
from tacitly.privacy.ledger import Run

TRUST = {
    "central": (
        "central: nodes keep rows and heads and send sums of their users' clipped contributions, or of their losses "
        "for a choice; the coordinator sees those sums without noise and adds the noise; everybody else sees the "
        "billboard only."
    ),
    "node": (
        "node: every node keeps rows and heads and adds the full noise to its sum before sending it; the coordinator "
        "and everybody else see noisy sums only."
    ),
    "secure": (
        "secure: every node keeps rows and heads, adds a share of the noise to its sum and masks it; the coordinator "
        "sees the noisy sum of a group and no summand. This holds against the coordinator together with up to "
        "{colluding} of the nodes (a node knows its own share of the noise), if all others follow the protocol and "
        "keep their ledgers, and all sites compared the fingerprints of their keys."
    ),
}


class Transport(Protocol):
    """Carries bytes to nodes and back, and does nothing else."""

    def begin(self) -> None:
        """Begin a round: replies to earlier messages are no longer wanted."""

    def online(self) -> Iterable[int]:
        """Ids of nodes that can be reached now."""

    def send(self, messages: Mapping[int, bytes]) -> None:
        """Send each node its message."""

    def receive(self) -> Iterable[tuple[Any, Any]]:
        """Return what arrived since the last call, as pairs of sender and content."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts of a round in seconds, and the quorum.

    ``deadline`` ends a round; ``gather`` limits the wait for all nodes before the first round; ``again`` is the
    interval after which a silent node is asked again; ``poll`` is the shortest interval between looks at the transport,
    which become rarer while nothing arrives; ``quorum`` is the fraction of users who must have answered.
    """

    deadline: float = 60.0
    gather: float = 120.0
    again: float = 10.0
    poll: float = 0.05
    quorum: float = 0.5


@dataclass(kw_only=True)
class FlowerPopulation:
    """The registered nodes, by the id that is bound to each node's key: engine and population in one.

    ``how`` is the trust model: "central", "node" or "secure". ``groups`` records the group of each masked sum: a node
    takes part in one group per release, so a release that is resumed must name the same one. ``tacitly serve``
    (:mod:`tacitly.deployment.serve`) builds one over Flower's transport.
    """

    transport: Transport
    roster: Mapping[int, Card]
    how: str = "central"
    patience: Patience = field(default_factory=Patience)
    colluding: int = 1
    groups: MutableMapping[str, list[str]] = field(default_factory=dict)
    on_round: Callable[[dict[str, Any]], None] | None = None
    users: None = None

    def __post_init__(self) -> None:
        if self.how not in TRUST:
            raise ValueError(f"trust must be one of {tuple(TRUST)}. Found {self.how!r}.")
        if not self.roster:
            raise ValueError("at least one node must be registered. Found none.")
        cards = list(self.roster.values())
        if any((card.features, card.target) != (cards[0].features, cards[0].target) for card in cards):
            raise DataError("every node must have the same columns in the same order. Found different ones.")
        if len({card.name for card in cards}) < len(cards) or len({card.key for card in cards}) < len(cards):
            raise DataError("every node must have its own name and key. Found two nodes that share one.")

    def population(self, source: Any) -> FlowerPopulation:
        """Return this population: rows stay with the nodes."""
        if source is not None:
            raise ValueError("rows stay with the nodes. Call fit() without rows.")
        return self

    @property
    def n_users(self) -> int:
        """Number of users of all registered nodes."""
        return sum(card.users for card in self.roster.values())

    @property
    def n_features(self) -> int:
        """Number of columns of every user's rows."""
        return len(self.feature_names)

    @property
    def n_rows(self) -> int:
        """Number of rows of all nodes, if they have published it."""
        counts = [card.rows for card in self.roster.values()]
        if any(count is None for count in counts):
            raise ValueError(
                "nodes have not published their numbers of rows, which a model with unit='row' needs. "
                "Prepare every site again with that number in its card."
            )
        return sum(count for count in counts if count is not None)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return next(iter(self.roster.values())).features

    @property
    def target_name(self) -> str | None:
        """Name of the target."""
        return next(iter(self.roster.values())).target

    def fingerprint(self, secret: bytes) -> None:
        """Return nothing: rows stay with the nodes, whose ledgers answer a repeated question with the same bytes."""

    @property
    def trust(self) -> str:
        """Who sees what."""
        return TRUST[self.how].format(colluding=self.colluding)

    def federation(self, run: Run, *, trust: str = "central", threads: int | None = None, **options: Any) -> Any:
        """Put the nodes behind the doors."""
        if trust != "central":
            raise ValueError(
                f"with nodes, the coordinator's settings decide trust ({self.how!r}): leave it out. "
                f"Found trust={trust!r}."
            )
        return FlowerFederation(self, run, **options)
