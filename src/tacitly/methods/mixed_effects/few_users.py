"""Whether there are enough users for the features, and messages for the case that there are not.

Everything follows from public numbers: users, features, budget, and the types of the columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacitly.data.schema import Schema
from tacitly.methods.mixed_effects.algorithm import users_needed
from tacitly.privacy.guarantee import Budget


@dataclass(frozen=True)
class FewUsers:
    """Messages about a fit of ``n_users`` users and ``n_features`` features under a budget."""

    budget: Budget
    n_users: int
    n_features: int
    schema: Schema | None = None

    def fallback(self) -> str:
        """Return the reason why every user falls back on their own rows, and advice."""
        if not self.budget.private:
            return "the shared prior predicts no better than users' own means: every user falls back on their own rows."
        features, needed = self._features_in_words(), users_needed(self.n_features + 1, self.budget)
        if self.n_users >= needed:
            return (
                f"sharing the {features} predicts no better than users' own rows, or the privacy noise hides the gain: "
                "every user falls back on their own rows. Other or fewer columns, or a larger epsilon, may help."
            )
        return (
            f"the privacy noise hides the effects of {features}: every user falls back on their own rows. About "
            f"{rounded(needed):,} users are enough at epsilon = {self.budget.epsilon:g}. Found {self.n_users:,}. Fewer "
            f"columns, declared ranges{self._undeclared_text()} or a larger epsilon also help."
        )

    def caution(self, size: int) -> str:
        """Return a caution if ``size`` weights are many for the number of users; else an empty text."""
        needed = users_needed(size, self.budget)
        if self.n_users >= needed:
            return ""
        return (
            f"few users for {size - 1} coefficients: about {rounded(needed):,} are needed to make the privacy noise "
            f"small at epsilon = {self.budget.epsilon:g}. Found {self.n_users:,}. Estimates may be shrunk towards zero "
            "by more than their intervals show."
        )

    def _undeclared_text(self) -> str:
        """Return the advice to declare the levels of undeclared text columns; empty if there are none."""
        columns = () if self.schema is None else self.schema.columns
        names = [column.name for column in columns if column.kind == "hashed"]
        return f", declared levels (of {', '.join(names)})" if names else ""

    def _features_in_words(self) -> str:
        columns = self.n_features if self.schema is None else len(self.schema.columns)
        if columns == self.n_features:
            return f"{columns} features"
        return f"{columns} columns ({self.n_features} features: each level, or group of levels, of text is one)"


def rounded(users: int) -> int:
    """Return a rule of thumb with two digits, rounded up.

    >>> rounded(33_824), rounded(504)
    (34000, 510)
    """
    unit = int(10 ** max(len(str(users)) - 2, 0))
    return math.ceil(users / unit) * unit
