"""The ledger: a durable account of every release, with a ceiling.

A release is *debited* before it is drawn and *published* once it is stored. :meth:`Run.release` is the only way to do
either, so the order is fixed:

1. if the row is already published, the stored value is returned and nothing is drawn;
2. otherwise, in one transaction that excludes every other writer, the cost of everything ever debited plus this release
   is compared with the ceiling, and the row is committed as ``debited``;
3. the noisy sum is drawn;
4. its value is stored and the row is marked ``published``, in one commit; only then is it returned.

Why the account is complete. Only the values of published rows leave the process, and a row is published only after its
debit is on disk. So no release is missing from the account.

Why a retry is free. If the process dies (or the draw raises) between steps 2 and 4, a debited row without a value
remains. The next attempt reuses that row and does not pay again. This is sound because the value of the first attempt
existed only in the memory of the trusted process, and :meth:`Run.release` had not returned it. A row never gets a
second value. The argument requires that the noise is added inside the trusted process. If someone may have seen part of
the first attempt, as a server sees its users' messages, it cannot be repeated without paying again: ``again=False``
refuses to repeat it, and the debit stands. The exception is users who send identical messages again, as the nodes of
:mod:`tacitly.federation.flower` do: then nothing new is seen.

A ledger holds either certified runs or uncertified runs, because a total over both would not be a valid claim.
Uncertified runs have no finite ε, so a ledger for them has no ceiling.

This module writes ledgers; :mod:`tacitly.privacy.ledger_reading` reads them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from tacitly.privacy import home
from tacitly.privacy.accounting import compose, same_for_equal_costs
from tacitly.privacy.book import FORMAT, RENEWALS, Book, may_replace, now, period
from tacitly.privacy.guarantee import Budget, Event
from tacitly.privacy.ledger_file import LedgerFile, LedgerMismatch, RunInUse
from tacitly.privacy.ledger_reading import LedgerReading, RunSummary
from tacitly.privacy.ledger_run import Run, check_resumable
from tacitly.privacy.people import People
from tacitly.privacy.release import Release, canonical_json

__all__ = ["BudgetExceeded", "Ledger", "LedgerMismatch", "Release", "Run", "RunInUse", "RunSummary"]

_TOLERANCE = 1e-9
_DELTA = 1e-6  # of a ceiling or a total for which none is given: the estimators' default


class BudgetExceeded(RuntimeError):
    """A release would exceed the ceiling; nothing was drawn."""


class Ledger(LedgerReading):
    """An account of releases, in a file or (``path=None``) in memory, with an optional ceiling.

    Parameters
    ----------
    path
        The file; created if it does not exist.
    ceiling
        What all runs together may spend: a :class:`~tacitly.Budget`, or a number for that ε at δ = 1e-6. An existing
        file keeps its ceiling, and another one is refused (:meth:`limit` lowers it).
    renews
        ``yearly``, ``quarterly`` or ``monthly``: the ceiling applies to each calendar period. None: it never renews.
    about
        Texts that certificates state: ``curator``, ``purpose``, ``region``.

    >>> import numpy as np
    >>> from tacitly.privacy.guarantee import GaussianEvent, Sensitivity
    >>> event = GaussianEvent(sigma=10.0, sensitivity=Sensitivity.of_clip(1.0))
    >>> with Ledger(ceiling=1.0) as ledger:
    ...     run = ledger.run("demo", config={"rank": 4}, planned=[event])
    ...     value = run.release(
    ...         "gradient", event, lambda: np.ones(3), noise="float", grid=0.0, coordinates=3
    ...     )
    ...     run.finish()
    ...     round(ledger.spent(), 3)
    0.397
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        ceiling: Budget | float | None = None,
        renews: str | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        wanted = _budget(ceiling)
        if renews not in (None, *RENEWALS):
            raise ValueError(f"renews must be one of {', '.join(RENEWALS)}, or None. Found {renews!r}.")
        self._secret = None if path is not None else secrets.token_bytes(32)
        first = {
            "format": FORMAT,
            "id": secrets.token_hex(16),
            "ceiling": None if wanted is None else asdict(wanted),
            "renews": renews,
            "about": dict(about or {}),
            "at": now(),
        }
        self._file = LedgerFile(path, ("account", canonical_json(first)))
        self._book = Book()
        self._end = None
        self._affordable: Counter[Event] = Counter()
        try:
            self._check_history()
            standing = self.ceiling
            if wanted is not None and wanted != standing:
                hint = "; give one to limit()" if standing is None else ""
                raise LedgerMismatch(
                    f"the ceiling of {path} cannot be changed: it is {standing}. Found {wanted}{hint}."
                )
            if renews is not None and renews != self.renews:
                raise LedgerMismatch(f"{path} renews: {self.renews or 'never'}. Found {renews}.")
        except BaseException:
            self.close()
            raise

    def limit(self, ceiling: Budget | float) -> None:
        """Set a ceiling where there is none, or a lower one."""
        wanted = _budget(ceiling)
        assert wanted is not None
        with self.writing() as book:
            standing = book.ceiling
            if not may_replace(standing, wanted):
                raise LedgerMismatch(
                    f"a ceiling can only become lower: it is {standing}. Found {wanted}. Open another account for "
                    "another promise."
                )
            if wanted != standing:
                self.append("ceiling", ceiling=asdict(wanted))

    def run(
        self,
        name: str,
        *,
        config: Mapping[str, Any],
        planned: Sequence[Event] = (),
        certified: bool = True,
        people: People | None = None,
    ) -> Run:
        """Open a run, or resume the unfinished one of the same name and configuration.

        A new run whose plan would exceed the ceiling is refused before anything is spent. A run that is not
        ``certified`` (no noise, seeded noise, sensitivities that are not bounds) needs a ledger without a ceiling and
        without certified runs; a certified run needs a ledger without uncertified ones. ``people`` are the users of
        the run; an account with a closed list of people refuses others.
        """
        if certified and not all(event.private for event in planned):
            raise LedgerMismatch(f"run {name!r} plans releases without noise. Open it with certified=False.")
        text, plan = canonical_json(config), canonical_json([e.to_dict() for e in planned])
        who = None if people is None else {"users": len(people), "fingerprint": people.fingerprint}
        self._file.lock(name)
        try:
            with self.writing() as book:
                found = book.runs.get(name)
                if found is not None:
                    check_resumable(found, text, plan, certified)
                else:
                    self._admit(name, certified)
                    self.afford(planned, f"the plan of run {name!r}")
                    body: dict[str, Any] = {
                        "name": name,
                        "config": text,
                        "planned": plan,
                        "certified": certified,
                        "people": who,
                    }
                    if people is None and self.closed:
                        raise LedgerMismatch(
                            f"{self.path} has a roster, and it is not known whether the users of run {name!r}, who "
                            "stay at their sites, are on it. Use another account."
                        )
                    new = None if people is None else self._newcomers(people)
                    self.append("run", **body)
                    if new is not None and len(new):
                        self._append_people(new)
        except BaseException:
            self._file.unlock(name)
            raise
        return Run(self, name, json.loads(text), tuple(planned), certified=certified, resumed=found is not None)

    def enrol(self, people: People) -> None:
        """Add people to the account's list."""
        with self.writing():
            new = self._strangers(people)
            if len(new):
                self._append_people(new)

    def certify(self, run: str, statement: Callable[[], Mapping[str, Any]]) -> tuple[int, str]:
        """Record the statement of a run's certificate; return the number and hash of the entry.

        ``statement`` is called while no other writer can debit, so its totals are those at its entry. A run can be
        certified more than once, also after it has finished: a model can be certified with more files later.
        """
        with self.writing() as book:
            if run not in book.runs:
                raise LedgerMismatch(f"{self.path or 'the ledger in memory'} has no run {run!r} to certify.")
            number = book.entries + 1
            self.append("certify", run=run, statement=dict(statement()))
        return number, self.book.hashes[number]

    def close(self) -> None:
        """Close the file and unlock the runs that are open here, so that others can resume them."""
        self._file.close()

    def __sklearn_clone__(self) -> Ledger:
        """Return itself: copies of an estimator spend on one account."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process opens the same file; what is in memory only cannot be shared with it."""
        if self.path is None:
            raise TypeError("a ledger in memory cannot be sent to another process. Give it a path, or n_jobs=1.")
        return Ledger, (self.path,)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def afford(self, more: Sequence[Event], what: str) -> None:
        """Raise unless everything debited (in this period) and ``more`` together stay within the ceiling."""
        book = self.book
        ceiling = book.ceiling
        if ceiling is None:
            return
        units = {event.sensitivity.unit for event in more} - {ceiling.unit}
        if units:
            raise LedgerMismatch(
                f"{what} must protect the unit of the ceiling, {ceiling.unit}. Found {', '.join(sorted(units))}."
            )
        name, since = period(book.renews, now(book.at))
        together = [*book.costs(since=since), *more]
        # Leaving releases out is post-processing, so any part of an affordable set is affordable. Sampled events take
        # seconds to compose; this way a planned run composes them once.
        sampled = any(event.sampling_rate < 1 for event in together)
        if sampled:
            together = [same_for_equal_costs(event) for event in together]
        if sampled and Counter(together) <= self._affordable:
            return
        epsilon = compose(together, ceiling.adjacency, ceiling.delta)
        if epsilon > ceiling.epsilon * (1 + _TOLERANCE):
            when = "" if book.renews is None else f" in {name}"
            raise BudgetExceeded(
                f"{what} would bring epsilon to {epsilon:.6g}{when}. The ceiling is "
                f"{ceiling.epsilon:.6g} under {ceiling.adjacency} at delta = "
                f"{ceiling.delta:g}, and {self.spent(this_period=True):.6g} is spent. Nothing was drawn."
            )
        if sampled:
            self._affordable = Counter(together)

    @contextmanager
    def writing(self) -> Iterator[Book]:
        """Exclude all other writers and yield the current book; appended entries are committed at the end."""
        with self._file.transaction():
            book = self.book
            self._end = (book.entries, book.head)
            try:
                if self._file.last() != self._end:
                    raise LedgerMismatch(
                        f"{self.path} was replaced while it was open: its last entry is not the one that was read or "
                        "written here. No value was returned. Put the newest copy back, then run the same again."
                    )
                if self._file.path is not None:  # a copy that was opened as early as this file may have been used since
                    self._check_seen(self._seen(str(book.account["id"])), book)
                yield book
            finally:
                self._end = None
        self._remember()

    def append(self, kind: str, *, blob: bytes | None = None, **body: Any) -> None:
        """Append an entry, while :meth:`writing`."""
        assert self._end is not None
        (entries, head), text = self._end, canonical_json({**body, "at": now(self._book.at)})
        self._end = entries + 1, self._file.append(head, entries + 1, kind, text, blob)

    def unlock(self, run: str) -> None:
        """Let others write ``run``."""
        self._file.unlock(run)

    def _check_history(self) -> None:
        """Raise if the file lacks entries that this machine has seen, or has different ones."""
        if self._file.path is None:
            return
        # The first entry names the account. Read the remembered state before the other entries, which may be growing.
        seen = self._seen(self.id)
        self._check_seen(seen, self.book)
        self._remember()

    @staticmethod
    def _seen(account: str) -> home.Anchor | None:
        try:
            return home.anchor(account)
        except ValueError as error:
            raise LedgerMismatch(str(error)) from None

    def _check_seen(self, seen: home.Anchor | None, book: Book) -> None:
        if seen is None:
            return
        if seen.entries > book.entries:
            raise LedgerMismatch(
                f"{self.path} has {book.entries} entries, and this machine has seen {seen.entries} of the same account "
                f"(last at {seen.path}): it is an older copy, and the missing entries were spent. Use the newest copy."
            )
        if book.hashes[seen.entries] != seen.head:
            raise LedgerMismatch(
                f"{self.path} is not the ledger that this machine has seen (last at {seen.path}): entry "
                f"{seen.entries} differs, so it was rewritten, or two copies were used. Use the right copy."
            )

    def _remember(self) -> None:
        if self._file.path is not None:
            entries, head = self.head
            home.remember(self.id, home.Anchor(path=str(self.path), entries=entries, head=head))

    def _append_people(self, people: People) -> None:
        blob = people.to_bytes()
        body = {"key": people.key, "users": len(people), "sha256": hashlib.sha256(blob).hexdigest()}
        self.append("people", blob=blob, **body)

    def _strangers(self, people: People) -> People:
        """Return those who are not on the account's list yet."""
        for known in self.people():
            people = people.without(known)
        return people

    def _newcomers(self, people: People) -> People:
        """Return those who are new to the account; raise if it is closed to others."""
        new = self._strangers(people)
        if self.closed and len(new):
            if all(known.key != people.key for known in self.people()):
                raise LedgerMismatch(
                    f"the roster of {self.path} was fingerprinted with another key, so it is not known whether these "
                    f"users are on it. Copy the key that made it to {home.folder() / 'identity.key'}."
                )
            raise LedgerMismatch(
                f"{len(new)} of {len(people)} users are not on the roster of {self.path}. Leave them out, or open "
                "another account."
            )
        return new

    def debit(self, wanted: Release, *, again: bool) -> bytes | None:
        """Perform steps 1 and 2; return the value if one is already published."""
        key = (wanted.run, wanted.index)
        with self.writing() as book:
            found = book.releases.get(key)
            if found is None:
                self.afford([wanted.cost], f"release {wanted.name!r} of run {wanted.run!r}")
                names = ("run", "index", "name", "noise", "grid", "coordinates")
                body = {name: getattr(wanted, name) for name in names}
                self.append("debit", **body, event=wanted.event.to_dict())
            else:
                if found.identity != wanted.identity:
                    raise LedgerMismatch(
                        f"release {found.index} of run {found.run!r} is in the ledger as {found.identity}. "
                        f"Found {wanted.identity}: another program began the run. Start a new one."
                    )
                if found.state == "published":
                    return self._file.blob(*book.values[key])
                if not again:
                    raise LedgerMismatch(
                        f"release {found.name!r} of run {found.run!r} was interrupted, and others may have seen part "
                        "of it. It is paid for and cannot be drawn again: start a new run."
                    )
                self.append("retry", run=wanted.run, index=wanted.index)
        return None

    def publish(self, debited: Release, value: bytes) -> None:
        """Perform step 4. If several writers drew a value for one row, the first to get here publishes its own."""
        key = (debited.run, debited.index)
        with self.writing() as book:
            if book.releases[key].state != "debited":
                raise LedgerMismatch(
                    f"release {debited.index} of run {debited.run!r} was published by another writer "
                    "while it was drawn. The value drawn here was discarded: start the run again to read the other."
                )
            digest = hashlib.sha256(value).hexdigest()
            self.append("publish", run=debited.run, index=debited.index, sha256=digest, blob=value)

    def _admit(self, name: str, certified: bool) -> None:
        """Raise unless a new run has the kind, certified or not, that this ledger holds."""
        book = self.book
        kind, other = ("certified", "uncertified") if certified else ("uncertified", "certified")
        mixed = [run.name for run in book.runs.values() if run.certified != certified]
        if mixed:
            raise LedgerMismatch(
                f"run {name!r} is {kind} and this ledger holds {other} runs, such as {mixed[0]!r}. "
                "Use a separate ledger."
            )
        if not certified and book.ceiling is not None and book.ceiling.private:
            raise LedgerMismatch(
                f"run {name!r} is uncertified, so its epsilon is infinite, and this ledger has a ceiling of "
                f"{book.ceiling.epsilon:.6g}. Use a separate ledger without a ceiling."
            )


def _budget(ceiling: Budget | float | None) -> Budget | None:
    if ceiling is None or isinstance(ceiling, Budget):
        return ceiling
    if isinstance(ceiling, int | float) and not isinstance(ceiling, bool):
        return Budget(epsilon=float(ceiling), delta=_DELTA)
    raise TypeError(f"ceiling must be a tacitly.Budget or a number. Found {type(ceiling).__name__}.")
