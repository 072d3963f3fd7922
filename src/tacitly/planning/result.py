"""The result of a plan: shares of the possible gain by method, ε and number of users, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tacitly.planning.shape import Shape

NOTHING = 0.02
"""Shares below this are called nothing."""

EQUAL = 0.02
"""Shares that differ by less are treated as equal: simulations differ that much by chance."""

_LITTLE = 0.01  # if the possible gain is below this share of the error of users alone, sharing is not worthwhile

_MEASURES = {
    "squared": ("squared errors", "own means and their own regressions"),
    "logistic": ("shares of wrong classes", "most frequent classes and their own models"),
    "poisson": ("Poisson deviances", "own means and their own models"),
}
_UNITS = {"squared": " of the variance", "logistic": "", "poisson": ""}


def definition(loss: str) -> str:
    """Return the definition of a share, for a target of this kind."""
    errors, alone = _MEASURES[loss]
    return (
        f"Share of what is possible: (alone - method at ε) / (alone - best method without privacy), in {errors} on "
        f"new rows. Alone is the better of users' {alone}, which share nothing; a fit that is worse counts as 0 %."
    )


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method at one ε with one number of users.

    ``share`` is the share of what is possible, on average; ``low`` and ``high`` are the smallest and the largest of the
    repetitions. ``error`` is the error on new rows: squared, as a part of the target's variance; for classes the share
    of wrong ones; for counts the Poisson deviance.
    """

    method: str
    epsilon: float
    users: int
    share: float
    low: float
    high: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The result of a plan. Everything in it was simulated on synthetic users.

    Attributes
    ----------
    shape : the public numbers that synthetic users were drawn from
    source : "described", "schema" or "sample": the source of these numbers and of the columns
    delta, adjacency, goal : of the guarantee; the share of what is possible that ``needed`` refers to
    lines : shares and errors, one :class:`Line` per method, ε and number of users
    needed : for each method and ε, the smallest number of users that reaches the goal, but at least a quarter of
        ``simulated_users``; None where no number does
    alone, pooled, possible : errors of users alone, of one model for all, of the best method without privacy
    recommended : the method with the largest share at the smallest ε for which one reaches the goal, or the default
        method if its share differs from that by less than ``EQUAL``; None if there is nothing to gain
    splits : for each method, the share of the budget (of μ²) of each of its releases
    left_out : methods that do not fit the shape, and the reasons
    simulated_users, repeats : number of synthetic users, and of repetitions
    """

    shape: Shape
    source: str
    delta: float
    adjacency: str
    goal: float
    lines: tuple[Line, ...]
    needed: Mapping[str, Mapping[float, int | None]]
    alone: float
    pooled: float
    possible: float
    recommended: str | None
    splits: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, str]
    simulated_users: int
    repeats: int

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that were simulated."""
        return tuple(self.needed)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The ε that were asked for."""
        return tuple(sorted({line.epsilon for line in self.lines}))

    @property
    def user_numbers(self) -> tuple[int, ...]:
        """The numbers of users of the lines."""
        return tuple(sorted({line.users for line in self.lines}))

    def table(self) -> list[dict[str, Any]]:
        """Return the lines as plain data: ``pandas.DataFrame(plan.table())``."""
        return [asdict(line) for line in self.lines]

    def line(self, epsilon: float, *, users: int | None = None, method: str | None = None) -> Line:
        """Return one line; by default for the recommended method and the number of users that was asked for."""
        wanted = method or self.recommended or self.methods[0], users or self.shape.users
        for line in self.lines:
            if (line.method, line.users) == wanted and math.isclose(line.epsilon, epsilon):
                return line
        raise ValueError(
            f"there is no line for {wanted[0]} at ε = {epsilon:g} with {wanted[1]:,} users. Found ε "
            f"{list(self.epsilons)}, users {list(self.user_numbers)}, methods {list(self.methods)}."
        )

    def sentence(self) -> str:
        """Return the answer in one sentence."""
        if self.recommended is None:
            return (
                f"With {self.shape}, there is next to nothing to gain by sharing: without any privacy the error would "
                f"be {self.possible:.3g}{_UNITS[self.shape.loss]}, and users have {self.alone:.3g} alone."
            )
        asked = [self.line(epsilon) for epsilon in self.epsilons]
        enough = next((line for line in asked if line.share >= self.goal), None)
        first = enough or asked[-1]
        parts = [f"With {self.shape}, ε = {first.epsilon:g} gives {in_words(first.share)} of what is possible"]
        less = asked[asked.index(first) - 1] if enough and asked.index(first) else None
        if less is not None:
            parts.append(f"ε = {less.epsilon:g} gives {in_words(less.share)}")
        short = less or (None if enough else first)
        if short is not None:
            users, goal = self.needed[short.method][short.epsilon], f"{self.goal:.0%}".replace("%", " %")
            parts[-1] += f" ({goal} with {users:,} users)" if users else f" (no number of users makes it {goal})"
        return "; ".join(parts) + "."

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {
            "definition": definition(self.shape.loss),
            "sentence": self.sentence(),
            "source": self.source,
            "shape": self.shape.to_dict(),
            "delta": self.delta,
            "adjacency": self.adjacency,
            "goal": self.goal,
            "recommended": self.recommended,
            "errors": {"alone": self.alone, "pooled": self.pooled, "possible": self.possible},
            "lines": self.table(),
            "needed": {
                method: [{"epsilon": epsilon, "users": users} for epsilon, users in found.items()]
                for method, found in self.needed.items()
            },
            "splits": {method: dict(split) for method, split in self.splits.items()},
            "left_out": dict(self.left_out),
            "simulated_users": self.simulated_users,
            "repeats": self.repeats,
        }

    def plot(self, path: Any = None) -> Any:
        """Draw shares against ε and against users; save to ``path`` if given. Needs the extra ``plots``."""
        from tacitly.planning.plot import drawn

        return drawn(self, path)

    def __str__(self) -> str:
        return self.sentence()


def gains(alone: float, possible: float) -> bool:
    """Whether the best method without privacy is better than users alone by more than one per cent."""
    return possible < alone * (1.0 - _LITTLE)


def in_words(share: float) -> str:
    """Return a share as text.

    >>> in_words(0.96), in_words(0.01), in_words(-0.4)
    ('96 %', 'nothing', 'nothing')
    """
    return "nothing" if share < NOTHING else f"{100.0 * share:.0f} %"
