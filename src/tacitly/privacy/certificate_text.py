"""Strict parsing of a certificate's text: every field must be known, present, and of the right type and range.

Part of :mod:`tacitly.privacy.verification`; nothing here uses the classes that wrote the certificate.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tacitly.privacy.second_opinion import SENSITIVITY


def read(text: str) -> dict[str, Any]:
    """Parse the text and check every field against its schema."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"a field occurs twice among {sorted(key for key, _ in pairs)}.")
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON.")

    parsed = json.loads(text, object_pairs_hook=without_duplicates, parse_constant=refuse)
    if isinstance(parsed, dict) and parsed.get("format") != _FORMAT:
        raise ValueError(
            f"the format must be {_FORMAT!r}. Found {parsed.get('format')!r}: use the version of tacitly that wrote it."
        )
    data: dict[str, Any] = _conform("certificate", parsed, _CERTIFICATE)
    return data


def writable(data: Any) -> Any:
    """Convert infinities back to the string that represents them in the text."""
    if isinstance(data, dict):
        return {key: writable(value) for key, value in data.items()}
    if isinstance(data, list):
        return [writable(value) for value in data]
    return "inf" if isinstance(data, float) and math.isinf(data) else data


def _conform(path: str, value: Any, shape: Any) -> Any:
    """Return ``value`` with infinities parsed; raise with the path of a field that does not have its ``shape``."""
    if isinstance(shape, dict):
        if not isinstance(value, dict) or set(value) != set(shape):
            found = sorted(value) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"{path} must have exactly the fields {sorted(shape)}. Found {found}.")
        return {key: _conform(f"{path}.{key}", value[key], shape[key]) for key in value}
    if isinstance(shape, _Either):
        known, kind = shape, value.get(shape.field) if isinstance(value, dict) else None
        shape = shape.shapes.get(kind) if isinstance(kind, str) else None
        if shape is None:
            raise ValueError(f"{path}.{known.field} must be one of {tuple(known.shapes)}. Found {kind!r}.")
        return _conform(path, value, shape)
    if isinstance(shape, _Maybe):
        return None if value is None else _conform(path, value, shape.shape)
    if isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{path} must be a list. Found {type(value).__name__}.")
        return [_conform(f"{path}[{i}]", entry, shape[0]) for i, entry in enumerate(value)]
    if value == "inf" and shape.infinite:
        return math.inf
    if not shape.holds(value):
        raise ValueError(f"{path} must be {shape.meaning}. Found {value!r}.")
    return value


@dataclass(frozen=True)
class _Either:
    """One of several shapes, identified by the value of one field."""

    field: str
    shapes: Mapping[str, Any]


@dataclass(frozen=True)
class _Maybe:
    """A shape, or null."""

    shape: Any


@dataclass(frozen=True)
class _Leaf:
    meaning: str
    holds: Callable[[Any], bool]
    infinite: bool = False


def _finite(value: Any) -> bool:
    """Whether a value is a number that fits a float: JSON allows 1e999, and integers of any length."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _number(meaning: str, holds: Callable[[float], bool], *, infinite: bool = False) -> _Leaf:
    return _Leaf(f"a {meaning} finite number", lambda v: _finite(v) and holds(v), infinite)


def _among(*choices: str) -> _Leaf:
    return _Leaf(f"one of {choices}", lambda v: v in choices)


def _count(least: int) -> _Leaf:
    return _Leaf(f"an integer from {least}, below 2^63", lambda v: type(v) is int and least <= v < 2**63)


_TEXT = _Leaf("a string", lambda v: isinstance(v, str))
_FLAG = _Leaf("true or false", lambda v: isinstance(v, bool))
_POSITIVE = _number("positive", lambda v: v > 0)
_NOT_NEGATIVE = _number("not negative", lambda v: v >= 0)
_CLAIM = _number("not negative", lambda v: v >= 0, infinite=True)
_UNIT = _among("user", "row", "label")
_SENSITIVITY = {"zero_out": _POSITIVE, "replace_one": _POSITIVE, "unit": _UNIT}
_GAUSSIAN = {
    "mechanism": _among("gaussian"),
    "sigma": _NOT_NEGATIVE,
    "sensitivity": _SENSITIVITY,
    "sampling_rate": _number("positive, at most one,", lambda v: 0 < v <= 1),
    "slack": _number("not negative, below one,", lambda v: 0 <= v < 1),
}
_SELECTION = {"mechanism": _among("selection"), "scale": _NOT_NEGATIVE, "sensitivity": _SENSITIVITY}
_EVENT = _Either("mechanism", {"gaussian": _GAUSSIAN, "selection": _SELECTION})
_RELEASE = {
    "run": _TEXT,
    "index": _count(0),
    "name": _TEXT,
    "event": _EVENT,
    "noise": _among("exact", "float", "none", "seeded"),
    "grid": _NOT_NEGATIVE,
    "coordinates": _count(1),
    "state": _among("debited", "published"),
    "attempts": _count(1),
}
_BUDGET = {
    "epsilon": _number("positive", lambda v: v > 0, infinite=True),
    "delta": _number("not negative, below one,", lambda v: 0 <= v < 1),
    "adjacency": _among(*SENSITIVITY),
    "unit": _UNIT,
}
_WORDS = _Leaf("null or a string", lambda v: v is None or isinstance(v, str))
_STRINGS = _Leaf("an object of strings", lambda v: isinstance(v, dict) and all(isinstance(t, str) for t in v.values()))
_HEX = _Leaf("64 hexadecimal digits", lambda v: isinstance(v, str) and re.fullmatch("[0-9a-f]{64}", v) is not None)
_NUMBER_OR_NONE = _Leaf("null or a not negative finite number", lambda v: v is None or (_finite(v) and v >= 0))
_ACCOUNT = {
    "id": _TEXT,
    "epsilon": _CLAIM,
    "adjacency": _among(*SENSITIVITY),
    "delta": _number("not negative, below one,", lambda v: 0 <= v < 1),
    "runs": _count(1),
    "period": _TEXT,
    "period_epsilon": _CLAIM,
    "renews": _Leaf("null, yearly, quarterly or monthly", lambda v: v in (None, "yearly", "quarterly", "monthly")),
    "ceiling": _Maybe(_BUDGET),
    "entries": _count(1),
    "head": _HEX,
}
NUMBERS = ("epsilon", "mu_", "rho_")
"""How the names of derived numbers begin."""

_FORMAT = "tacitly certificate 2"
_CERTIFICATE = {
    "format": _among(_FORMAT),
    "algorithm": _TEXT,
    "mode": _among("certified", "paper", "non-private", "seeded"),
    "budget": _BUDGET,
    "releases": [_RELEASE],
    "n_users": _count(1),
    "trust": _TEXT,
    "reasons": [_TEXT],
    "nominal_epsilon": _Leaf("null or a not negative finite number", lambda v: v is None or _CLAIM.holds(v), True),
    "not_covered": [_TEXT],
    "notes": [_TEXT],
    "public": [_TEXT],
    "files": _Leaf(
        "hashes by name of file", lambda v: isinstance(v, dict) and all(_HEX.holds(entry) for entry in v.values())
    ),
    "account": _Maybe(_ACCOUNT),
    "date": _Leaf("a date", lambda v: isinstance(v, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", v) is not None),
    "purpose": _WORDS,
    "curator": _WORDS,
    "region": _WORDS,
    "code": {"version": _TEXT, "sha256": _HEX, "commit": _WORDS},
    "dependencies": _STRINGS,
    "signature": _Maybe({"key": _HEX, "value": _TEXT}),
    **dict.fromkeys(("mu_zero_out", "mu_replace_one", "rho_zero_out", "rho_replace_one"), _NUMBER_OR_NONE),
    **dict.fromkeys(("epsilon", "epsilon_zero_out", "epsilon_replace_one"), _CLAIM),
    "certified": _FLAG,
    "digest": _TEXT,
}
