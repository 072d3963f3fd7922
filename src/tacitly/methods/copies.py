"""Copies of one estimator, as cross-validation and searches make and fit them, share an account.

Every fit of a copy is paid for by the same people. So copies keep the ledger of their original, each as a run of its
own; where there is none they share one in memory, without a ceiling, and the certificate of each states what all fits
so far cost together. Copies in other processes (``n_jobs``) cannot add to it: from then on no certificate states a sum,
and a warning names what does, a ledger file. What a search computes from private rows besides (scores, the choice of
parameters) goes through no door and is not covered: :func:`tacitly.choose` makes a private choice.
"""

from __future__ import annotations

import secrets
import warnings

from tacitly.privacy.ledger import Ledger


class SearchWarning(UserWarning):
    """Copies of an estimator are fitted: each fit spends, and choosing by their scores is not covered."""


class Copies:
    """What an estimator and its copies have in common."""

    def __init__(self, *, apart: bool = False) -> None:
        self._accounts: dict[bool, Ledger] = {}
        self._fits = 0
        self.apart = apart
        """Whether some copies are in other processes, so that the account need not know all fits."""

    def sent(self) -> Copies:
        """Return what copies get that leave this process, or may; say where their fits would be counted."""
        if not self.apart:
            self.apart = True
            message = (
                "copies of one estimator were sent to other processes, or stored, and what they fit is not counted "
                "here: certificates state no sum of all fits any more. Give the estimator a ledger file, "
                "ledger=tacitly.Ledger('people.ledger'), in which all processes add up, or leave out n_jobs."
            )
            warnings.warn(message, SearchWarning, stacklevel=4)
        return Copies(apart=True)

    def account(self, *, certified: bool) -> Ledger:
        """Return the account of copies that were given none: one for certified fits, one for others."""
        return self._accounts.setdefault(certified, Ledger())

    def count(self, epsilon: float) -> None:
        """Count a fit; say at the second one what copies cost."""
        self._fits += 1
        if self._fits == 2:
            message = (
                f"copies of one estimator are being fitted (cross-validation or a search): every fit spends epsilon = "
                f"{epsilon:g} on its users. Their certificates state the sum so far; a ledger with a ceiling limits "
                "it. Scores and the choice of parameters come from private rows and are not covered: keep them to "
                "yourself, or use evaluate() and tacitly.choose."
            )
            from sklearn import get_config

            if not get_config()["enable_metadata_routing"]:
                message += (
                    " scikit-learn scores them without users, so by the population's predictions: "
                    "sklearn.set_config(enable_metadata_routing=True) passes the users on."
                )
            warnings.warn(message, SearchWarning, stacklevel=4)


def name_of_copy(run: str) -> str:
    """Return a name for a copy's run that no other process has."""
    return f"{run} {secrets.token_hex(4)}"
