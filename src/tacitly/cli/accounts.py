"""Finds the account that a fit debits: by default, the account of its users.

An account is found by keyed fingerprints of its users' ids (:mod:`tacitly.privacy.people`) among the ledgers that this
machine has seen, or created in the user's state folder (:mod:`tacitly.privacy.home`). So a second fit on the same
people first states what they have already spent, and the account's ceiling, if it has one, covers both fits. If rows
are the unit of privacy, the table as a whole is recognised.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacitly.cli.console import say, wrapped
from tacitly.portable import AlreadyLocked, lock_file
from tacitly.privacy import home

if TYPE_CHECKING:
    from tacitly.privacy.certificate import Certificate
    from tacitly.privacy.guarantee import Budget, Event
    from tacitly.privacy.ledger import Ledger
    from tacitly.privacy.people import People


def account_of(certificate: Certificate) -> Path | None:
    """Return the ledger in which a certificate is recorded, if this machine has seen it."""
    try:
        seen = None if certificate.account is None else home.anchor(str(certificate.account["id"]))
    except ValueError:  # not the id of an account
        return None
    return Path(seen.path) if seen is not None and Path(seen.path).is_file() else None


@dataclass(frozen=True)
class Charge:
    """The account that a run debits, the run's name, and what is known of these people's other accounts."""

    account: Ledger
    path: Path
    run: str
    notes: tuple[str, ...]


@contextmanager
def opened_account(model: Any, cohort: Any, ledger: Path | None, out: Path) -> Iterator[Path]:
    """Give a model the account to debit (the named ledger, its users' account, or a new one) and a run in it.

    A fit that cannot be certified (ε = ∞) debits no account: its ledger is written next to the model.
    """
    from tacitly.methods.base import people_of
    from tacitly.privacy.ledger import Ledger

    budget, planned = model.plan(cohort)
    if not budget.private:
        path = ledger or out.with_name(f"{out.name}.ledger")
        with Ledger(path) as model.ledger:
            yield path
        return
    people = people_of(cohort, budget.unit, home.secret())
    with charged(budget, planned, people, ledger, out.name) as charge:
        model.ledger, model.run, model.account_notes = charge.account, charge.run, charge.notes
        yield charge.path


@contextmanager
def charged(
    budget: Budget, planned: Sequence[Event], people: People, ledger: Path | None, name: str, what: str = "fit"
) -> Iterator[Charge]:
    """Open the account of these people (or the named ledger) for a run, and say what they have spent.

    ``name`` is that of the run; ``what`` says what the run is.
    """
    from tacitly.privacy.ledger import Ledger

    with _one_at_a_time():
        others = accounts_of(people, besides=ledger)
        path = ledger or _found(others) or _new_path()
        _refuse_lost(path)
        if not path.exists():
            with Ledger(path) as new:
                new.enrol(people)
                _remember(new, people)
    with Ledger(path) as account:
        run = _free_name(account, name)
        _tell(account, budget, people, () if run in account.book.runs else planned, what)
        _remember(account, people)
        elsewhere = [other for other in others if other != account.path]
        yield Charge(account, path, run, tuple(_tell_of(other, budget, people) for other in elsewhere))


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one process at a time find or create an account; two could otherwise create one each for the same people."""
    while True:
        try:
            lock = lock_file(home.folder() / "accounts.lock")
            break
        except AlreadyLocked:
            time.sleep(0.05)
    try:
        yield
    finally:
        lock.release()


def accounts_of(people: People, *, besides: Path | None = None) -> list[str]:
    """Return known ledgers that contain any of these people: most of them first, then by what was spent."""
    from tacitly.privacy.ledger import Ledger, LedgerMismatch

    found: list[tuple[int, float, str]] = []
    for name, seen in home.known().items():
        path, kept = Path(seen.path), home.people_of(name)
        if besides is not None and besides.exists() and path.exists() and path.samefile(besides):
            continue
        theirs = 0 if kept is None else people.shared(kept)
        if kept is not None and kept.key != people.key:
            say(f"{seen.path} was created with another key, so these users cannot be compared with its users")
        if not path.is_file():
            if theirs and seen.entries > 1:
                raise ValueError(_gone(name, seen))
            continue
        try:
            with Ledger(path) as account:
                sound = all(run.certified for run in account.book.runs.values())
                shared = _shared(account, people) if sound else 0  # without a guarantee there is nothing to add up
                spent = account.spent(delta=1e-6) if shared else 0.0
        except (LedgerMismatch, OSError) as error:
            if theirs:
                raise  # it is these users' account, so the error must not be ignored
            say(f"an account could not be read, so these users cannot be compared with its users: {error}")
            continue
        if shared:
            found.append((shared, spent, seen.path))
    return [path for _, _, path in sorted(found, reverse=True)]


def _gone(name: str, seen: home.Anchor) -> str:
    return (
        f"these users have an account, {seen.path}, with {seen.entries} entries, but the file is missing. Restore it "
        f"from a backup; if it is no longer needed, remove {home.anchor_file(name)}."
    )


def _remember(account: Ledger, people: People) -> None:
    """Store the users of an account outside of the account too."""
    everybody = people
    for known in account.people():
        everybody = everybody.joined(known) if known.key == people.key else everybody
    home.remember_people(account.id, everybody)


def _tell(account: Ledger, budget: Budget, people: People, planned: Sequence[Event], what: str) -> None:
    """Print what these users have spent, and the total after this run, before anything is spent."""
    from tacitly.privacy.certificate import shown

    shared = _shared(account, people)
    delta = account.ceiling.delta if account.ceiling is not None else budget.delta or 1e-6
    adjacency = account.ceiling.adjacency if account.ceiling is not None else budget.adjacency
    spent = account.spent(adjacency, delta=delta)
    if not shared or not spent:
        return
    whose = "these users" if shared == len(people) else f"{shared} of these {len(people)} users"
    if budget.unit != "user":
        whose = "this table's rows"
    after = f"this {what} brings it to {shown(account.with_more(planned, adjacency, delta))}" if planned else "resuming"
    say(wrapped(f"{whose} have spent ε = {shown(spent)} ({adjacency}, δ = {delta:g}); {after}"))
    say(f"account: {account.path}")
    if account.ceiling is None:
        ceiling = "(no ceiling: 'tacitly budget limit' sets one. Different people with the same ids? Use --ledger)"
        say(wrapped(ceiling))


def _tell_of(other: str, budget: Budget, people: People) -> str:
    """Print, and return for the certificate, what these users have spent on an account that is not debited."""
    from tacitly.privacy.certificate import shown
    from tacitly.privacy.ledger import Ledger

    with Ledger(other) as account:
        shared, delta = _shared(account, people), budget.delta or 1e-6
        spent = shown(account.spent(budget.adjacency, delta=delta))
        note = (
            f"{shared} of {len(people)} {budget.unit} ids are also on another account, {account.id}, which has spent "
            f"ε = {spent} ({budget.adjacency}, δ = {delta:g}) and is not counted here"
        )
    say(wrapped(f"{note} (correct if they are different people with the same ids): {other}"))
    return note


def _shared(account: Ledger, people: People) -> int:
    return max((people.shared(known) for known in account.people()), default=0)


def _found(others: list[str]) -> Path | None:
    """Return the account with most of these people; raise if this would bypass the ceiling of another account."""
    from tacitly.privacy.ledger import Ledger

    limited = []
    for path in others:
        with Ledger(path) as account:
            limited += [path] if account.ceiling is not None else []
    if limited and len(others) > 1:
        raise ValueError(
            f"these users are in {len(others)} accounts, and {', '.join(limited)} has a ceiling. Choose the account to "
            "debit with --ledger."
        )
    return Path(others[0]) if others else None


def _new_path() -> Path:
    path = home.folder() / "ledgers" / f"{secrets.token_hex(8)}.ledger"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _refuse_lost(path: Path) -> None:
    """Raise if the ledger that was at this path is missing: a new one would not contain what was spent."""
    if path.exists():
        return
    place = str(path.resolve())
    for account, seen in home.known().items():
        if seen.path == place and seen.entries > 1:
            raise ValueError(_gone(account, seen).replace("these users have an account, ", "there was an account, "))


def _free_name(account: Ledger, base: str) -> str:
    """Return the run's name: that of the model folder, with a number appended if such runs are already finished."""
    runs, name, number = account.book.runs, base, 1
    while name in runs and runs[name].state == "finished":
        number += 1
        name = f"{base} {number}"
    return name
