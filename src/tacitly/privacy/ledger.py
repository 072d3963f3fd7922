"""The ledger: a durable account of every release, with a ceiling.

A release is *debited* before it is drawn and *published* once it is stored. :meth:`Run.release` is the only way to do
either, so the order is fixed:

1. if the row is already published, the stored value is returned and nothing is drawn;
2. otherwise, in one transaction that excludes every other writer, the cost of everything ever debited plus this release
   is compared with the ceiling, and the row is committed as ``debited``;
3. the noisy sum is drawn;
4. its value is stored and the row is marked ``published``, in one commit; only then is it returned.

Why the account is complete. Only published rows leave the process, and a row is published only after its debit is on
disk, so no release is missing from the account.

Why a retry is free. A process that dies (or a draw that raises) between steps 2 and 4 leaves a debited row without a
value. The next attempt reuses that row and does not pay again. This is sound because nothing of the first attempt left:
its value existed only in the memory of the trusted process, and :meth:`Run.release` had not returned. A row never gets
a second value. This requires that the noise is added inside the trusted process. If someone may have seen part of the
first attempt, as a server sees its users' messages, it cannot be repeated without paying again: ``again=False`` refuses
to, and the debit stands. The exception is users who send identical messages again, as the nodes of
:mod:`tacitly.federation.flower` do: then nothing new is seen.

A ledger holds certified runs or uncertified runs, never both, because a total over both would not be a claim.
Uncertified runs have no finite ε, so a ledger for them has no ceiling.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacitly.privacy.accounting import compose, same_for_equal_costs
from tacitly.privacy.guarantee import Adjacency, Budget, Event, event_from_dict
from tacitly.privacy.ledger_file import LedgerFile, LedgerMismatch, RunInUse, check_resumable
from tacitly.privacy.release import Release, canonical_json, same_costs

__all__ = ["BudgetExceeded", "Ledger", "LedgerMismatch", "Release", "Run", "RunInUse", "RunSummary"]

_TOLERANCE = 1e-9
_FIELDS = tuple(field.name for field in fields(Release))
_COLUMNS = ", ".join(_FIELDS).replace("index", "idx")  # index is a reserved word in SQL


class BudgetExceeded(RuntimeError):
    """A release would exceed the ceiling; nothing was drawn."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run as recorded in the ledger; ``epsilon`` is None if there is no ceiling to define δ.

    ``billboard`` is the SHA-256 of the billboard that the run produced, if it was given on finishing.
    """

    name: str
    state: str
    config: Mapping[str, Any]
    releases: int
    epsilon: float | None
    certified: bool
    billboard: str | None


class Ledger:
    """An account of releases, in a file or (``path=None``) in memory, with an optional ceiling.

    >>> from tacitly.privacy.guarantee import GaussianEvent, Sensitivity
    >>> event = GaussianEvent(sigma=10.0, sensitivity=Sensitivity.of_clip(1.0))
    >>> with Ledger(ceiling=Budget(epsilon=1.0, delta=1e-6)) as ledger:
    ...     run = ledger.run("demo", config={"rank": 4}, planned=[event])
    ...     value = run.release(
    ...         "gradient", event, lambda: np.ones(3), noise="float", grid=0.0, coordinates=3
    ...     )
    ...     run.finish()
    ...     round(ledger.spent(), 3)
    0.397
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, ceiling: Budget | None = None) -> None:
        wanted = None if ceiling is None else asdict(ceiling)
        self._file = LedgerFile(path, canonical_json(wanted))
        self._debits: list[Event] = []
        self._read_up_to = 0
        self._affordable: Counter[Event] = Counter()
        stored = json.loads(self._file.rows("SELECT budget FROM ceiling")[0][0])
        if stored is not None:
            stored = Budget(**{**stored, "epsilon": float(stored["epsilon"])})
        self.ceiling: Budget | None = stored
        if ceiling is not None and ceiling != stored:
            self.close()
            raise LedgerMismatch(f"the ceiling of {path} cannot be changed: it is {stored}. Found {ceiling}.")

    def run(
        self,
        name: str,
        *,
        config: Mapping[str, Any],
        planned: Sequence[Event] = (),
        certified: bool = True,
    ) -> Run:
        """Open a run, or resume the unfinished one of the same name and configuration.

        A new run whose plan does not fit under the ceiling is refused before anything is spent. A run that is not
        ``certified`` (no noise, seeded noise, sensitivities that are not bounds) needs a ledger without a ceiling and
        without certified runs; a certified run needs a ledger without uncertified ones.
        """
        if certified and not all(event.private for event in planned):
            raise LedgerMismatch(f"run {name!r} plans releases without noise. Open it with certified=False.")
        text, plan = canonical_json(config), canonical_json([e.to_dict() for e in planned])
        self._file.lock(name)
        try:
            with self._file.transaction():
                query = "SELECT config, planned, certified, state FROM runs WHERE name = ?"
                found = self._file.rows(query, name)
                if found:
                    check_resumable(name, found[0], text, plan, certified)
                else:
                    self._admit(name, certified)
                    self.afford(planned, f"the plan of run {name!r}")
                    new = (name, text, plan, int(certified))
                    self._file.change("INSERT INTO runs VALUES (?, ?, ?, ?, 'open', NULL)", *new)
        except BaseException:
            self._file.unlock(name)
            raise
        return Run(self, name, json.loads(text), tuple(planned), certified=certified, resumed=bool(found))

    def spent(self, adjacency: Adjacency | None = None, *, delta: float | None = None) -> float:
        """Return ε of everything ever debited, by default at the ceiling's adjacency and δ; ∞ if uncertified."""
        if self.ceiling is not None:
            adjacency = self.ceiling.adjacency if adjacency is None else adjacency
            delta = self.ceiling.delta if delta is None else delta
        if delta is None:
            raise ValueError("delta must be given, because this ledger has no ceiling to take it from. Found None.")
        if self._file.rows("SELECT 1 FROM releases JOIN runs ON runs.name = run WHERE NOT certified LIMIT 1"):
            return math.inf
        costs = [release.cost for release in self.releases()]
        return compose(costs, Adjacency(adjacency or Adjacency.ZERO_OUT), delta)

    def releases(self, run: str | None = None) -> list[Release]:
        """Return all rows, or those of one run, in the order in which they were debited."""
        query = f"SELECT {_COLUMNS} FROM releases WHERE ?1 IS NULL OR run = ?1 ORDER BY seq"
        return [_release(row) for row in self._file.rows(query, run)]

    def runs(self) -> list[RunSummary]:
        """Return all runs, in the order in which they were opened."""
        rows = self._file.rows("SELECT name, state, config, certified, billboard FROM runs ORDER BY rowid")
        return [self._summary(*row) for row in rows]

    def close(self) -> None:
        """Close the file and unlock the runs that are open here, so that others can resume them."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _debit(self, wanted: Release, *, again: bool) -> bytes | None:
        """Perform steps 1 and 2; return the value if one is already published."""
        key = (wanted.run, wanted.index)
        with self._file.transaction():
            query = f"SELECT {_COLUMNS}, value FROM releases WHERE run = ? AND idx = ?"
            rows = self._file.rows(query, *key)
            if not rows:
                self.afford([wanted.cost], f"release {wanted.name!r} of run {wanted.run!r}")
                self._file.change(
                    f"INSERT INTO releases ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    *(*key, wanted.name, canonical_json(wanted.event.to_dict()), wanted.noise),
                    *(wanted.grid, wanted.coordinates, wanted.state, wanted.attempts),
                )
                return None
            *row, value = rows[0]
            found = _release(row)
            if found.identity != wanted.identity:
                raise LedgerMismatch(
                    f"release {found.index} of run {found.run!r} is in the ledger as {found.identity}. "
                    f"Found {wanted.identity}: another program began the run. Start a new one."
                )
            if found.state == "published":
                return bytes(value)
            if not again:
                raise LedgerMismatch(
                    f"release {found.name!r} of run {found.run!r} was interrupted, and others may have seen part of "
                    "it. It is paid for and cannot be drawn again: start a new run."
                )
            self._file.change("UPDATE releases SET attempts = attempts + 1 WHERE run = ? AND idx = ?", *key)
            return None

    def _publish(self, debited: Release, value: bytes) -> None:
        """Perform step 4. If several writers drew a value for one row, the first to get here publishes its own."""
        with self._file.transaction():
            changed = self._file.change(
                "UPDATE releases SET state = 'published', value = ? WHERE run = ? AND idx = ? AND state = 'debited'",
                *(value, debited.run, debited.index),
            )
            if changed != 1:
                raise LedgerMismatch(
                    f"release {debited.index} of run {debited.run!r} was published by another writer "
                    "while it was drawn. The value drawn here was discarded: start the run again to read the other."
                )

    def _admit(self, name: str, certified: bool) -> None:
        """Raise unless a new run has the kind, certified or not, that this ledger holds."""
        kind, other = ("certified", "uncertified") if certified else ("uncertified", "certified")
        mixed = self._file.rows("SELECT name FROM runs WHERE certified <> ? ORDER BY rowid LIMIT 1", int(certified))
        if mixed:
            raise LedgerMismatch(
                f"run {name!r} is {kind} and this ledger holds {other} runs, such as {mixed[0][0]!r}. "
                "Use a separate ledger."
            )
        if not certified and self.ceiling is not None and self.ceiling.private:
            raise LedgerMismatch(
                f"run {name!r} is uncertified, so its epsilon is infinite, and this ledger has a ceiling of "
                f"{self.ceiling.epsilon:.6g}. Use a separate ledger without a ceiling."
            )

    def afford(self, more: Sequence[Event], what: str) -> None:
        """Raise unless everything debited and ``more`` together stay within the ceiling."""
        if self.ceiling is None:
            return
        units = {event.sensitivity.unit for event in more} - {self.ceiling.unit}
        if units:
            raise LedgerMismatch(
                f"{what} must protect the unit of the ceiling, {self.ceiling.unit}. Found {', '.join(sorted(units))}."
            )
        self._catch_up()
        together = [*self._debits, *more]
        # Leaving releases out is post-processing, so any part of an affordable set is affordable. Sampled events take
        # seconds to compose; this way a planned run composes them once.
        sampled = any(event.sampling_rate < 1 for event in together)
        if sampled:
            together = [same_for_equal_costs(event) for event in together]
        if sampled and Counter(together) <= self._affordable:
            return
        epsilon = compose(together, self.ceiling.adjacency, self.ceiling.delta)
        if epsilon > self.ceiling.epsilon * (1 + _TOLERANCE):
            raise BudgetExceeded(
                f"{what} would bring epsilon to {epsilon:.6g}. The ceiling is "
                f"{self.ceiling.epsilon:.6g} under {self.ceiling.adjacency} at delta = "
                f"{self.ceiling.delta:g}, and {self.spent():.6g} is spent. Nothing was drawn."
            )
        if sampled:
            self._affordable = Counter(together)

    def _summary(self, name: str, state: str, config: str, certified: int, billboard: str | None) -> RunSummary:
        costs = [release.cost for release in self.releases(name)]
        epsilon = None
        if self.ceiling is not None:
            sound = certified or not costs
            epsilon = compose(costs, self.ceiling.adjacency, self.ceiling.delta) if sound else math.inf
        return RunSummary(
            name=name,
            state=state,
            config=json.loads(config),
            releases=len(costs),
            epsilon=epsilon,
            certified=bool(certified),
            billboard=billboard,
        )

    def _catch_up(self) -> None:
        """Read the debits that are new since the last call; older ones never change."""
        query = f"SELECT {_COLUMNS}, seq FROM releases WHERE seq > ? ORDER BY seq"
        for *row, seq in self._file.rows(query, self._read_up_to):
            self._debits.append(_release(row).cost)
            self._read_up_to = seq


class Run:
    """One program's releases, in order. Created by :meth:`Ledger.run`."""

    def __init__(
        self,
        ledger: Ledger,
        name: str,
        config: Mapping[str, Any],
        planned: tuple[Event, ...],
        *,
        certified: bool,
        resumed: bool,
    ) -> None:
        self.name, self.config, self.certified, self.resumed = name, config, certified, resumed
        self._ledger, self._planned = ledger, planned
        self._next, self._state = 0, "open"

    @property
    def releases(self) -> list[Release]:
        """The rows of this run, including those of earlier attempts."""
        return self._ledger.releases(self.name)

    def asked(self, queries: Sequence[object], through: NDArray[Any] | None = None) -> None:
        """Receive the queries behind the next release (about rows projected on ``through``).

        Does nothing here: the ledger keeps no queries. The audit's recording (:mod:`tacitly.audit.recording`) does.
        """

    def release(
        self,
        name: str,
        event: Event,
        draw: Callable[[], NDArray[Any]],
        *,
        noise: str,
        grid: float,
        coordinates: int,
        again: bool = True,
    ) -> NDArray[np.float64]:
        """Debit, draw, publish and return; or return the value that an earlier attempt published.

        ``again`` states whether an interrupted attempt may be repeated, which requires that nobody saw any of it.
        """
        self._check_open()
        wanted = Release(
            run=self.name,
            index=self._next,
            name=name,
            event=event,
            noise=noise,
            grid=float(grid),
            coordinates=int(coordinates),
            state="debited",
            attempts=1,
        )
        if self.certified and not wanted.cost.private:
            raise LedgerMismatch(
                f"nothing protects release {name!r} (noise: {noise}), and run {self.name!r} is certified. "
                "Open it with certified=False, in a separate ledger."
            )
        value = self._ledger._debit(wanted, again=again)
        if value is None:
            value = _packed(draw())
            self._ledger._publish(wanted, value)
        self._next += 1
        return _unpacked(value)

    def finish(self, billboard_sha256: str | None = None) -> None:
        """Close the run permanently, after comparing its releases with its plan.

        Call it last, when the result is stored safely: a finished run cannot be resumed, so its values cannot be read
        again through it. ``billboard_sha256`` records which result that is; without it, no certificate can be verified
        against this run.
        """
        if billboard_sha256 is not None and not re.fullmatch("[0-9a-f]{64}", billboard_sha256):
            raise ValueError(f"billboard_sha256 must be 64 hexadecimal digits. Found {billboard_sha256!r}.")
        if self._state == "finished" and billboard_sha256 is None:
            return
        self._check_open()
        rows = self.releases
        unpublished = [row.name for row in rows if row.state != "published"]
        if unpublished or len(rows) != self._next:
            raise LedgerMismatch(
                f"run {self.name!r} has {len(rows)} releases in the ledger, {len(unpublished)} of them without a "
                f"value, and this program made {self._next}. All must be published and the numbers equal."
            )
        if self._planned and not same_costs([row.event for row in rows], self._planned):
            raise LedgerMismatch(
                f"run {self.name!r} must release exactly the {len(self._planned)} events of its plan. "
                f"Found {len(rows)} releases, or other ratios of noise to sensitivity."
            )
        with self._ledger._file.transaction():
            self._ledger._file.change(
                "UPDATE runs SET state = 'finished', billboard = ? WHERE name = ?", billboard_sha256, self.name
            )
        self._state = "finished"
        self._ledger._file.unlock(self.name)

    def abandon(self) -> None:
        """Stop writing the run here, so that it can be opened again; published values stay published."""
        if self._state == "open":
            self._state = "abandoned"
            self._ledger._file.unlock(self.name)

    def _check_open(self) -> None:
        if self._state == "finished":
            raise LedgerMismatch(f"run {self.name!r} is finished. Open a run with another name.")
        if self._state == "abandoned":
            raise LedgerMismatch(f"run {self.name!r} was abandoned here. Open it again to resume it.")


def _release(row: Sequence[Any]) -> Release:
    fields = dict(zip(_FIELDS, row, strict=True))
    return Release(**{**fields, "event": event_from_dict(json.loads(fields["event"]))})


def _packed(value: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(value, dtype=np.float64), allow_pickle=False)
    return buffer.getvalue()


def _unpacked(data: bytes) -> NDArray[np.float64]:
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False), dtype=np.float64)
