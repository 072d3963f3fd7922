"""The half that adds up: asks registered nodes, believes what :mod:`~tacitly.federation.flower.inbox` lets through.

Denominators, noise and schedule come from the roster, so a node that does not answer in time costs signal and nothing
else. A round below its quorum is given up before any noise is drawn; its debit stands, and the same run, started again,
asks the same question again.

Who must be trusted with what (``trust``):

* ``central``: nodes send sums of clipped contributions, the coordinator adds noise.
* ``node``: every node puts the full noise on its own sum before it leaves. The coordinator may be curious.
* ``secure``: every node puts a share of the noise on its sum and hides it behind masks that only cancel in the sum of a
  group (:mod:`tacitly.federation.flower.masks`). The coordinator may be curious, and accuracy is close to ``central``.
"""

from __future__ import annotations

import copy
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows
from tacitly.data.validation import DataError
from tacitly.federation import wire
from tacitly.federation.base import Chosen, Federation, Query
from tacitly.federation.flower.inbox import Inbox
from tacitly.federation.flower.messages import Ask
from tacitly.federation.flower.node import Card, least_group, majority
from tacitly.federation.projected import Projected, losses_in
from tacitly.heads.base import HeadWork
from tacitly.privacy.guarantee import GaussianEvent, SelectionEvent, Unit
from tacitly.privacy.ledger import Run
from tacitly.privacy.noise import Mode

TRUST = {
    "central": (
        "central: nodes keep rows and heads and send sums of their users' clipped contributions, or of their losses "
        "where something is chosen; the coordinator sees those sums without noise and adds the noise; everybody else "
        "sees the billboard only."
    ),
    "node": (
        "node: every node keeps rows and heads and puts the whole noise on its sum before it leaves; the coordinator "
        "and everybody else see noisy sums only."
    ),
    "secure": (
        "secure: every node keeps rows and heads, puts a share of the noise on its sum and masks it; the coordinator "
        "sees the noisy sum of a group and no summand. It holds against the coordinator and up to {colluding} of a "
        "group's nodes together (a node knows its own share of the noise), if {honest} others follow the protocol and "
        "all sites compared the fingerprint of their keys."
    ),
}


class QuorumMissed(RuntimeError):
    """Too few nodes answered; nothing was drawn."""


class Transport(Protocol):
    """Carries bytes to nodes and back, and does nothing else."""

    def begin(self) -> None:
        """Begin a round: replies to what was sent before are not wanted any more."""

    def online(self) -> Iterable[int]:
        """Ids of nodes that can be reached now."""

    def send(self, messages: Mapping[int, bytes]) -> None:
        """Send each node its message."""

    def receive(self) -> Iterable[tuple[Any, Any]]:
        """Return what arrived since the last call: who sent it, and what."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait, in seconds, and for whom: ``quorum`` is the share of users that must be heard."""

    deadline: float = 60.0
    gather: float = 120.0
    again: float = 10.0
    poll: float = 0.05
    quorum: float = 0.5


@dataclass(kw_only=True)
class FlowerPopulation:
    """Registered nodes, by the id that is bound to each node's key; an estimator's engine and population in one.

    ``how`` is who adds the noise: "central", "node" or "secure". ``groups`` remembers which nodes were asked for a
    masked sum: nodes answer for one group a release, so asking again must be asking the same. ``tacitly serve`` makes
    one over Flower's transport.
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
            raise ValueError("no node is registered. Expected at least one.")
        cards = list(self.roster.values())
        if any((card.features, card.target) != (cards[0].features, cards[0].target) for card in cards):
            raise DataError("nodes have other columns, or another order of them. Expected the same at every node.")
        if len({card.name for card in cards}) < len(cards) or len({card.key for card in cards}) < len(cards):
            raise DataError("two nodes have one name or one key. Expected one of each a node.")

    def population(self, source: Any) -> FlowerPopulation:
        """Return itself: the rows are where they are."""
        if source is not None:
            raise ValueError("rows stay with their nodes. Call fit() without rows.")
        return self

    @property
    def n_users(self) -> int:
        """Users of all registered nodes."""
        return sum(card.users for card in self.roster.values())

    @property
    def n_features(self) -> int:
        """Columns of everybody's rows."""
        return len(self.feature_names)

    @property
    def n_rows(self) -> int:
        """Rows of all nodes, where they made that number public."""
        counts = [card.rows for card in self.roster.values()]
        if any(count is None for count in counts):
            raise ValueError("nodes did not say how many rows they have (public only where the unit is the row).")
        return sum(count for count in counts if count is not None)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return next(iter(self.roster.values())).features

    @property
    def target_name(self) -> str | None:
        """Name of the target."""
        return next(iter(self.roster.values())).target

    @property
    def trust(self) -> str:
        """Who sees what."""
        return TRUST[self.how].format(honest=majority(len(self.roster)), colluding=self.colluding)

    def federation(self, run: Run, *, trust: str = "central", threads: int | None = None, **options: Any) -> Any:
        """Put the nodes behind the door."""
        if trust != "central":
            raise ValueError(f"with nodes, trust is the coordinator's to say ({self.how!r}). Found trust={trust!r}.")
        return FlowerFederation(self, run, **options)


class FlowerFederation(Federation):
    """Nodes behind the door. Made by :meth:`FlowerPopulation.federation`."""

    same_again = True  # a node's own ledger keeps what it sent

    def __init__(self, population: FlowerPopulation, run: Run, **options: Any) -> None:
        super().__init__(run, trust="central" if population.how == "central" else "local", **options)
        if population.how != "central" and self._noise_seed is not None:
            raise ValueError("nodes draw their noise from the operating system: noise_seed is for central trust.")
        self._population = population
        self._event: GaussianEvent | None = None
        self._directions: Array | None = None
        self._turn = (0, 0)
        self._gathered = False
        self.verdicts: Counter[str] = Counter()

    @property
    def n_users(self) -> int:
        """Length of the roster: public."""
        return self._population.n_users

    @property
    def n_features(self) -> int:
        """Columns of everybody's rows: public."""
        return self._population.n_features if self._directions is None else len(self._directions)

    @property
    def n_rows(self) -> int:
        """How many rows there are. Public only where the unit is the row; used for nothing else."""
        return self._population.n_rows

    def projected(self, directions: Array) -> FlowerFederation:
        """Return the same nodes behind the same doors, with rows directions·x, which the nodes keep."""
        other = copy.copy(self)
        other._directions = directions
        return other

    def sum_sigma(self, event: GaussianEvent, messages: int | None = None) -> float:
        """Noise that the sum carries when every node answers."""
        nodes = len(self._population.roster)
        shares = {"central": 1.0, "node": float(nodes), "secure": nodes / majority(nodes)}
        return event.sigma * math.sqrt(shares[self._population.how])

    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> None:
        """Let nodes fit their users' heads and keep them. Nothing comes back but that it was done."""
        if not isinstance(work, HeadWork):
            raise TypeError(f"work for users elsewhere must be a HeadWork, which is data. Found {type(work).__name__}.")
        ask = self._ask("heads", "heads", wire.encode(work))
        self._exchange(ask, {node: 1 for node in self._population.roster}, 1, quorum=0.0)

    def release_each(self, *asked: Any) -> Array:
        """Ask every user alone; only where the coordinator adds the noise."""
        self._check_central("release_each")
        return super().release_each(*asked)

    def release_in_turns(self, *asked: Any) -> Array:
        """Ask the users in turns; only where the coordinator adds the noise."""
        self._check_central("release_in_turns")
        return super().release_in_turns(*asked)

    def _check_central(self, what: str) -> None:
        # A node's ledger would charge it for every turn, and its users answer in one of them only.
        if self._population.how != "central":
            raise ValueError(
                f"{what} asks some users at a time, which needs trust 'central'. Found {self._population.how!r}."
            )

    def select(self, query: Query, event: SelectionEvent, name: str) -> int:
        """Choose; only where the coordinator adds up what nodes send."""
        self._event = None
        return super().select(query, event, name)

    def _debit_and_draw(self, queries: Sequence[Query], event: GaussianEvent, *rest: Any, **more: Any) -> Array:
        self._event = event
        return super()._debit_and_draw(queries, event, *rest, **more)

    def _put_noise(
        self,
        total: npt.NDArray[np.int64],
        sigma: float,
        grid: float,
        mode: Mode,
        generator: np.random.Generator | None,
    ) -> Array:
        if self._population.how == "central":
            return super()._put_noise(total, sigma, grid, mode, generator)
        return np.asarray(total * grid, dtype=np.float64)

    def _exact_sum(
        self, query: Query, bound: float, grid: float, chosen: Chosen | None = None
    ) -> npt.NDArray[np.int64]:
        """Ask every node; where trust is not central, what comes back carries the nodes' noise."""
        if not query.clipped:
            raise ValueError(f"{type(query).__name__} is not clipped: nodes do not answer it. Use it in one process.")
        release, turn = self._turn
        made = self._made.releases
        self._turn = (made, turn + 1 if release == made else 0)
        losses = losses_in(query)
        if losses is not None:  # whole steps, which nothing clips: what a user can add is a loss of one
            bound, grid = float(losses.steps), 1.0
        if self._directions is not None:
            query = Projected(query, self._directions)
        roster = self._population.roster
        ask = self._ask("sum", f"{self._turn[0]}.{self._turn[1]}", wire.encode(query))
        ask = replace(ask, bound=bound, grid=grid)
        event = self._event
        if self._population.how != "central" and event is not None and event.private:
            mode = self._mode(event, query.coordinates)
            ask = replace(ask, sigma=event.sigma, noise=mode, clip_factor=event.sensitivity.replace_one / bound)
        pieces: dict[int, Chosen] = {}
        if chosen is not None:
            edges = np.cumsum([card.users for card in roster.values()])[:-1]
            pieces = dict(zip(roster, np.split(chosen, edges), strict=True))
        # Everybody is asked, also who has nobody to speak for: who is asked can be seen, and coins must not be.
        units = {node: self._units(card, query, pieces.get(node)) for node, card in roster.items()}
        quorum, counted = self._population.patience.quorum, losses is not None
        return self._exchange(ask, units, query.coordinates, quorum=quorum, pieces=pieces, counted=counted)

    def _units(self, card: Card, query: Query, piece: Chosen | None) -> int:
        if query.unit is not Unit.USER:
            return int(card.rows or 0)
        return card.users if piece is None else int(piece.sum())

    def _ask(self, kind: str, step: str, thing: bytes) -> Ask:
        return Ask(kind=kind, run=self.ledger_run.name, step=step, token="", thing=thing)

    def _exchange(
        self,
        ask: Ask,
        units: Mapping[int, int],
        coordinates: int,
        *,
        quorum: float,
        pieces: Mapping[int, Chosen] | None = None,
        counted: bool = False,
    ) -> npt.NDArray[np.int64]:
        """One round: ask, ask again whoever is silent, until all have answered or the deadline is over."""
        population, patience = self._population, self._population.patience
        self._gather(list(units))
        secure = population.how == "secure" and ask.sigma > 0
        if secure:
            ask, units = self._group(ask, units)
        # To each its own: no node can answer for another, whatever the transport believes of who sent something.
        tokens = {node: secrets.token_hex(16) for node in units}
        own = {node: replace(ask, token=tokens[node], chosen=(pieces or {}).get(node)).to_bytes() for node in units}
        spread = 0.0 if ask.kind == "heads" else 40.0 * ask.sigma / ask.grid
        reach = ask.bound / ask.grid
        inbox = Inbox(tokens, units, coordinates, reach, spread=spread, masked=secure, counted=counted)
        population.transport.begin()
        started = time.monotonic()
        last_sent: dict[int, float] = {}
        while inbox.waiting:
            now = time.monotonic()
            online = set(population.transport.online())
            silent = [node for node in inbox.waiting & online if now - last_sent.get(node, -math.inf) > patience.again]
            if silent:
                population.transport.send({node: own[node] for node in silent})
                last_sent |= dict.fromkeys(silent, now)
            for sender, data in population.transport.receive():
                inbox.take(sender, data)
            if now - started > patience.deadline:
                break
            if inbox.waiting:
                time.sleep(patience.poll)
        self.verdicts += inbox.verdicts
        self._tell(ask, inbox, units, time.monotonic() - started)
        heard = sum(population.roster[node].users for node in inbox.answered)
        asked = sum(population.roster[node].users for node in units)
        if secure and len(inbox.answered) < len(units):
            missing = len(units) - len(inbox.answered)
            raise QuorumMissed(
                f"{missing} of {len(units)} nodes of the group did not answer, so the masks do not cancel. "
                "Nothing can be read. Bring them back and start the same run again, or begin another run."
            )
        if heard < quorum * asked:
            raise QuorumMissed(
                f"nodes with {heard} of {asked} users answered within {patience.deadline:g} s; the quorum is "
                f"{quorum:.0%}. Nothing was drawn: {self.how_to_go_on}."
            )
        return inbox.total

    def _gather(self, nodes: Sequence[int]) -> None:
        """Before the first round wait until every registered node is there, for so long."""
        end = time.monotonic() + self._population.patience.gather
        while not self._gathered and time.monotonic() < end:
            if set(nodes) <= set(self._population.transport.online()):
                break
            time.sleep(self._population.patience.poll)
        self._gathered = True

    def _group(self, ask: Ask, units: Mapping[int, int]) -> tuple[Ask, dict[int, int]]:
        """Nodes that are there now, if they are enough, or that were when this was asked before; masks cancel there."""
        population, step = self._population, f"{ask.run}/{ask.step}"
        before = population.groups.get(step)
        here = set(units) & set(population.transport.online())
        present = sorted(
            node for node in units if (node in here if before is None else population.roster[node].name in before)
        )
        needed = least_group(len(population.roster), population.colluding)
        if len(present) < needed:
            raise QuorumMissed(
                f"{len(present)} nodes are there; a masked sum needs {needed}, or its noise would be too little. "
                "Nothing was asked: start the same run again to go on."
            )
        names = tuple(population.roster[node].name for node in present)
        population.groups[step] = list(names)  # before anybody is asked
        return replace(ask, group=names, honest=majority(len(population.roster))), {
            node: units[node] for node in present
        }

    def _tell(self, ask: Ask, inbox: Inbox, units: Mapping[int, int], seconds: float) -> None:
        if self._population.on_round is None:
            return
        told: dict[str, Any] = {"step": ask.step, "asked": len(units)}
        # Where users are sampled, whatever could go with who was is not told.
        if self._event is None or self._event.sampling_rate == 1.0:
            told["answered"] = len(inbox.answered)
            told["silent"] = sorted(self._population.roster[node].name for node in set(units) - inbox.answered)
            told["verdicts"] = dict(inbox.verdicts)
            told["seconds"] = round(seconds, 3)
        self._population.on_round(told)
