"""A table described by public numbers: the numbers of users, rows and columns, and shares of the target's variance.

The target of a synthetic row is

    y = x·w̄ + lᵢ + x·dᵢ + e

with features x of variance one. Its own variance is one, and has four parts: effects common to all users (x·w̄), users'
own levels lᵢ, users' own slopes (x·dᵢ), and noise e that no model explains. ``noise``, ``levels`` and ``slopes`` are
three of these four shares; the common effects have the rest. So "noise to signal" is noise ÷ (1 − noise), and "how much
users differ" is levels and slopes. Classes and counts are derived from such a number (:mod:`tacitly.planning.targets`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tacitly.privacy.guarantee import positive

_LEAST = 1e-9
_LOSSES = ("squared", "logistic", "poisson")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is known about a table before it is read; everything in it is public or a guess.

    Parameters
    ----------
    users
        Number of users.
    rows
        Rows per user: a number, or the smallest and the largest one.
    features
        Number of numeric columns to learn from; a category with k levels counts as k − 1.
    noise
        Share of the target's variance that nothing explains.
    levels
        Share that is due to users' own levels: some users have higher targets than others, independent of features.
    slopes
        Share that is due to features having different effects for different users.
    directions
        Number of directions in which users' slopes differ; None for all features.
    between
        Share of the features' own variance that lies between users: 1 for columns such as sex, which never change.
    target
        Whether there is a target. Without one the shared components explain 1 − noise of the variance of rows.
    loss
        ``"squared"`` for a number to predict, ``"logistic"`` for a class, ``"poisson"`` for a count.
    classes
        Number of classes, equally frequent.
    mean_count
        Mean of the counts.

    >>> shape = Shape(users=3000, rows=15, features=40)
    >>> round(shape.common, 3), shape.row_range
    (0.2, (15, 15))
    """

    users: int
    rows: int | tuple[int, int]
    features: int
    noise: float = 0.4
    levels: float = 0.3
    slopes: float = 0.1
    directions: int | None = None
    between: float = 0.3
    target: bool = True
    loss: str = "squared"
    classes: int = 2
    mean_count: float = 1.0

    def __post_init__(self) -> None:
        _whole(users=self.users, features=self.features)
        low, high = self.row_range
        _whole(rows=low)
        if low > high:
            raise ValueError(f"rows must be a number, or the smallest and then the largest one. Found {self.rows!r}.")
        shares = {"noise": self.noise, "levels": self.levels, "slopes": self.slopes, "between": self.between}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name} is a share of variance: it must lie between 0 and 1. Found {share!r}.")
        if self.common < -_LEAST:
            raise ValueError(
                "noise, levels and slopes are shares of the target's variance: together they must be at most 1. "
                f"Found {self.noise + self.levels + self.slopes:g}."
            )
        self._check_target()
        if self.directions is not None and not 1 <= self.directions <= self.features:
            raise ValueError(f"directions must lie between 1 and features. Found {self.directions!r}.")

    def _check_target(self) -> None:
        if self.loss not in _LOSSES:
            raise ValueError(f"loss must be one of {_LOSSES}. Found {self.loss!r}.")
        if self.loss != "squared" and not (self.target and self.noise > 0):
            raise ValueError(f"classes and counts are always noisy: noise must be above 0. Found {self.noise!r}.")
        if self.classes != int(self.classes) or self.classes < 2:
            raise ValueError(f"classes is the number of classes: at least 2. Found {self.classes!r}.")
        positive(mean_count=self.mean_count)

    @property
    def row_range(self) -> tuple[int, int]:
        """Smallest and largest number of rows of a user."""
        return self.rows if isinstance(self.rows, tuple) else (self.rows, self.rows)

    @property
    def common(self) -> float:
        """Share of the target's variance that features explain in the same way for all users."""
        return 1.0 - self.noise - self.levels - self.slopes

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        low, high = self.row_range
        rows = f"{low}" if low == high else f"{low} to {high}"
        of_rows, features = f"row{'s' * (high > 1)}", f"feature{'s' * (self.features > 1)}"
        kind = {"squared": "", "logistic": f" and {self.classes} classes", "poisson": " and counts"}[self.loss]
        joined = "," if kind else " and"
        return f"{self.users:,} users of {rows} {of_rows}{joined} {self.features} {features}{kind}"


def _whole(**values: int) -> None:
    for name, value in values.items():
        positive(**{name: value})
        if value != int(value):
            raise ValueError(f"{name} must be a whole number. Found {value!r}.")
