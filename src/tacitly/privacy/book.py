"""The book: the state of an account that follows from the entries of its ledger.

The book reads entries one by one, in order. Each must be consistent with those before it (a release is debited in an
open run, published once, and so on). So a chain that was rewritten into an impossible history is refused even if its
hashes are consistent.

Kinds of entries: ``account`` (the first entry: an id, the ceiling, whether it renews), ``ceiling`` (a lower ceiling),
``people`` (users who are new to the account, as keyed fingerprints), ``run``, ``debit``, ``retry``, ``publish``,
``certify``, ``finish``. Every body contains the time of the entry, which never decreases.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from tacitly.privacy.guarantee import Budget, Event, event_from_dict
from tacitly.privacy.ledger_file import GENESIS, Entry, LedgerMismatch, chained
from tacitly.privacy.release import Release

FORMAT = "tacitly ledger 3"
RENEWALS = ("yearly", "quarterly", "monthly")
_TIME = re.compile(r"\d{4}-(0[1-9]|1[0-2])-\d\dT\d\d:\d\d:\d\dZ")


@dataclass
class RunRecord:
    """One run: its announced configuration and plan, its state, and the statements of its certificates, by entry."""

    name: str
    config: str
    planned: str
    certified: bool
    people: Mapping[str, Any] | None
    seq: int
    state: str = "open"
    releases: int = 0
    statements: dict[int, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing:
    """The state of an account at an entry: number of runs, ceiling, period, and the start of the period."""

    runs: int
    renews: str | None
    ceiling: Budget | None
    period: str
    since: str


@dataclass(frozen=True)
class Debit:
    """What one release costs, when it was debited, and at which entry."""

    seq: int
    at: str
    run: str
    cost: Event


class Book:
    """The state of an account after the entries taken so far."""

    def __init__(self) -> None:
        self.entries, self.head, self.at = 0, GENESIS, ""
        self.account: dict[str, Any] = {}
        self.ceilings: list[tuple[int, Budget | None]] = []
        self.runs: dict[str, RunRecord] = {}
        self.releases: dict[tuple[str, int], Release] = {}
        self.values: dict[tuple[str, int], tuple[int, str]] = {}
        self.people: list[dict[str, Any]] = []
        self.debits: list[Debit] = []
        self.hashes: list[str] = [GENESIS]
        self.times: list[str] = [""]

    @property
    def ceiling(self) -> Budget | None:
        """What all runs (in a period) together may spend; None for no limit."""
        return self.ceilings[-1][1] if self.ceilings else None

    @property
    def renews(self) -> str | None:
        """How often the ceiling applies anew; None for never."""
        renews: str | None = self.account.get("renews")
        return renews

    def take(self, entry: Entry) -> None:
        """Process the next entry; raise if it is inconsistent with those before it."""
        if entry.seq != self.entries + 1 or entry.hash != chained(self.head, entry.seq, entry.kind, entry.body):
            raise LedgerMismatch(
                f"the ledger's chain of hashes breaks at entry {self.entries + 1}: entries were edited, removed or "
                "damaged. Restore the file from a backup."
            )
        try:
            body = json.loads(entry.body)
            at = body["at"]
            if (entry.seq == 1) != (entry.kind == "account") or not _TIME.fullmatch(at) or at < self.at:
                raise ValueError(f"{entry.kind} at {at}")
            self._apply(entry.seq, entry.kind, body)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            raise LedgerMismatch(
                f"entry {entry.seq} ({entry.kind}) of the ledger does not follow from those before it ({error}). "
                "Restore the file from a backup."
            ) from error
        self.entries, self.head, self.at = entry.seq, entry.hash, at
        self.hashes.append(entry.hash)
        self.times.append(at)

    def standing(self, entry: int) -> Standing:
        """Return the state of the account at an entry."""
        ceiling = next(ceiling for seq, ceiling in reversed(self.ceilings) if seq <= entry)
        runs = sum(run.seq <= entry for run in self.runs.values())
        name, since = period(self.renews, self.times[entry])
        return Standing(runs=runs, renews=self.renews, ceiling=ceiling, period=name, since=since)

    def of_run(self, run: str | None) -> list[Release]:
        """Return all releases, or those of one run, in the order in which they were debited."""
        return [release for release in self.releases.values() if run is None or release.run == run]

    def costs(self, *, since: str = "", run: str | None = None, up_to: int | None = None) -> list[Event]:
        """Return the costs of everything debited, or since a time, in one run, up to an entry."""
        last = self.entries if up_to is None else up_to
        kept = (debit for debit in self.debits if debit.at >= since and debit.seq <= last)
        return [debit.cost for debit in kept if run is None or debit.run == run]

    def _apply(self, seq: int, kind: str, body: dict[str, Any]) -> None:
        if kind == "account":
            self._open_account(body)
        elif kind == "ceiling":
            self._lower(seq, read_budget(body["ceiling"]))
        elif kind == "people":
            if not isinstance(body["key"], str):
                raise ValueError("a key has a name")
            self.people.append({"seq": seq, "key": body["key"], "sha256": body["sha256"], "users": int(body["users"])})
        elif kind == "run":
            self._open_run(seq, body)
        else:
            self._within(self.runs[body["run"]], seq, kind, body)

    def _open_account(self, body: dict[str, Any]) -> None:
        if body["format"] != FORMAT or body.get("renews") not in (None, *RENEWALS):
            raise ValueError(f"format {body['format']!r}, renews {body.get('renews')!r}")
        if not re.fullmatch("[0-9a-f]{32}", body["id"]):
            raise ValueError("an account is named by 32 hexadecimal digits")
        if not isinstance(body["about"], dict):
            raise ValueError("what an account is about has names")
        self.account, self.ceilings = body, [(1, read_budget(body["ceiling"]))]

    def _lower(self, seq: int, ceiling: Budget | None) -> None:
        if ceiling is None or not may_replace(self.ceiling, ceiling):
            raise ValueError("a ceiling can only become lower")
        self.ceilings.append((seq, ceiling))

    def _open_run(self, seq: int, body: dict[str, Any]) -> None:
        if body["name"] in self.runs:
            raise ValueError("the run was opened before")
        if not isinstance(json.loads(body["config"]), dict):
            raise ValueError("a run's configuration has names")
        certified = bool(body["certified"])
        if any(run.certified != certified for run in self.runs.values()):
            raise ValueError("certified and uncertified runs do not share a ledger")
        self.runs[body["name"]] = RunRecord(
            name=body["name"],
            config=body["config"],
            planned=body["planned"],
            certified=certified,
            people=body["people"],
            seq=seq,
        )

    def _within(self, run: RunRecord, seq: int, kind: str, body: dict[str, Any]) -> None:
        if kind == "certify":
            if not isinstance(body["statement"], dict):
                raise ValueError("a statement has names")
            run.statements[seq] = body["statement"]
            return
        if run.state != "open":
            raise ValueError(f"the run is {run.state}")
        if kind == "finish":
            run.state = "finished"
            return
        key = (run.name, int(body["index"]))
        if kind == "debit":
            if key[1] != run.releases:
                raise ValueError("a release is missing before it")
            run.releases += 1
            release = read_release(body)
            self.releases[key] = release
            self.debits.append(Debit(seq, body["at"], run.name, release.cost))
            return
        found = self.releases[key]
        if found.state != "debited":
            raise ValueError("the release was published before")
        if kind == "retry":
            self.releases[key] = replace(found, attempts=found.attempts + 1)
        elif kind == "publish":
            self.releases[key] = replace(found, state="published")
            self.values[key] = (seq, str(body["sha256"]))
        else:
            raise ValueError("unknown kind")


def now(after: str = "") -> str:
    """Return the time in UTC, never before ``after``: a clock that is turned back opens no earlier period."""
    return max(after, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def period(renews: str | None, at: str) -> tuple[str, str]:
    """Return the name of the period that a time lies in, and when it began.

    >>> period("yearly", "2026-11-16T03:00:00Z"), period("quarterly", "2026-11-16T03:00:00Z")
    (('2026', '2026-01-01'), ('2026-Q4', '2026-10-01'))
    >>> period(None, "2026-11-16T03:00:00Z")
    ('all time', '')
    """
    year, month = at[:4], int(at[5:7])
    if renews == "yearly":
        return year, f"{year}-01-01"
    if renews == "quarterly":
        quarter = (month - 1) // 3
        return f"{year}-Q{quarter + 1}", f"{year}-{3 * quarter + 1:02d}-01"
    if renews == "monthly":
        return at[:7], f"{at[:7]}-01"
    return "all time", ""


def may_replace(standing: Budget | None, ceiling: Budget) -> bool:
    """Whether a new ceiling is at most as large as the current one, so that it may replace it."""
    return standing is None or (
        ceiling.epsilon <= standing.epsilon
        and ceiling.delta <= standing.delta
        and (ceiling.adjacency, ceiling.unit) == (standing.adjacency, standing.unit)
    )


def read_budget(data: Mapping[str, Any] | None) -> Budget | None:
    """Read a budget as JSON has it."""
    if data is None:
        return None
    epsilon = math.inf if data["epsilon"] == "inf" else float(data["epsilon"])
    return Budget(**{**data, "epsilon": epsilon})


def read_release(body: Mapping[str, Any]) -> Release:
    """Read the body of a debit."""
    names = ("run", "index", "name", "noise", "grid", "coordinates")
    event = event_from_dict(body["event"])
    return Release(**{name: body[name] for name in names}, event=event, state="debited", attempts=1)
