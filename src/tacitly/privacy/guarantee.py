"""What is protected, how strongly, and what one release costs.

Four frozen values are passed through the whole system, so that a noise level is never separated from the sensitivity
that it belongs to:

* :class:`Budget`: the requested guarantee: (ε, δ), the adjacency and the unit.
* :class:`Sensitivity`: how far one unit can move a sum, under *each* adjacency.
* :class:`GaussianEvent`: one noisy sum that was or will be released.
* :class:`SelectionEvent`: one public candidate that was or will be chosen by its sum of private scores.

Adjacency. ``zero-out``: one unit's contribution is replaced by the zero vector; the roster, and so n, is public.
``replace-one``: one unit's data are replaced by arbitrary other data.

Sensitivity of a sum of contributions clipped to norm C. Under zero-out one summand p becomes 0, so the sum moves by
‖p‖ ≤ C. Under replace-one p becomes q, so it moves by ‖p − q‖ ≤ 2C.

Acute contributions. A query is *acute* if any two possible contributions have a non-negative inner product (positive
semi-definite matrices, histograms). Clipping scales a contribution by a non-negative factor, so it keeps this property.
Then replace-one costs only √2·C:

    ‖p − q‖² = ‖p‖² + ‖q‖² − 2⟨p, q⟩ ≤ ‖p‖² + ‖q‖² ≤ 2C².
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias


class Adjacency(StrEnum):
    """Which pairs of data sets must be indistinguishable."""

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @classmethod
    def _missing_(cls, value: object) -> Adjacency | None:
        raise ValueError(f"adjacency must be {' or '.join(repr(str(known)) for known in cls)}. Found {value!r}.")


class UncertifiedWarning(UserWarning):
    """A run without a valid guarantee: no noise, seeded noise, or constants from a paper that do not bound it."""


class LargeDeltaWarning(UserWarning):
    """δ is not below 1/n, so publishing the data of one random unit could satisfy the guarantee."""


class TooFewUsersWarning(UserWarning):
    """The privacy noise hides what was released. This is decided from public numbers, so it reveals nothing."""


class Unit(StrEnum):
    """The unit of privacy: whose data differ between two neighbouring data sets."""

    USER = "user"
    ROW = "row"
    LABEL = "label"


def _settle(thing: object, *names: str) -> None:
    """Convert fields to floats, so that the compared, the recorded and the applied values are identical."""
    for name in names:
        object.__setattr__(thing, name, float(getattr(thing, name)))


def positive(**values: float) -> None:
    """Raise unless every named value is a positive, finite number.

    >>> positive(sigma=1.0)
    >>> positive(sigma=-1.0)
    Traceback (most recent call last):
    ValueError: sigma must be positive and finite. Found -1.0.
    """
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite. Found {value!r}.")


def check_target(epsilon: float, delta: float) -> None:
    """Raise unless (ε, δ) is a meaningful target; ε = ∞ means no privacy."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number. Found {value!r}.")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive (or math.inf for no privacy). Found {epsilon!r}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1. Found {delta!r}.")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The requested guarantee; δ = 0 means pure ε, which only choices (:class:`SelectionEvent`) can satisfy.

    >>> Budget(epsilon=1.0, delta=1e-6)
    Budget(epsilon=1.0, delta=1e-06, adjacency=<Adjacency.ZERO_OUT: 'zero-out'>, unit=<Unit.USER: 'user'>)
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ZERO_OUT
    unit: Unit = Unit.USER

    def __post_init__(self) -> None:
        if self.delta != 0:  # δ = 0 is valid here, but not for noisy sums
            check_target(self.epsilon, self.delta)
        check_target(self.epsilon, 0.5)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        object.__setattr__(self, "unit", Unit(self.unit))

    @property
    def private(self) -> bool:
        """Whether any privacy is requested."""
        return math.isfinite(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """How far one unit can move a sum in Euclidean norm, under each adjacency.

    >>> Sensitivity.of_clip(3.0)
    Sensitivity(zero_out=3.0, replace_one=6.0, unit=<Unit.USER: 'user'>)
    """

    zero_out: float
    replace_one: float
    unit: Unit = Unit.USER

    def __post_init__(self) -> None:
        _settle(self, "zero_out", "replace_one")
        positive(zero_out=self.zero_out, replace_one=self.replace_one)
        if not self.zero_out <= self.replace_one <= 2 * self.zero_out:
            raise ValueError(
                "replace_one must lie between zero_out and twice zero_out. "
                f"Found {self.replace_one!r} with zero_out {self.zero_out!r}."
            )
        object.__setattr__(self, "unit", Unit(self.unit))

    @classmethod
    def of_clip(cls, clip: float, *, acute: bool = False, unit: Unit = Unit.USER) -> Sensitivity:
        """Sensitivity of a sum of contributions clipped to norm ``clip``, ``acute`` or not (see the module's proof)."""
        factor = math.sqrt(2.0) if acute else 2.0
        return cls(zero_out=clip, replace_one=factor * clip, unit=unit)

    def under(self, adjacency: Adjacency) -> float:
        """Return the bound for one adjacency."""
        return self.zero_out if adjacency is Adjacency.ZERO_OUT else self.replace_one


@dataclass(frozen=True, kw_only=True)
class GaussianEvent:
    """One sum released with Gaussian noise of standard deviation ``sigma`` in every coordinate.

    ``slack`` bounds the log-ratio between the distribution of the noise that is drawn (on a grid) and the ideal
    Gaussian rounded to that grid; the accountant charges for it. ``sigma = 0`` means that nothing protects the sum.
    """

    sigma: float
    sensitivity: Sensitivity
    sampling_rate: float = 1.0
    slack: float = 0.0

    def __post_init__(self) -> None:
        _settle(self, "sigma", "sampling_rate", "slack")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ValueError(f"sigma must be finite and not negative. Found {self.sigma!r}.")
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"sampling_rate must lie in (0, 1]. Found {self.sampling_rate!r}.")
        if not 0 <= self.slack < 1:
            raise ValueError(f"slack must lie in [0, 1). Found {self.slack!r}.")

    @property
    def private(self) -> bool:
        """Whether noise protects this release at all."""
        return self.sigma > 0

    def mu(self, adjacency: Adjacency) -> float:
        """Gaussian-DP parameter μ under full participation: sensitivity divided by σ."""
        if self.sigma == 0:
            return math.inf
        return self.sensitivity.under(Adjacency(adjacency)) / self.sigma

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the ledger and the certificate."""
        return {"mechanism": "gaussian", **asdict(self)}

    def unprotected(self) -> GaussianEvent:
        """Return the same sum without protection: its cost if someone can reproduce the noise."""
        return replace(self, sigma=0.0)

    def same_cost(self, other: Event) -> bool:
        """Whether both cost the same. Clips may be chosen during a run; the ratio of sensitivity to noise counts."""
        return (
            isinstance(other, GaussianEvent)
            and self.sensitivity.unit == other.sensitivity.unit
            and self.sampling_rate == other.sampling_rate
            and all(math.isclose(self.mu(adjacency), other.mu(adjacency)) for adjacency in Adjacency)
        )


@dataclass(frozen=True, kw_only=True)
class SelectionEvent:
    """One public candidate chosen by permute-and-flip: the smallest total loss after subtracting exponential noise.

    Every candidate's total L_c is a sum of user losses in [0, 1], and c wins if L_c − Z_c is smallest, with independent
    Z ~ Exponential(``scale``). Sensitivity: zeroing a user out lowers all totals, by at most 1 each; replacing the
    user's data moves each by at most 1, in either direction.

    Proof. Fix the noise of all other candidates and let t be the smallest L_j − Z_j among them. Then c wins with
    probability P(Z_c > L_c − t) = min(1, e^(−(L_c − t)/scale)). Under zero-out L_c and t both fall by at most 1, so
    L_c − t changes by at most 1; under replace-one by at most 2. Hence every probability changes by a factor within
    e^±(1/scale) or e^±(2/scale): pure differential privacy, δ = 0 (McKenna and Sheldon 2020). ``scale = 0`` means that
    nothing protects the choice.

    >>> event = SelectionEvent.of_epsilon(1.0, Adjacency.REPLACE_ONE)
    >>> event.scale, event.epsilon(Adjacency.ZERO_OUT), event.epsilon(Adjacency.REPLACE_ONE)
    (2.0, 0.5, 1.0)
    """

    scale: float
    sensitivity: Sensitivity = Sensitivity(zero_out=1.0, replace_one=2.0)
    sampling_rate: ClassVar[float] = 1.0
    slack: ClassVar[float] = 0.0  # losses are added as integers, and the draw is exact

    def __post_init__(self) -> None:
        _settle(self, "scale")
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise ValueError(f"scale must be finite and not negative. Found {self.scale!r}.")
        if (self.sensitivity.zero_out, self.sensitivity.replace_one) != (1.0, 2.0):
            raise ValueError(
                f"losses lie in [0, 1], so a user moves them by 1 or 2: zero_out must be 1 and replace_one 2. "
                f"Found {self.sensitivity}."
            )

    @classmethod
    def of_epsilon(cls, epsilon: float, adjacency: Adjacency) -> SelectionEvent:
        """Return the choice that costs ``epsilon`` under ``adjacency``, rounded so that it never costs more."""
        check_target(epsilon, 0.5)
        moved = 1.0 if Adjacency(adjacency) is Adjacency.ZERO_OUT else 2.0
        scale = moved / epsilon
        while scale > 0 and moved / scale > epsilon:
            scale = math.nextafter(scale, math.inf)
        return cls(scale=scale)

    @property
    def private(self) -> bool:
        """Whether noise protects this choice at all."""
        return self.scale > 0

    def epsilon(self, adjacency: Adjacency) -> float:
        """Pure ε of this choice."""
        return self.sensitivity.under(Adjacency(adjacency)) / self.scale if self.private else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the ledger and the certificate."""
        return {"mechanism": "selection", **asdict(self)}

    def unprotected(self) -> SelectionEvent:
        """Return the same choice without protection: its cost if someone can reproduce the noise."""
        return replace(self, scale=0.0)

    def same_cost(self, other: Event) -> bool:
        """Whether both cost the same."""
        return (
            isinstance(other, SelectionEvent)
            and self.sensitivity == other.sensitivity
            and math.isclose(self.scale, other.scale)
        )


Event: TypeAlias = GaussianEvent | SelectionEvent


def check_event(event: object) -> None:
    """Raise unless this is exactly an event class: a subclass could report another cost than it records."""
    if type(event) not in _MECHANISMS.values() or type(getattr(event, "sensitivity", None)) is not Sensitivity:
        raise TypeError(f"event must be a GaussianEvent or a SelectionEvent. Found {type(event).__name__}.")


_MECHANISMS: dict[str, type[Event]] = {"gaussian": GaussianEvent, "selection": SelectionEvent}


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Read the output of an event's ``to_dict``; raise on an unknown mechanism or field."""
    fields = dict(data)
    mechanism = fields.pop("mechanism", None)
    if mechanism not in _MECHANISMS:
        raise ValueError(f"mechanism must be one of {tuple(_MECHANISMS)}. Found {mechanism!r}.")
    fields["sensitivity"] = Sensitivity(**fields["sensitivity"])
    return _MECHANISMS[mechanism](**fields)
