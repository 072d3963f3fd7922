"""How commands find the account that a fit debits: the one that its users have.

By default a fit debits the account of its users. It is found by keyed fingerprints of the ids (:mod:`tacitly.privacy
.people`) among the ledgers that this machine has seen, or made in the user's state folder. So a second fit on the same
people is told what they have spent before it spends more, and the account's ceiling, if it has one, covers both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacitly.cli.console import say
from tacitly.privacy import home

if TYPE_CHECKING:
    from tacitly.privacy.certificate import Certificate
    from tacitly.privacy.guarantee import Budget
    from tacitly.privacy.ledger import Ledger
    from tacitly.privacy.people import People


def account_of(certificate: Certificate) -> Path | None:
    """Return the ledger that a certificate is recorded in, where this machine has seen it."""
    seen = None if certificate.account is None else home.anchor(str(certificate.account["id"]))
    return Path(seen.path) if seen is not None and Path(seen.path).is_file() else None


@contextmanager
def opened_account(ledger: Path | None, budget: Budget, ids: Iterable[Any], run: str) -> Iterator[tuple[Ledger, Path]]:
    """Open the account to debit: the named ledger, or the one that these users have, or a new one.

    A fit that cannot be certified (ε = ∞) keeps no account: a file of its own in the state folder holds what was
    released, so that it can be resumed.
    """
    from tacitly.privacy.ledger import Ledger
    from tacitly.privacy.people import People

    people = People.of(ids, home.secret())
    others = list(accounts_of(people, besides=ledger))
    path = ledger or (_found(others, run) if budget.private else None) or _new_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Ledger(path) as account:
        if budget.private:
            tell(account, budget, people, [found for found in others if found != account.path])
        yield account, path


def accounts_of(people: People, *, besides: Path | None = None) -> Iterator[str]:
    """Yield the ledgers known here that have any of these people, most first."""
    from tacitly.privacy.ledger import Ledger, LedgerMismatch

    found: list[tuple[int, str]] = []
    for seen in home.known().values():
        path = Path(seen.path)
        if not path.is_file() or (besides is not None and besides.exists() and path.samefile(besides)):
            continue
        try:
            with Ledger(path) as account:
                shared = max((people.shared(known) for known in account.people()), default=0)
        except (LedgerMismatch, OSError):
            continue
        if shared:
            found.append((shared, seen.path))
    yield from (path for _, path in sorted(found, reverse=True))


def tell(account: Ledger, budget: Budget, people: People, others: list[str]) -> None:
    """Say what these users have spent, and what this fit brings it to, before it spends anything."""
    from tacitly.privacy.certificate import shown
    from tacitly.privacy.ledger import Ledger

    delta = budget.delta or 1e-6
    for name, place in [(account.path, "this account")] + [(other, f"another account, {other},") for other in others]:
        known = account if name == account.path else Ledger(str(name))
        shared = max((people.shared(part) for part in known.people()), default=0)
        spent = known.spent(budget.adjacency, delta=delta)
        if known is not account:
            known.close()
        if shared and spent:
            say(
                f"{shared} of {len(people)} users have spent ε = {shown(spent)} on {place} ({budget.adjacency}, δ = {delta:g})"
            )


def _found(others: list[str], run: str) -> Path | None:
    if len(others) > 1:
        raise ValueError(
            f"these users are in {len(others)} accounts: {', '.join(others)}. Name the one to debit with --ledger."
        )
    return Path(others[0]) if others else None


def _new_path() -> Path:
    import secrets

    return home.folder() / "ledgers" / f"{secrets.token_hex(8)}.ledger"
