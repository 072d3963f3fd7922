"""Queries and head work as bytes: a class name and numbers. No code travels, and nothing is unpickled.

A message is a line that names the format and its version, a line of JSON, and the arrays that the JSON refers to, one
after the other. Only classes in :data:`tacitly.federation.allowed.KNOWN` are built from it, only from exactly their
public fields, and each field must have the type that its class declares. Anything else raises :class:`WireError` before
any number is used; sizes are bounded first.

>>> from tacitly.methods.shared.whitening import FeatureMoment
>>> decode(encode(FeatureMoment(3, centered=True)))
FeatureMoment(n_features=3, centered=True, most_rows=0)
"""

from __future__ import annotations

import dataclasses
import json
import math
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from tacitly.federation.allowed import KNOWN
from tacitly.privacy.guarantee import Unit

LIMIT = 1 << 30
"""Maximum size of a message in bytes."""

_FORMAT = b"tacitly"
_MAGIC = _FORMAT + b"1\n"  # the version of the format
_HEADER_LIMIT, _ARRAYS, _DIMENSIONS, _DEPTH, _TEXT = 1 << 16, 64, 3, 4, 64
_LABELS, _CLASSES = "Sequence[Any] | None", 1000  # each is a model: to try 10,000 took a quarter of an hour
_OR_NONE = " | None"
_TYPES = ("<f8", "<i8", "|u1")


class WireError(ValueError):
    """Bytes that are not a message, or a message that names something unknown."""


def encode(thing: Any) -> bytes:
    """Return a query (or head work) as bytes."""
    arrays: list[npt.NDArray[Any]] = []
    header = _plain(thing, arrays, 0)
    return pack({"thing": header}, arrays)


def decode(data: bytes) -> Any:
    """Build the query (or head work) that :func:`encode` wrote; raise :class:`WireError` for anything else."""
    header, arrays = unpack(data)
    if set(header) != {"thing"}:
        raise WireError("a message must hold one object.")
    return _build(header["thing"], arrays, 0)


def pack(header: dict[str, Any], arrays: list[npt.NDArray[Any]]) -> bytes:
    """Return a header and arrays as bytes."""
    shapes = [[array.dtype.str if array.dtype.itemsize > 1 else "|u1", list(array.shape)] for array in arrays]
    line = json.dumps({**header, "arrays": shapes}, allow_nan=False, separators=(",", ":")).encode()
    data = b"".join([_MAGIC, line, b"\n", *(np.ascontiguousarray(array).tobytes() for array in arrays)])
    unpack(data)  # nothing is sent that could not be read
    return data


def unpack(data: bytes) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """Read a header and arrays; raise :class:`WireError` unless every byte is accounted for."""
    if len(data) > LIMIT:
        raise WireError(f"a message must have at most {LIMIT} bytes. Found {len(data)}.")
    if not data.startswith(_MAGIC):
        if data.startswith(_FORMAT):
            raise WireError("the message has another format version. Use the same version of tacitly everywhere.")
        raise WireError("not a message of tacitly.")
    end = data.find(b"\n", len(_MAGIC), len(_MAGIC) + _HEADER_LIMIT)
    if end < 0:
        raise WireError("the header does not end.")
    try:
        header = json.loads(data[len(_MAGIC) : end], parse_constant=_no_constant)
        shapes = header.pop("arrays")
        kinds = [(kind, list(shape)) for kind, shape in shapes]
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError):
        raise WireError("the header cannot be read.") from None
    if len(kinds) > _ARRAYS:
        raise WireError("too many arrays.")
    if not all(type(size) is int for _, shape in kinds for size in shape):
        raise WireError("a size must be a whole number.")
    arrays, at = [], end + 1
    for kind, shape in kinds:
        if kind not in _TYPES or len(shape) > _DIMENSIONS or any(size < 0 or size > LIMIT for size in shape):
            raise WireError("an array has an unknown type or shape.")
        count = math.prod(shape)
        size = count * np.dtype(kind).itemsize
        if at + size > len(data):
            raise WireError("an array is cut off.")
        # A copy: views into the message are read-only and unaligned, and kernels would be compiled again for them.
        arrays.append(np.frombuffer(data, dtype=kind, count=count, offset=at).reshape(shape).copy())
        at += size
    if at != len(data):
        raise WireError("bytes are left over.")
    return header, arrays


def _plain(thing: Any, arrays: list[npt.NDArray[Any]], depth: int) -> Any:
    if isinstance(thing, np.ndarray):
        arrays.append(np.ascontiguousarray(thing, dtype=np.float64))
        return {"array": len(arrays) - 1}
    if isinstance(thing, Unit):
        return str(thing)
    if thing is None or isinstance(thing, bool | str | int | float):
        return thing
    if isinstance(thing, np.generic):
        return thing.item()
    if isinstance(thing, tuple):  # labels do not travel: targets are their positions, so their number is enough
        return len(thing)
    name = type(thing).__name__
    if KNOWN.get(name) != type(thing).__module__ or depth > _DEPTH:
        raise WireError(f"{name} cannot travel: no method lists it in its METHOD (wire=…).")
    values = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    return {"class": name, "fields": {key: _plain(value, arrays, depth + 1) for key, value in values.items()}}


def _build(plain: Any, arrays: list[npt.NDArray[Any]], depth: int) -> Any:
    if not isinstance(plain, dict) or set(plain) != {"class", "fields"} or depth > _DEPTH:
        raise WireError("an object must have a class and fields.")
    name, given = plain["class"], plain["fields"]
    if not isinstance(name, str) or name not in KNOWN or not isinstance(given, dict):
        raise WireError("an unknown class: it may not travel.")
    kind = getattr(import_module(KNOWN[name]), name)
    declared = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if set(given) != set(declared):
        raise WireError(f"{name} has different fields.")
    values = {key: _field(declared[key], value, arrays, depth) for key, value in given.items()}
    try:
        return kind(**values)
    except Exception:
        raise WireError(f"{name} rejects its fields.") from None


def _field(declared: str, value: Any, arrays: list[npt.NDArray[Any]], depth: int) -> Any:
    """Return a field's value if it has the type that its class declares."""
    if declared == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value)
    if declared == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if declared == "bool" and isinstance(value, bool):
        return value
    if declared == "str" and isinstance(value, str) and len(value) <= _TEXT:
        return value
    if declared == "Unit" and value in [str(unit) for unit in Unit]:
        return Unit(value)
    if declared == "Array" and isinstance(value, dict) and set(value) == {"array"}:
        index = value["array"]
        if isinstance(index, int) and 0 <= index < len(arrays) and arrays[index].dtype == np.float64:
            if not np.isfinite(arrays[index]).all():
                raise WireError("an array is not finite.")
            return arrays[index]
    if declared == _LABELS and (value is None or (type(value) is int and 2 <= value <= _CLASSES)):
        return None if value is None else tuple(range(value))
    if declared.endswith(_OR_NONE) and declared.removesuffix(_OR_NONE) in KNOWN:
        return None if value is None else _field(declared.removesuffix(_OR_NONE), value, arrays, depth)
    if (declared == "Query" or declared in KNOWN) and isinstance(value, dict):
        built = _build(value, arrays, depth + 1)
        if declared in [base.__name__ for base in type(built).__mro__]:
            return built
    raise WireError(f"a field must be a {declared}.")


def _finite(value: float) -> float:
    """Return a number as a finite float: JSON's 1e999 reads as infinity, and whole numbers may exceed any float."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WireError("a number is not finite.")
    return number


def _no_constant(name: str) -> float:
    raise WireError(f"{name} is not a number.")
