"""Read a ledger: its ceiling, its runs and releases, its people, and the budget spent. Nothing here writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacitly.privacy import home
from tacitly.privacy.accounting import compose
from tacitly.privacy.book import Book, RunRecord, Standing, now, period
from tacitly.privacy.guarantee import Adjacency, Budget, Event
from tacitly.privacy.ledger_file import LedgerFile
from tacitly.privacy.people import People
from tacitly.privacy.release import Release


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run as recorded in the ledger; ``epsilon`` is None if neither a ceiling nor the caller defines δ.

    ``statements`` are the statements of its certificates, by the number of the entry that records each.
    """

    name: str
    state: str
    config: Mapping[str, Any]
    releases: int
    epsilon: float | None
    certified: bool
    people: Mapping[str, Any] | None
    statements: Mapping[int, Mapping[str, Any]]


class LedgerReading:
    """The reading half of :class:`~tacitly.privacy.ledger.Ledger`."""

    _file: LedgerFile
    _book: Book
    _end: tuple[int, str] | None  # of an open transaction
    _secret: bytes | None

    @property
    def path(self) -> str | None:
        """Where the file is; None in memory."""
        return None if self._file.path is None else str(self._file.path)

    @property
    def id(self) -> str:
        """The account's own name: random, and the same in every copy."""
        return str(self.book.account["id"])

    @property
    def about(self) -> Mapping[str, str]:
        """Texts that were given when the account was created: curator, purpose, region."""
        about: Mapping[str, str] = self.book.account["about"]
        return about

    @property
    def ceiling(self) -> Budget | None:
        """What all runs (in a period) together may spend; None for no limit."""
        return self.book.ceiling

    @property
    def renews(self) -> str | None:
        """How often the ceiling renews (yearly, quarterly or monthly); None for never."""
        return self.book.renews

    @property
    def head(self) -> tuple[int, str]:
        """The number of entries, and the hash of the last one, which commits to all of them."""
        book = self.book
        return book.entries, book.head

    def hash_at(self, entry: int) -> str | None:
        """Return the hash of an entry; None if the ledger has fewer."""
        hashes = self.book.hashes
        return hashes[entry] if 0 < entry < len(hashes) else None

    @cached_property
    def secret(self) -> bytes:
        """The key of fingerprints: this user's for a file (:mod:`tacitly.privacy.home`), a random one in memory."""
        return home.secret() if self._secret is None else self._secret

    def spent(
        self, adjacency: Adjacency | None = None, *, delta: float | None = None, this_period: bool = False
    ) -> float:
        """Return ε of everything ever debited, by default at the ceiling's adjacency and δ; ∞ if uncertified."""
        book = self.book
        if book.ceiling is not None:
            adjacency = book.ceiling.adjacency if adjacency is None else adjacency
            delta = book.ceiling.delta if delta is None else delta
        if delta is None:
            raise ValueError("delta must be given, because this ledger has no ceiling to take it from. Found None.")
        since = period(book.renews, now(book.at))[1] if this_period else ""
        if book.debits and not all(run.certified for run in book.runs.values()):
            return math.inf
        return compose(book.costs(since=since), Adjacency(adjacency or Adjacency.ZERO_OUT), delta)

    def with_more(self, more: Sequence[Event], adjacency: Adjacency, delta: float) -> float:
        """Return the total ε of everything debited and ``more``."""
        return compose([*self.book.costs(), *more], Adjacency(adjacency), delta)

    def releases(self, run: str | None = None) -> list[Release]:
        """Return all rows, or those of one run, in the order in which they were debited."""
        return self.book.of_run(run)

    def releases_up_to(self, entry: int, *, since: str = "") -> list[Release]:
        """Return what had been debited up to an entry, since a time."""
        book = self.book
        debited = iter(book.debits)
        return [row for row, d in zip(book.releases.values(), debited, strict=True) if d.seq <= entry and d.at >= since]

    def standing(self, entry: int) -> Standing:
        """Return the state of the account at an entry: number of runs, ceiling, period."""
        return self.book.standing(entry)

    def runs(self, *, delta: float | None = None) -> list[RunSummary]:
        """Return all runs, in the order in which they were opened; ``delta`` is for a ledger without a ceiling."""
        where = self.ceiling or (None if delta is None else Budget(epsilon=math.inf, delta=delta))
        return [self._summary(run, where) for run in list(self.book.runs.values())]

    def people(self) -> list[People]:
        """Return the users of all runs, as keyed fingerprints: one entry for each key that was used."""
        by_key: dict[str, People] = {}
        for entry in self.book.people:
            part = People.from_bytes(self._file.blob(entry["seq"], entry["sha256"]), entry["key"])
            by_key[part.key] = part.joined(by_key[part.key]) if part.key in by_key else part
        return list(by_key.values())

    @property
    def closed(self) -> bool:
        """Whether the list of people is complete: no others may use the account."""
        return bool(self.book.account["about"].get("roster"))

    @property
    def book(self) -> Book:
        """The current state of the account, without entries of an open transaction; for reading."""
        with self._file.reading():
            if self._end is None:
                for entry in self._file.after(self._book.entries):
                    self._book.take(entry)
        return self._book

    def _summary(self, run: RunRecord, where: Budget | None) -> RunSummary:
        costs = self._book.costs(run=run.name)
        epsilon = None
        if where is not None:
            sound = run.certified or not costs
            epsilon = compose(costs, where.adjacency, where.delta) if sound else math.inf
        return RunSummary(
            name=run.name,
            state=run.state,
            config=json.loads(run.config),
            releases=run.releases,
            epsilon=epsilon,
            certified=run.certified,
            people=run.people,
            statements=dict(run.statements),
        )
