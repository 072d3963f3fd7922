"""One certificate for a model that was fitted first and then moved by further calls, each a run of its own.

A later call reads what earlier ones released, which is public, and asks users again. So the releases of all calls
compose as those of one adaptive run, and the ε of a unit with data in every call is that of all releases together.
"""

from __future__ import annotations

from dataclasses import replace

from tacitly.privacy.accounting import compose
from tacitly.privacy.certificate import Certificate


def added_up(before: Certificate, now: Certificate, n_users: int) -> Certificate:
    """Return the certificate of all calls: its ε is that of a unit with data in every call."""
    releases = (*before.releases, *now.releases)
    epsilon = compose([release.cost for release in releases], now.budget.adjacency, now.budget.delta)
    budget = replace(now.budget, epsilon=epsilon * (1 + 1e-9))
    # What is public names the number of units, which may be another one: it is stated anew. An account is stated only
    # if all calls are on it, or it would seem to have spent less than the model.
    account = now.account if (before.account or {}).get("id") == (now.account or {}).get("id") else None
    return replace(now, releases=releases, budget=budget, n_users=n_users, public=(), account=account)
