"""How a certificate is recorded in its account, and what it states about the account.

The statement of a certificate is appended to the ledger's chain before the certificate is written. The certificate then
names that entry and its hash, so each commits to the other: a ledger that was restored from an older copy or rewritten
no longer contains the entry, and a certificate that was edited no longer matches the statement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from tacitly.privacy.accounting import compose
from tacitly.privacy.book import now, period
from tacitly.privacy.guarantee import Budget, GaussianEvent
from tacitly.privacy.release import plain

if TYPE_CHECKING:
    from tacitly.privacy.certificate import Certificate
    from tacitly.privacy.ledger import Ledger

_DELTA = 1e-6  # for totals of noisy sums in an account whose certificates are at δ = 0


def totals(ledger: Ledger, budget: Budget) -> dict[str, Any]:
    """Return the cost of everything on an account, in total and in this period, at the δ of the ceiling or budget."""
    book = ledger.book
    standing = book.ceiling or budget
    gaussian = any(isinstance(debit.cost, GaussianEvent) for debit in book.debits)
    delta = standing.delta or (_DELTA if gaussian else 0.0)
    name, since = period(book.renews, now(book.at))
    sound = all(run.certified for run in book.runs.values())

    def cost(since: str) -> float:
        return compose(book.costs(since=since), standing.adjacency, delta) if sound else math.inf

    everything = cost("")
    found = {
        "id": book.account["id"],
        "epsilon": everything,
        "adjacency": standing.adjacency,
        "delta": delta,
        "runs": len(book.runs),
        "period": name,
        "period_epsilon": everything if book.renews is None else cost(since),
        "renews": book.renews,
        "ceiling": None if book.ceiling is None else asdict(book.ceiling),
        "entries": book.entries,
        "head": book.head,
    }
    return dict(plain(found))


def record(certificate: Certificate, ledger: Ledger, run: str) -> Certificate:
    """Append a certificate's statement to its account; return it with the totals and the entry."""
    stated = certificate

    def statement() -> Mapping[str, Any]:
        nonlocal stated
        stated = replace(certificate, account=totals(ledger, certificate.budget), signature=None)
        return stated.statement()

    entry, head = ledger.certify(run, statement)
    assert stated.account is not None
    account: Mapping[str, Any] = {**stated.account, "entries": entry, "head": head}
    return replace(stated, account=account)
