"""The coordinator: asks registered nodes and adds the answers that :mod:`~tacitly.federation.flower.inbox` accepts.

Denominators, noise and schedule depend on the roster only, so a node that does not answer in time reduces accuracy and
changes nothing else. A node that missed a deadline is asked again in every round, but until it answers, the coordinator
waits for it only if the quorum needs it. A masked sum contains the nodes that answered; a threshold of nodes can remove
the masks (:mod:`tacitly.federation.flower.groups`). A round below its quorum is abandoned before any noise is drawn.
Its debit stands, and the same run, when it is started again, sends the same query again.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tacitly.arrays import Array, Rows
from tacitly.federation import wire
from tacitly.federation.base import Chosen, Federation, Query
from tacitly.federation.flower.groups import TAG, least_group, majority, threshold
from tacitly.federation.flower.inbox import Inbox
from tacitly.federation.flower.messages import Ask
from tacitly.federation.projected import losses_in
from tacitly.heads.base import HeadWork
from tacitly.privacy.guarantee import GaussianEvent, SelectionEvent, Unit
from tacitly.privacy.ledger import Run
from tacitly.privacy.noise import Mode

if TYPE_CHECKING:
    from tacitly.federation.flower.card import Card
    from tacitly.federation.flower.population import FlowerPopulation


_SLOWEST_POLL = 4.0  # seconds between looks at the transport while nothing arrives
_SLOWER = 1.2  # how much longer each pause is than the one before: a sixth of the time that has passed
_GRACE = 0.5  # seconds that nodes which were silent have in any case


class QuorumMissed(RuntimeError):
    """Too few nodes answered; nothing was drawn."""


class FlowerFederation(Federation):
    """Nodes behind the doors. Created by :meth:`FlowerPopulation.federation`."""

    resends_same_messages = True  # a node's own ledger keeps what it sent

    def __init__(self, population: FlowerPopulation, run: Run, **options: Any) -> None:
        super().__init__(population, run, trust="central" if population.how == "central" else "local", **options)
        if population.how != "central" and self._noise_seed is not None:
            raise ValueError("nodes draw noise from the operating system: use noise_seed with trust 'central' only.")
        self._population = population
        self._event: GaussianEvent | None = None
        self._turn = (0, 0)  # number of the release, and of the question within it
        self._gathered = False
        self.silent: set[int] = set()
        """Nodes that missed the last deadline and have not answered since."""
        self.verdicts: Counter[str] = Counter()

    def sum_sigma(self, event: GaussianEvent, messages: int | None = None) -> float:
        """Noise standard deviation of the sum if every node answers."""
        nodes = len(self._population.roster)
        shares = {"central": 1.0, "node": float(nodes), "secure": nodes / majority(nodes)}
        return event.sigma * math.sqrt(shares[self._population.how])

    def users_map(self, work: Callable[[Rows, Rows, npt.NDArray[np.int64]], Array]) -> None:
        """Let nodes fit their users' heads and keep them. Only an acknowledgement comes back."""
        if not isinstance(work, HeadWork):
            raise TypeError(f"work for remote users must be a HeadWork, which is data. Found {type(work).__name__}.")
        ask = self._ask("heads", "heads", wire.encode(work))
        self._exchange(ask, {node: 1 for node in self._population.roster}, 1, quorum=0.0)

    def release_each(self, *asked: Any) -> Array:
        """Ask every user alone; requires that the coordinator adds the noise."""
        self._check_central("release_each")
        return super().release_each(*asked)

    def release_in_turns(self, *asked: Any) -> Array:
        """Ask the users in turns; requires that the coordinator adds the noise."""
        self._check_central("release_in_turns")
        return super().release_in_turns(*asked)

    def _check_central(self, what: str) -> None:
        # A node's ledger would charge it for every turn, although each of its users answers in only one.
        if self._population.how != "central":
            raise ValueError(
                f"{what} asks some users at a time, which needs trust 'central'. Found {self._population.how!r}."
            )

    def select(self, query: Query, event: SelectionEvent, name: str) -> int:
        """Choose a candidate; requires that the coordinator sees exact sums."""
        self._event = None
        return super().select(query, event, name)

    def _debit_and_draw(self, queries: Sequence[Query], event: GaussianEvent, *rest: Any, **more: Any) -> Array:
        self._event = event
        return super()._debit_and_draw(queries, event, *rest, **more)

    @property
    def _adds_noise(self) -> bool:
        return self._population.how == "central"

    def _collect(self, query: Query, bound: float, grid: float, chosen: Chosen | None = None) -> npt.NDArray[np.int64]:
        """Ask every node; unless trust is central, the sum that comes back contains the nodes' noise."""
        if not query.clipped:
            raise ValueError(f"{type(query).__name__} is not clipped: nodes do not answer it. Use a local federation.")
        release, turn = self._turn
        current = self._counter.releases
        self._turn = (current, turn + 1 if release == current else 0)
        losses = losses_in(query)
        if losses is not None:  # integer steps, not clipped: a user adds at most a loss of 1
            bound, grid = float(losses.steps), 1.0
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
        # Every node is asked, even with no sampled user: which nodes are asked is visible, the coins must not be.
        units = {node: self._units(card, query, pieces.get(node)) for node, card in roster.items()}
        quorum, counted = self._population.patience.quorum, losses is not None
        return self._exchange(ask, units, query.coordinates, quorum=quorum, pieces=pieces, counted=counted)

    def _mode(self, event: GaussianEvent, coordinates: int) -> Mode:
        mode = super()._mode(event, coordinates)
        # Shares of one noise add up to what is charged only if each of them is exact.
        return "exact" if mode == "float" and self._population.how == "secure" else mode

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
        """Ask all nodes, check that there are enough answers, and return their sum."""
        self._gather(list(units))
        if self._population.how == "secure" and ask.sigma > 0:
            return self._masked(ask, units, coordinates)
        asked = self._users(units)
        spread = 0.0 if ask.kind == "heads" else 40.0 * ask.sigma / ask.grid
        asks = {node: replace(ask, chosen=(pieces or {}).get(node)) for node in units}
        inbox = Inbox(_tokens(units), units, coordinates, ask.bound / ask.grid, spread=spread, counted=counted)
        self._round(asks, inbox, lambda: self._users(inbox.answered) >= max(quorum * asked, 1))
        heard = self._users(inbox.answered)
        if heard < quorum * asked:
            raise QuorumMissed(
                f"nodes with {heard} of {asked} users answered within {self._population.patience.deadline:g} s; the "
                f"quorum is {quorum:.0%}. Nothing was drawn: {self.recovery_hint}."
            )
        return inbox.total

    def _round(
        self, asks: Mapping[int, Ask], inbox: Inbox, enough: Callable[[], bool], *, any_will_do: bool = False
    ) -> None:
        """Run one round: ask, and ask silent nodes again, until all have answered or the deadline has passed."""
        started = time.monotonic()
        messages = {node: replace(ask, token=inbox.tokens[node]).to_bytes() for node, ask in asks.items()}
        self._ask_until(enough, messages, inbox, any_will_do)
        self.verdicts += inbox.verdicts
        if not any_will_do:
            self._report(next(iter(asks.values())), inbox, list(asks), time.monotonic() - started)

    def _masked(self, ask: Ask, units: Mapping[int, int], coordinates: int) -> npt.NDArray[np.int64]:
        """Collect masked answers, then votes for the group of those that arrived, then the sum of their masks."""
        from tacitly.federation.flower.masks import for_node, hidden_size, revealed, roster_digest

        population = self._population
        name_of = {node: population.roster[node].name for node in units}
        names, needed = tuple(sorted(name_of.values())), threshold(len(units), population.colluding)
        least = least_group(len(units), population.colluding)
        ask = replace(ask, group=names, honest=majority(len(units)))
        cards = (population.roster[node] for node in units)
        question = ask.question(roster_digest({c.name: bytes.fromhex(c.mask_key) for c in cards}, population.colluding))

        def answers(asks: Mapping[int, Ask], size: int, least: int, *, any_will_do: bool) -> dict[str, Any]:
            inbox = Inbox(_tokens(asks), dict.fromkeys(asks, 1), size, 0.0, masked=True)
            self._round(asks, inbox, lambda: len(inbox.answered) >= least, any_will_do=any_will_do)
            return {name_of[node]: found for node, found in inbox.answers.items()}

        hidden = answers(dict.fromkeys(units, ask), hidden_size(coordinates, len(units)), least, any_will_do=False)
        group = self._group(f"{ask.run}/{ask.step}", sorted(hidden), least)
        ask = replace(ask, kind="agree", group=group, thing=question)
        size = TAG // 8 * (len(units) - 1)
        votes = answers(dict.fromkeys(units, ask), size, needed, any_will_do=True)
        payload = {node: b"".join(for_node(name_of[node], group, hidden, votes, names)) for node in units}
        last = {node: replace(ask, kind="unmask", thing=question + payload[node]) for node in units}
        sums = answers(last, coordinates, needed, any_will_do=True) if len(votes) >= needed else {}
        if len(sums) < needed:
            raise QuorumMissed(
                f"{needed} of {len(units)} nodes must be there to remove the masks of a sum. Found "
                f"{len(sums) or len(votes)}. Nothing was read: start the same run again to resume it."
            )
        total = revealed(hidden, group, sums, names, coordinates, needed)
        most = sum(units.values()) * (ask.bound / ask.grid + 1) + 40.0 * len(units) * ask.sigma / ask.grid
        if np.abs(total).max(initial=0) > most:
            raise QuorumMissed("the unmasked sum is out of range, so some node answered wrongly. Start a new run.")
        return total

    def _group(self, step: str, arrived: list[str], least: int) -> tuple[str, ...]:
        """Return the nodes whose answers are added: those of the earlier attempt, or else those that arrived."""
        group = self._population.groups.get(step, arrived)
        if len(group) < least:
            raise QuorumMissed(
                f"a masked sum needs {least} nodes, or its noise would be too small. Found {len(group)}. "
                "Nothing of it can be read: start the same run again to resume it."
            )
        if not set(group) <= set(arrived):
            missing = len(set(group) - set(arrived))
            raise QuorumMissed(
                f"{missing} of the {len(group)} nodes whose answers were being added when the coordinator was "
                "interrupted are not there. Bring them back and start the same run again, or start a new run."
            )
        self._population.groups[step] = list(group)  # recorded before any node votes for it
        return tuple(group)

    def _grid(self, bound: float, event: GaussianEvent, units: int) -> float:
        # Masked sums are added modulo 2^61 - 1: one bit less than others have.
        return super()._grid(bound, event, units) * (2.0 if self._population.how == "secure" else 1.0)

    def _users(self, nodes: Iterable[int]) -> int:
        return sum(self._population.roster[node].users for node in nodes)

    def _ask_until(
        self, enough: Callable[[], bool], asks: Mapping[int, bytes], inbox: Inbox, any_will_do: bool
    ) -> None:
        """Ask nodes, and those that do not answer again, until all have answered or the time is up.

        Nodes that missed the last deadline are not waited for if there is ``enough`` without them: not at all while
        they are offline, and at most three times as long as the others took if they are online. If ``any_will_do``,
        nobody is waited for once there is enough.
        """
        transport, patience = self._population.transport, self._population.patience
        seconds = patience.deadline
        transport.begin()
        started, last_sent, pause = time.monotonic(), dict[int, float](), patience.poll
        others_took: float | None = None
        while inbox.waiting and (now := time.monotonic()) - started <= seconds:
            online = set(transport.online())
            due = {node for node in inbox.waiting & online if now - last_sent.get(node, -math.inf) > patience.again}
            if due:
                transport.send({node: asks[node] for node in due})
                last_sent |= dict.fromkeys(due, now)
            arrived = list(transport.receive())
            for sender, data in arrived:
                inbox.take(sender, data)
            # Looks become rarer while nothing arrives: each of them costs the coordinator's machine some milliseconds.
            pause = patience.poll if arrived else _slower(pause)
            if any_will_do and enough():
                break
            if inbox.waiting <= self.silent and enough():
                others_took = now - started if others_took is None else others_took
                if not inbox.waiting & online or now - started > 3 * others_took + _GRACE:
                    break
            if inbox.waiting:
                time.sleep(min(pause, max(started + seconds - time.monotonic(), 0.0) + 1e-3))
        self.silent = (self.silent - inbox.answered) | (set() if any_will_do else inbox.waiting)

    def _gather(self, nodes: Sequence[int]) -> None:
        """Before the first round, wait for all registered nodes, but no longer than ``patience.gather``."""
        end, pause = time.monotonic() + self._population.patience.gather, self._population.patience.poll
        while not self._gathered and time.monotonic() < end:
            if set(nodes) <= set(self._population.transport.online()):
                break
            time.sleep(min(pause, max(end - time.monotonic(), 0.0)))
            pause = _slower(pause)
        self._gathered = True

    def _report(self, ask: Ask, inbox: Inbox, units: Sequence[int], seconds: float) -> None:
        if self._population.on_round is None:
            return
        report: dict[str, Any] = {"step": ask.step, "asked": len(units)}
        # Under sampling, nothing is reported that could depend on who was sampled.
        if self._event is None or self._event.sampling_rate == 1.0:
            report["answered"] = len(inbox.answered)
            report["silent"] = sorted(self._population.roster[node].name for node in set(units) - inbox.answered)
            report["verdicts"] = dict(inbox.verdicts)
            report["seconds"] = round(seconds, 3)
        self._population.on_round(report)


def _slower(pause: float) -> float:
    return min(_SLOWER * pause, max(pause, _SLOWEST_POLL))


def _tokens(nodes: Iterable[int]) -> dict[int, str]:
    """Return one token per node, so that no node can answer for another even if the transport misattributes it."""
    return {node: secrets.token_hex(16) for node in nodes}
