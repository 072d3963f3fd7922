"""Releases: what the ledger and the certificate record about one noisy sum or choice.

A :class:`Release` is an event together with how its noise was drawn: everything needed to compute its cost, and nothing
about the data. Rows of the ledger and entries of a certificate are the same type, so that they can be compared.

Noise is ``exact`` (discrete Gaussian on a grid, with entropy from the operating system), ``float`` (floating-point
Gaussian rounded to a grid, same entropy), ``none``, or ``seeded``. The last two protect nothing: anyone who knows the
seed can subtract the noise, so a seeded release counts as one without noise.
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
    """One noisy sum or choice: public. ``grid`` is the spacing of its values, 0 if there is no grid.

    ``coordinates`` is the number of coordinates of a sum, or of candidates of a choice.
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
                f"noise must be 'none' if and only if sigma (or scale) is 0. Found {self.noise!r} with {self.event}."
            )
        if not (math.isfinite(self.grid) and self.grid >= 0):
            raise ValueError(f"grid must be finite and not negative. Found {self.grid!r}.")
        if self.coordinates < 1:
            raise ValueError(f"coordinates must be at least 1. Found {self.coordinates!r}.")
        if self.state not in STATES:
            raise ValueError(f"state must be one of {STATES}. Found {self.state!r}.")

    @property
    def cost(self) -> Event:
        """The event as it is charged: noise that someone can reproduce protects nothing."""
        return self.event.unprotected() if self.noise == "seeded" else self.event

    @property
    def identity(self) -> tuple[str, Event, str, float, int]:
        """What must not change when a program is run again to resume."""
        return self.name, self.event, self.noise, self.grid, self.coordinates

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the certificate."""
        return {**asdict(self), "event": self.event.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Release:
        """Read the output of :meth:`to_dict`; raise on unknown or missing fields."""
        check_fields("release", data, {field.name for field in fields(cls)})
        try:
            event = event_from_dict(data["event"])
        except (TypeError, KeyError) as error:
            raise ValueError(f"the event of a release cannot be read: {error}.") from error
        return cls(**{**data, "event": event})


def same_costs(released: Sequence[Event], planned: Sequence[Event]) -> bool:
    """Whether both cost the same, event by event, in any order.

    Clips may be chosen during a run, so σ and sensitivity may differ from the plan; their ratio is what was planned.
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
    """Return the canonical JSON of a value: sorted keys, no spaces, infinities as strings, plain data only.

    >>> canonical_json({"b": (1, math.inf), "a": None})
    '{"a":null,"b":[1,"inf"]}'
    """
    return json.dumps(plain(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain(data: Any) -> Any:
    """Convert NumPy scalars, tuples and infinities to JSON types."""
    if isinstance(data, np.generic):
        data = data.item()
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    return [plain(value) for value in data] if isinstance(data, list | tuple) else data
