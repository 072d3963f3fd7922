"""A node's card: what a site publishes about itself, so that a coordinator can register it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a node publishes about itself for its registration.

    >>> card = Card(name="north", key="ecdsa-...", mask_key="00", users=30, features=("age", "dose"))
    >>> Card.from_json(card.to_json()) == card
    True
    """

    name: str
    key: str
    mask_key: str
    users: int
    features: tuple[str, ...]
    target: str | None = None
    rows: int | None = None

    def to_json(self) -> str:
        """Encode as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Decode JSON."""
        content = json.loads(text)
        return cls(**{**content, "features": tuple(content["features"])})
