"""What the ledger and the certificate say about one release: a noisy sum, or a choice by noisy sums.

The idea. A :class:`Release` is an event together with how its noise was made: everything a stranger
needs to count its cost, and nothing about the data. Rows of the ledger and entries of a certificate are
the same value, so that one can be compared with the other.

Noise is ``exact`` (discrete Gaussian on a grid, from the operating system's entropy), ``float``
(floating-point Gaussian rounded to a grid, same entropy), ``none``, or ``seeded``. The last two protect
nothing: whoever knows the seed can subtract the noise, so a seeded release counts as one without noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from tacitly.privacy.guarantee import Event, event_from_dict

NOISE_KINDS = ("exact", "float", "none", "seeded")
STATES = ("debited", "published")


@dataclass(frozen=True, kw_only=True)
class Release:
    """One noisy sum or choice, public. ``grid`` is the spacing of its values; 0 where there is no grid.

    ``coordinates`` is the length of what was added up: numbers of a sum, candidates of a choice.
    """

    run: str
    index: int
    name: str
    event: Event
    noise: str
    grid: float
    coordinates: int
    state: str
    attempts: int

    def __post_init__(self) -> None:
        if self.noise not in NOISE_KINDS:
            raise ValueError(f"noise must be one of {NOISE_KINDS}. Found {self.noise!r}.")
        if (self.noise == "none") == self.event.private:
            raise ValueError(
                f"noise must be 'none' exactly where sigma is 0, or scale. Found {self.noise!r} with {self.event}."
            )
        if not (math.isfinite(self.grid) and self.grid >= 0):
            raise ValueError(f"grid must be finite and not negative. Found {self.grid!r}.")
        if self.coordinates < 1:
            raise ValueError(f"coordinates must be at least 1. Found {self.coordinates!r}.")
        if self.state not in STATES:
            raise ValueError(f"state must be one of {STATES}. Found {self.state!r}.")

    @property
    def cost(self) -> Event:
        """The event as it counts: noise that somebody can draw again protects nothing."""
        return self.event.unprotected() if self.noise == "seeded" else self.event

    @property
    def identity(self) -> tuple[str, Event, str, float, int]:
        """What must not change when a program is run again."""
        return self.name, self.event, self.noise, self.grid, self.coordinates

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the certificate."""
        return {**asdict(self), "event": self.event.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Release:
        """Read what :meth:`to_dict` wrote; a field that is unknown or missing is refused."""
        check_fields("release", data, {field.name for field in fields(cls)})
        try:
            event = event_from_dict(data["event"])
        except (TypeError, KeyError) as error:
            raise ValueError(f"the event of a release cannot be read: {error}.") from error
        return cls(**{**data, "event": event})


def same_costs(released: Sequence[Event], planned: Sequence[Event]) -> bool:
    """Whether both cost the same, event by event, in any order.

    Clips may be found along the way, so σ and the sensitivity may differ from the plan; what was planned
    is their ratio.
    """
    left = list(planned)
    for event in released:
        match = next((i for i, candidate in enumerate(left) if event.same_cost(candidate)), None)
        if match is None:
            return False
        del left[match]
    return not left


def check_fields(what: str, data: Mapping[str, Any], expected: set[str]) -> None:
    """Raise unless ``data`` has exactly the fields ``expected``."""
    if set(data) != expected:
        raise ValueError(
            f"a {what} must have exactly the fields {sorted(expected)}. "
            f"Unknown: {sorted(set(data) - expected)}; missing: {sorted(expected - set(data))}."
        )


def canonical_json(data: Any) -> str:
    """One text per value: sorted keys, no spaces, infinities as strings, plain data only.

    >>> canonical_json({"b": (1, math.inf), "a": None})
    '{"a":null,"b":[1,"inf"]}'
    """
    return json.dumps(plain(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(data: Any) -> Any:
    """Turn NumPy scalars, tuples and infinities into what JSON knows."""
    if isinstance(data, np.generic):
        data = data.item()
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    return [plain(value) for value in data] if isinstance(data, list | tuple) else data
