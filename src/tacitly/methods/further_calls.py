"""One certificate for a fit and further calls on the same model, each of them a run in the ledger.

A later call reads what earlier ones released, which is public, and asks users again. So the releases of all calls
compose as those of one adaptive run, and the ε of a unit with data in every call is that of all releases together.
What the calls must have in common is checked before a further one spends anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.federation.engine import Population
from tacitly.methods.base import PrivateModel, Procedure
from tacitly.privacy.accounting import compose
from tacitly.privacy.certificate import Certificate
from tacitly.privacy.guarantee import Budget, Unit
from tacitly.privacy.ledger import Ledger, Run


class Continued(PrivateModel):
    """A model that further calls move. Not a dataclass: what they leave here is no parameter."""

    _before: Certificate | None = None  # of the calls before, during a further one
    _roster: npt.NDArray[Any] | None = None  # everybody who was asked so far, where that is known here
    _asked: npt.NDArray[Any] | None = None  # the same, with those of the call that is going on

    def _check_account(self, before: Certificate) -> None:
        """Raise unless a further call is charged where the calls before were charged, and that still shows there."""
        account = self._account(certified=before.certified)
        stated = before.account or {}
        if stated.get("id") != (account.id if isinstance(account, Ledger) else None):
            raise ValueError(
                "further calls must be charged to the account of the fit: the certificate adds up all calls. Set "
                "ledger to that account (tacitly.Ledger(path)), or start anew with fit()."
            )
        if isinstance(account, Ledger) and account.hash_at(stated["entries"]) != stated["head"]:
            raise ValueError(
                "the account lacks entries that the certificate of the earlier calls names: the file is an older copy, "
                "and would state less than was spent. Set ledger to the newest copy, or start anew with fit()."
            )

    def _placed(self, source: Population, procedure: Procedure) -> Population:
        population = super()._placed(source, procedure)
        if self._before is not None:
            budget = self._budget(self._unit(source))
            if budget.unit is not self._before.unit:
                raise ValueError(
                    f"further calls must have the unit of the fit. Found {budget.unit} after {self._before.unit}: give "
                    "users in all calls or in none, or start anew with fit()."
                )
            terms, stated = ((each.adjacency, each.delta) for each in (budget, self._before.budget))
            if terms != stated:  # what runs announce and what their certificate states could not agree
                raise ValueError(
                    "further calls must have the same adjacency and delta as the fit. Found "
                    f"{budget.adjacency}, {budget.delta:g} after {stated[0]}, {stated[1]:g}: start anew with fit()."
                )
            if self._stated_trust(budget, population.trust) != self._before.trust:
                raise ValueError(
                    "further calls must run where the fit ran: certificates state one trust. Start anew with fit()."
                )
        self._asked = self._everybody(source.users)
        return population

    def _everybody(self, users: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
        """Return these users and those of the calls before, as far as they are known here."""
        known = getattr(self, "users_", None) if self._roster is None else self._roster
        rosters = [ids for ids in (known if self._before is not None else None, users) if ids is not None]
        return np.unique(np.concatenate([np.asarray(ids, dtype=str) for ids in rosters])) if rosters else None

    def _public_config(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Name the runs that this one continues: who states what it cost must state theirs too."""
        config = super()._public_config(sizes)
        if self._before is not None:
            config["after"] = list(dict.fromkeys(release.run for release in self._before.releases))
        return config

    def _certify(self, run: Run, budget: Budget, units: int, engine_trust: str | None) -> None:
        before = None if self._before is None else self.__dict__.get("_run")
        super()._certify(run, budget, units, engine_trust)
        if before is not None:
            before.finish()  # what a later call has added to is not resumed, and verifies as part of the whole
        self._roster = self._asked  # only now: whom a call that failed would have asked is not in the model

    def _added_up(self, before: Certificate) -> Certificate:
        """Return the certificate of all calls: its ε is that of a unit with data in every call.

        Its number of units is that of all rows; of users, that of all who are known here to have been asked: never more
        than there are.
        """
        now = self.certificate_
        if now.unit is Unit.ROW:
            units = before.n_users + now.n_users
        else:
            units = max(before.n_users, now.n_users, 0 if self._roster is None else len(self._roster))
        releases = (*before.releases, *now.releases)
        epsilon = compose([release.cost for release in releases], now.budget.adjacency, now.budget.delta)
        return replace(
            now,
            releases=releases,
            budget=replace(now.budget, epsilon=epsilon * (1 + 1e-9)),
            n_users=units,
            notes=tuple(dict.fromkeys((*before.notes, *now.notes))),
            not_covered=tuple(dict.fromkeys((*before.not_covered, *now.not_covered))),
            public=(),  # it names the number of units
        )
